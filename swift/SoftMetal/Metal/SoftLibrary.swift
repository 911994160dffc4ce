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
    let source = try device.configuration.fault?.plant(in: source) ?? source
    preprocessed = try Toolchain(configuration: device.configuration).preprocess(
      source, options: options)
    general = try Self.build(
      preprocessed, constants: ConstantLiterals(), options: options, device: device)
  }

  var device: any MTLDevice { owner }
  var functionNames: [String] { general.translation.kernels.map(\.name) }

  /// `only`: the kernel that gets an entry point; the others are not compiled then.
  private static func build(
    _ preprocessed: String, constants: ConstantLiterals, options: MTLCompileOptions,
    device: SoftDevice,
    only: String? = nil
  ) throws -> (Translation, LoadedLibrary) {
    do {
      let translation = try Translation(source: preprocessed, constants: constants, only: only)
      let toolchain = Toolchain(configuration: device.configuration)
      return (
        translation, try LoadedLibrary(path: toolchain.compile(translation.text, options: options))
      )
    } catch let error as TranslationError {
      throw MTLLibraryError(
        code: .compileFailure, message: "program_source:\(error.line): error: \(error.message)")
    }
  }

  func makeFunction(name functionName: String) -> (any MTLFunction)? {
    function(functionName, in: general, isSpecialized: false)
  }

  func makeFunction(name: String, constantValues: MTLFunctionConstantValues) throws
    -> any MTLFunction
  {
    if owner.configuration.injection.fails(.function) {
      throw MTLLibraryError(code: .functionNotFound, message: "no function, injected")
    }
    let build =
      general.translation.constants.isEmpty
      ? general
      : try Self.build(
        preprocessed, constants: constantValues.literals, options: options, device: owner,
        only: name)
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
