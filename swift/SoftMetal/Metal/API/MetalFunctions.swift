// Apple's declarations, exactly as its documentation shows them: what compiles against these must
// compile against the framework. When in doubt something is left out; protocols are not Sendable,
// as they are not in every SDK.
import Foundation

public final class MTLCompileOptions: @unchecked Sendable {
  public init() {}
  public var preprocessorMacros: [String: NSObject]?
  public var mathMode: MTLMathMode = .fast
  public var languageVersion: MTLLanguageVersion = .version3_1
  public var fastMathEnabled: Bool {
    get { mathMode == .fast }
    set { mathMode = newValue ? .fast : .safe }
  }
}

public protocol MTLLibrary: AnyObject {
  var label: String? { get set }
  var device: any MTLDevice { get }
  var functionNames: [String] { get }
  func makeFunction(name functionName: String) -> (any MTLFunction)?
  func makeFunction(name: String, constantValues: MTLFunctionConstantValues) throws
    -> any MTLFunction
}

public protocol MTLFunction: AnyObject {
  var label: String? { get set }
  var device: any MTLDevice { get }
  var name: String { get }
  var functionType: MTLFunctionType { get }
}

public protocol MTLComputePipelineState: AnyObject {
  var label: String? { get }
  var device: any MTLDevice { get }
  var maxTotalThreadsPerThreadgroup: Int { get }
  var threadExecutionWidth: Int { get }
}
