import CSoftMetal
import Foundation

/// A source, translated and checked as a whole. Kernels are compiled one by one, when they are asked
/// for: with function constants each set of values is a text of its own.
final class SoftLibrary: MTLLibrary, @unchecked Sendable {
  var label: String?
  let owner: SoftDevice
  private let preprocessed: String
  private let options: MTLCompileOptions
  private let general: Translation
  private var toolchain: Toolchain { Toolchain(configuration: owner.configuration) }

  init(device: SoftDevice, source: String, options: MTLCompileOptions) throws {
    owner = device
    self.options = options
    let source = try device.configuration.fault?.plant(in: source) ?? source
    let toolchain = Toolchain(configuration: device.configuration)
    preprocessed = try toolchain.preprocess(source, options: options)
    do {
      general = try Translation(source: preprocessed)
    } catch let error as TranslationError {
      throw MTLLibraryError(code: .compileFailure, message: error.message)
    }
    try toolchain.check(general.text, options: options)
  }

  var device: any MTLDevice { owner }
  var functionNames: [String] { general.kernels.map(\.name) }

  func makeFunction(name functionName: String) -> (any MTLFunction)? {
    try? function(functionName, constants: nil)
  }

  func makeFunction(name: String, constantValues: MTLFunctionConstantValues) throws
    -> any MTLFunction
  {
    if owner.configuration.injection.fails(.function) {
      throw MTLLibraryError(code: .functionNotFound, message: "no function, injected")
    }
    return try function(name, constants: constantValues.literals)
  }

  private func function(_ name: String, constants: ConstantLiterals?) throws -> SoftFunction {
    guard let declared = general.kernels.first(where: { $0.name == name }) else {
      throw MTLLibraryError(code: .functionNotFound, message: "there is no kernel named \(name)")
    }
    let used = declared.usesConstants ? constants ?? ConstantLiterals() : ConstantLiterals()
    let values = general.constants.map { used.literal(name: $0.name, index: $0.index) ?? "-" }
    let identity = ([name] + values + [preprocessed]).joined(separator: "\n")
    let path = try toolchain.compile(identity, options: options) {
      try Translation(source: preprocessed, constants: used, only: name).text
    }
    var kernel = declared
    kernel.entryPoint = Translation.onlyEntryPoint
    if constants != nil { kernel.usesConstants = false }
    return SoftFunction(device: owner, kernel: kernel, library: try LoadedLibrary(path: path))
  }
}
