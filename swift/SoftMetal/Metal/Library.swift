import CSoftMetal
import Foundation

final class SoftLibrary: MTLLibrary, @unchecked Sendable {
    var label: String?
    let owner: SoftDevice
    private let preprocessed: String
    private let options: MTLCompileOptions
    private let general: (translation: Translation, loaded: LoadedLibrary)

    init(device: SoftDevice, source: String, options: MTLCompileOptions) throws {
        owner = device
        self.options = options
        preprocessed = try Toolchain(configuration: device.configuration).preprocess(source, options: options)
        general = try Self.build(preprocessed, constants: ConstantLiterals(), options: options, device: device)
    }

    var device: any MTLDevice { owner }
    var functionNames: [String] { general.translation.kernels.map(\.name) }

    private static func build(
        _ preprocessed: String, constants: ConstantLiterals, options: MTLCompileOptions, device: SoftDevice
    ) throws -> (Translation, LoadedLibrary) {
        do {
            let translation = try Translation(source: preprocessed, constants: constants)
            let toolchain = Toolchain(configuration: device.configuration)
            return (translation, try LoadedLibrary(path: toolchain.compile(translation.text, options: options)))
        } catch let error as TranslationError {
            throw MTLLibraryError(
                code: .compileFailure, message: "program_source:\(error.line): error: \(error.message)")
        }
    }

    func makeFunction(name functionName: String) -> (any MTLFunction)? {
        function(functionName, in: general, isSpecialized: false)
    }

    func makeFunction(name: String, constantValues: MTLFunctionConstantValues) throws -> any MTLFunction {
        let build =
            general.translation.constants.isEmpty
            ? general
            : try Self.build(preprocessed, constants: constantValues.literals, options: options, device: owner)
        guard let function = function(name, in: build, isSpecialized: true) else {
            throw MTLLibraryError(code: .functionNotFound, message: "there is no kernel named \(name)")
        }
        return function
    }

    private func function(
        _ name: String, in build: (Translation, LoadedLibrary), isSpecialized: Bool
    ) -> SoftFunction? {
        guard var kernel = build.0.kernels.first(where: { $0.name == name }),
            let entryPoint = build.1.symbol(kernel.entryPoint)
        else { return nil }
        if isSpecialized { kernel.usesConstants = false }
        return SoftFunction(device: owner, kernel: kernel, entryPoint: entryPoint, library: build.1)
    }
}

final class SoftFunction: MTLFunction, @unchecked Sendable {
    var label: String?
    let device: any MTLDevice
    let kernel: Translation.Kernel
    let entryPoint: softmetal_kernel
    let library: LoadedLibrary  // keeps the code in memory
    let functionType = MTLFunctionType.kernel
    var name: String { kernel.name }

    init(device: SoftDevice, kernel: Translation.Kernel, entryPoint: UnsafeMutableRawPointer, library: LoadedLibrary) {
        (self.device, self.kernel, self.library) = (device, kernel, library)
        self.entryPoint = unsafeBitCast(entryPoint, to: softmetal_kernel.self)
    }
}

final class SoftComputePipelineState: MTLComputePipelineState, @unchecked Sendable {
    let device: any MTLDevice
    let function: SoftFunction
    let label: String?
    let threadExecutionWidth = SOFTMETAL_SIMD_WIDTH
    let maxTotalThreadsPerThreadgroup: Int

    init(device: SoftDevice, function: SoftFunction, label: String? = nil, maxTotalThreads: Int? = nil) throws {
        if function.kernel.usesConstants {
            throw MTLLibraryError(
                code: .compileFailure,
                message: "\(function.name) uses function constants: make it with constantValues")
        }
        (self.device, self.function, self.label) = (device, function, label)
        maxTotalThreadsPerThreadgroup = maxTotalThreads ?? function.kernel.maxTotalThreads ?? SOFTMETAL_MAX_THREADS
    }
}

public final class MTLFunctionConstantValues: @unchecked Sendable {
    var literals = ConstantLiterals()

    public init() {}
    public func reset() { literals = ConstantLiterals() }

    public func setConstantValue(_ value: UnsafeRawPointer, type: MTLDataType, index: Int) {
        literals.byIndex[index] = Self.literal(value, type)
    }
    public func setConstantValue(_ value: UnsafeRawPointer, type: MTLDataType, withName name: String) {
        literals.byName[name] = Self.literal(value, type)
    }
    public func setConstantValues(_ values: UnsafeRawPointer, type: MTLDataType, range: Range<Int>) {
        let stride = Self.layout(type).stride
        for (i, index) in range.enumerated() {
            literals.byIndex[index] = Self.literal(values + i * stride, type)
        }
    }

    /// The scalar types start at these values; the vectors of 2, 3 and 4 components follow.
    private static let scalars: [(first: MTLDataType, name: String, size: Int)] = [
        (.float, "float", 4), (.half, "half", 2), (.int, "int", 4), (.uint, "uint", 4), (.short, "short", 2),
        (.ushort, "ushort", 2), (.char, "char", 1), (.uchar, "uchar", 1), (.bool, "bool", 1), (.long, "long", 8),
        (.ulong, "ulong", 8), (.bfloat, "bfloat", 2),
    ]

    private static func layout(_ type: MTLDataType) -> (name: String, size: Int, components: Int, stride: Int) {
        let scalar = scalars.first { $0.first.rawValue...($0.first.rawValue + 3) ~= type.rawValue }
        guard let scalar else { preconditionFailure("a function constant cannot be of type \(type)") }
        let components = Int(type.rawValue - scalar.first.rawValue) + 1
        return (scalar.name, scalar.size, components, scalar.size * (components == 3 ? 4 : components))
    }

    /// The value as C++, bit for bit.
    private static func literal(_ value: UnsafeRawPointer, _ type: MTLDataType) -> String {
        let layout = layout(type)
        let parts = (0..<layout.components).map { i -> String in
            let bits = (0..<layout.size).reversed().reduce(UInt64(0)) {
                $0 << 8 | UInt64(value.load(fromByteOffset: i * layout.size + $1, as: UInt8.self))
            }
            if layout.name == "bool" { return bits & 0xFF != 0 ? "true" : "false" }
            let sameSize = [1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"][layout.size]!
            return "__builtin_bit_cast(\(layout.name), \(sameSize)(\(bits)ul))"
        }
        return parts.count == 1 ? parts[0] : "{" + parts.joined(separator: ", ") + "}"
    }
}
