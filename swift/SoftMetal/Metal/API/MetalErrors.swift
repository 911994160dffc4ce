// Apple's declarations, exactly as its documentation shows them: what compiles against these must
// compile against the framework. When in doubt something is left out; protocols are not Sendable,
// as they are not in every SDK.
import Foundation

public struct MTLLibraryError: Error, LocalizedError, CustomNSError, CustomStringConvertible {
  public enum Code: UInt, Sendable {
    case unsupported = 1
    case `internal`, compileFailure, compileWarning, functionNotFound, fileNotFound
  }
  public static let errorDomain = "MTLLibraryErrorDomain"
  public let code: Code
  let message: String
  public var errorCode: Int { Int(code.rawValue) }
  public var errorDescription: String? { message }
  public var errorUserInfo: [String: Any] { [NSLocalizedDescriptionKey: message] }
  public var description: String { message }
}

public struct MTLCommandBufferError: Error, LocalizedError, CustomNSError, CustomStringConvertible {
  public enum Code: UInt, Sendable {
    case none = 0
    case `internal` = 1
    case timeout = 2
    case pageFault = 3
    case accessRevoked = 4
    case notPermitted = 7
    case outOfMemory = 8
    case invalidResource = 9
    case memoryless = 10
    case deviceRemoved = 11
    case stackOverflow = 12
  }
  public static let errorDomain = "MTLCommandBufferErrorDomain"
  public let code: Code
  let message: String
  public var errorCode: Int { Int(code.rawValue) }
  public var errorDescription: String? { message }
  public var errorUserInfo: [String: Any] { [NSLocalizedDescriptionKey: message] }
  public var description: String { message }
}
