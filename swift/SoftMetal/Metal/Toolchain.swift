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
  /// What Metal sources may include. The real content, msl.h, is included before the translation
  /// instead.
  static let metalHeaders = [
    "metal_stdlib", "metal_atomic", "metal_common", "metal_compute", "metal_geometric",
    "metal_integer",
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
    for (name, value) in options.preprocessorMacros ?? [:] {
      arguments.append("-D\(name)=\(value)")
    }
    // The name that Apple's compiler shows in messages.
    return try run(arguments + ["-"], input: "# 1 \"program_source\"\n" + source)
  }

  /// Reports what Clang has against the text, and with lint what Apple's compiler would have.
  func check(_ translation: String, options: MTLCompileOptions) throws {
    let arguments = try compilerArguments(options) + ["-fsyntax-only", "-"]
    let passed =
      cacheEntry(arguments, translation) + (configuration.lints ? ".portable" : ".correct")
    if exists(passed) { return }
    _ = try run(arguments, input: translation)
    if configuration.lints { try lint(translation, options: options) }
    try Data().write(to: URL(fileURLWithPath: passed))
  }

  /// The path, without an ending, of what becomes of a text.
  private func cacheEntry(_ arguments: [String], _ translation: String) -> String {
    let key = Self.hash(Array((arguments.joined(separator: " ") + translation).utf8))
    return "\(configuration.cacheDirectory)/\(key)"
  }

  /// Returns the path of the shared library of a translation, which is made and compiled only if
  /// there is none of that identity yet.
  func compile(
    _ identity: String, options: MTLCompileOptions, translation: () throws -> String
  ) throws -> String {
    let arguments = try compilerArguments(options)
    let base = cacheEntry(arguments, identity)
    let library = base + ".so"
    if exists(library) { return library }
    let translation = try translation()
    let unfinished = "\(base).\(UUID().uuidString).so"
    _ = try run(arguments + ["-shared", "-o", unfinished, "-"], input: translation)
    try translation.write(toFile: base + ".cpp", atomically: true, encoding: .utf8)  // for debugging
    guard rename(unfinished, library) == 0 else { throw failure("cannot write \(library)") }
    return library
  }

  private func compilerArguments(_ options: MTLCompileOptions) throws -> [String] {
    var arguments = [
      "-x", "c++", "-std=c++14", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
      "-nostdlib++",
      "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-fwrapv", "-fsigned-char",
      // Round every half operation, as a GPU does; the default keeps intermediate results in float.
      "-Xclang", "-ffloat16-excess-precision=none",
      "-ffp-contract=" + (options.mathMode == .safe ? "off" : "fast"),
      "-Wno-everything", "-Werror=return-type", "-Werror=uninitialized",
      "-Werror=sometimes-uninitialized", "-I", try includeDirectory(),
    ]
    #if arch(x86_64)
      arguments.append("-march=x86-64-v3")  // a fixed baseline, so that results do not depend on the machine
    #elseif arch(arm64)
      arguments.append("-march=armv8.2-a+fp16")
    #endif
    if configuration.checks {
      // The sanitizer's calls, without its run time; wide vector accesses would not be reported.
      arguments += ["-O1", "-g1", "-fno-vectorize", "-fno-slp-vectorize", "-DMSL_CHECKS"]
      arguments += ["-fsanitize=thread,alignment,bounds,integer-divide-by-zero,shift-exponent"]
      // Variables of a thread that nobody has set are NaN, or an index far outside.
      arguments += ["-ftrivial-auto-var-init=pattern"]
      arguments += ["-fno-sanitize-link-runtime", "-mllvm", "-tsan-instrument-func-entry-exit=0"]
      arguments += [
        "-mllvm", "-tsan-instrument-atomics=0", "-mllvm", "-tsan-instrument-read-before-write=1",
        "-include", "msl_checks.h",
      ]
    } else {
      arguments += ["-O2", "-include", "msl.h"]
    }
    return arguments
  }

  /// Compiles with real address spaces. Copying a struct out of device memory is an error then,
  /// although it is fine in Metal, so errors of that kind are dropped.
  private func lint(_ translation: String, options: MTLCompileOptions) throws {
    let arguments =
      try compilerArguments(options) + ["-fsyntax-only", "-ferror-limit=0", "-DMSL_LINT", "-"]
    do {
      _ = try run(arguments, input: translation)
    } catch let error as MTLLibraryError {
      let harmless = [
        "no matching constructor for initialization of", "no viable overloaded '='",
        "no matching member function",
      ]
      let errors = error.message.split(separator: "\n").filter { line in
        // Those of our own headers come from mistakes in the source that are reported there too.
        line.contains(" error: ") && !line.contains("/msl") && !line.contains("/softmetal.h")
          && !harmless.contains { line.contains($0) }
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
    var a: UInt64 = 0xcbf2_9ce4_8422_2325
    var b: UInt64 = 0x9ae1_6a3b_2f90_404f
    for byte in bytes {
      a = (a ^ UInt64(byte)) &* 0x100_0000_01b3
      b = (b &+ UInt64(byte)) &* 0x9e37_79b9_7f4a_7c15
      b ^= b >> 29
    }
    return String(a, radix: 36) + String(b, radix: 36)
  }
}
