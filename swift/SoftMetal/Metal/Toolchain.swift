import CSoftMetal
import Foundation

/// Runs Clang: preprocesses Metal source, and compiles the translation into a shared library.
struct Toolchain {
    var configuration: Configuration

    static let headers: [(name: String, text: [UInt8])] = [
        ("softmetal.h", PackageResources.softmetal_h),
        ("msl.h", PackageResources.msl_h),
        ("msl_vectors.h", PackageResources.msl_vectors_h),
        ("msl_math.h", PackageResources.msl_math_h),
        ("msl_atomic.h", PackageResources.msl_atomic_h),
        ("msl_simd.h", PackageResources.msl_simd_h),
        ("msl_simdgroup_matrix.h", PackageResources.msl_simdgroup_matrix_h),
        ("msl_entry.h", PackageResources.msl_entry_h),
        ("msl_checks.h", PackageResources.msl_checks_h),
    ]
    /// What Metal sources may include. The real content, msl.h, is included before the translation instead.
    static let metalHeaders = [
        "metal_stdlib", "metal_atomic", "metal_common", "metal_compute", "metal_geometric", "metal_integer",
        "metal_math", "metal_matrix", "metal_numeric", "metal_relational", "metal_simdgroup",
        "metal_simdgroup_matrix", "metal_types", "simd/simd.h",
    ]
    static let headerHash = hash(headers.flatMap { $0.text })

    // MARK: Steps

    func preprocess(_ source: String, options: MTLCompileOptions) throws -> String {
        let version = options.languageVersion.rawValue
        var arguments = ["-E", "-x", "c++", "-nostdinc", "-isystem", try includeDirectory() + "/metal"]
        arguments += ["-std=c++14", "-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__HAVE_BFLOAT__=1"]
        arguments += ["-D__METAL_VERSION__=\((version >> 16) * 100 + (version & 0xFFFF) * 10)"]
        for (name, value) in options.preprocessorMacros ?? [:] { arguments.append("-D\(name)=\(value)") }
        // The name that Apple's compiler shows in messages.
        return try run(arguments + ["-"], input: "# 1 \"program_source\"\n" + source)
    }

    /// Returns the path of the shared library. The same text is compiled only once.
    func compile(_ translation: String, options: MTLCompileOptions) throws -> String {
        let arguments = try compilerArguments(options)
        let key = Self.hash(Array((arguments.joined(separator: " ") + translation).utf8))
        let base = "\(configuration.cacheDirectory)/\(key)", library = base + ".so"
        if configuration.lints, !exists(base + ".portable") {
            try lint(translation, options: options)
            try Data().write(to: URL(fileURLWithPath: base + ".portable"))
        }
        if exists(library) { return library }
        let unfinished = "\(base).\(UUID().uuidString).so"
        _ = try run(arguments + ["-shared", "-o", unfinished, "-"], input: translation)
        try translation.write(toFile: base + ".cpp", atomically: true, encoding: .utf8)  // for debugging
        guard rename(unfinished, library) == 0 else { throw failure("cannot write \(library)") }
        return library
    }

    private func compilerArguments(_ options: MTLCompileOptions) throws -> [String] {
        var arguments = [
            "-x", "c++", "-std=c++14", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-nostdlib++",
            "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-fwrapv", "-fsigned-char",
            // Round every half operation, as a GPU does; the default keeps intermediate results in float.
            "-Xclang", "-ffloat16-excess-precision=none",
            "-ffp-contract=" + (options.mathMode == .safe ? "off" : "fast"),
            "-Wno-everything", "-I", try includeDirectory(),
        ]
        #if arch(x86_64)
        arguments.append("-march=x86-64-v3")  // a fixed baseline, so that results do not depend on the machine
        #elseif arch(arm64)
        arguments.append("-march=armv8.2-a+fp16")
        #endif
        if configuration.checksMemory {
            // The sanitizer's calls, without its run time; wide vector accesses would not be reported.
            arguments += ["-O1", "-g1", "-fno-vectorize", "-fno-slp-vectorize", "-fsanitize=thread", "-DMSL_CHECKS"]
            arguments += ["-fno-sanitize-link-runtime", "-mllvm", "-tsan-instrument-func-entry-exit=0"]
            arguments += ["-mllvm", "-tsan-instrument-atomics=0", "-include", "msl_checks.h"]
        } else {
            arguments += ["-O2", "-include", "msl.h"]
        }
        return arguments
    }

    /// Compiles with real address spaces. Copying a struct out of device memory is an error then, although it is
    /// fine in Metal, so errors of that kind are dropped.
    private func lint(_ translation: String, options: MTLCompileOptions) throws {
        let arguments = try compilerArguments(options) + ["-fsyntax-only", "-ferror-limit=0", "-DMSL_LINT", "-"]
        do {
            _ = try run(arguments, input: translation)
        } catch let error as MTLLibraryError {
            let harmless = ["no matching constructor for initialization of", "no viable overloaded '='",
                "no matching member function"]
            let errors = error.message.split(separator: "\n").filter { line in
                line.contains("program_source") && line.contains(" error: ") && !harmless.contains { line.contains($0) }
            }
            if !errors.isEmpty { throw failure("not portable:\n" + errors.joined(separator: "\n")) }
        }
    }

    // MARK: Files and processes

    /// Writes the headers next to the compiled libraries.
    private func includeDirectory() throws -> String {
        let directory = "\(configuration.cacheDirectory)/include-\(Self.headerHash)"
        if exists(directory + "/complete") { return directory }
        func write(_ bytes: [UInt8], to name: String) throws {
            try Data(bytes).write(to: URL(fileURLWithPath: "\(directory)/\(name)"))
        }
        try FileManager.default.createDirectory(
            atPath: directory + "/metal/simd", withIntermediateDirectories: true)
        for header in Self.headers { try write(header.text, to: header.name) }
        for name in Self.metalHeaders { try write([], to: "metal/" + name) }
        try write([], to: "complete")
        return directory
    }

    private func exists(_ path: String) -> Bool { FileManager.default.fileExists(atPath: path) }

    private func failure(_ message: String) -> MTLLibraryError {
        MTLLibraryError(code: .compileFailure, message: message)
    }

    private func run(_ arguments: [String], input: String) throws -> String {
        let result = try Subprocess.run(
            configuration.clang, arguments, input: input, scratch: configuration.cacheDirectory)
        guard result.status == 0 else { throw failure(result.errors) }
        return result.output
    }

    /// FNV-1a, twice: names of cache entries.
    static func hash(_ bytes: [UInt8]) -> String {
        var a: UInt64 = 0xcbf2_9ce4_8422_2325, b: UInt64 = 0x9ae1_6a3b_2f90_404f
        for byte in bytes {
            a = (a ^ UInt64(byte)) &* 0x100_0000_01b3
            b = (b &+ UInt64(byte)) &* 0x9e37_79b9_7f4a_7c15
            b ^= b >> 29
        }
        return String(a, radix: 36) + String(b, radix: 36)
    }
}

/// Runs a program with files as its standard streams. (Foundation's Process takes 50 ms to notice the exit.)
enum Subprocess {
    struct Failure: Error, CustomStringConvertible { let description: String }

    static func run(
        _ program: String, _ arguments: [String], input: String = "", scratch: String
    ) throws -> (status: Int32, output: String, errors: String) {
        let files = ["in", "out", "err"].map { "\(scratch)/\(UUID().uuidString).\($0)" }
        defer { for file in files { unlink(file) } }
        try input.write(toFile: files[0], atomically: false, encoding: .utf8)

        var actions = posix_spawn_file_actions_t()
        posix_spawn_file_actions_init(&actions)
        defer { posix_spawn_file_actions_destroy(&actions) }
        posix_spawn_file_actions_addopen(&actions, 0, files[0], O_RDONLY, 0)
        posix_spawn_file_actions_addopen(&actions, 1, files[1], O_WRONLY | O_CREAT, 0o600)
        posix_spawn_file_actions_addopen(&actions, 2, files[2], O_WRONLY | O_CREAT, 0o600)

        var argv: [UnsafeMutablePointer<CChar>?] = ([program] + arguments).map { strdup($0) } + [nil]
        defer { for argument in argv { free(argument) } }
        var pid = pid_t()
        let code = posix_spawnp(&pid, program, &actions, nil, &argv, environ)
        guard code == 0 else { throw Failure(description: "cannot run \(program): \(String(cString: strerror(code)))") }
        var status: Int32 = 0
        while waitpid(pid, &status, 0) < 0 && errno == EINTR {}
        func read(_ path: String) -> String { (try? String(contentsOfFile: path, encoding: .utf8)) ?? "" }
        return (status, read(files[1]), read(files[2]))
    }
}

/// A compiled library in memory.
final class LoadedLibrary: @unchecked Sendable {
    let path: String
    private let handle: UnsafeMutableRawPointer

    init(path: String) throws {
        guard let handle = dlopen(path, RTLD_NOW | RTLD_LOCAL) else {
            throw MTLLibraryError(code: .internal, message: String(cString: dlerror()))
        }
        self.path = path
        self.handle = handle
        symbol("softmetal_scheduler")!.storeBytes(of: softmetal_scheduler_services().pointee, as: softmetal_services.self)
    }
    deinit { dlclose(handle) }

    func symbol(_ name: String) -> UnsafeMutableRawPointer? { dlsym(handle, name) }

    /// Where the library, with its constants, is in memory.
    var image: Range<UnsafeRawPointer> {
        let start = symbol("softmetal_image_start")!, end = symbol("softmetal_image_end")!
        return start.load(as: UnsafeRawPointer.self)..<end.load(as: UnsafeRawPointer.self)
    }
}
