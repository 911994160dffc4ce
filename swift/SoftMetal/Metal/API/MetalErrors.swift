// Apple's declarations, exactly as its documentation shows them: what compiles against these must compile against
// the framework. When in doubt something is left out; protocols are not Sendable, as they are not in every SDK.
import Foundation

public struct MTLLibraryError: Error, LocalizedError, CustomNSError, CustomStringConvertible {
    public enum Code: UInt, Sendable {
        case unsupported = 1, `internal`, compileFailure, compileWarning, functionNotFound, fileNotFound
    }
    public static let errorDomain = "MTLLibraryErrorDomain"
    public let code: Code
    let message: String
    public var errorCode: Int { Int(code.rawValue) }
    public var errorDescription: String? { message }
    public var description: String { message }
}

public struct MTLCommandBufferError: Error, LocalizedError, CustomNSError, CustomStringConvertible {
    public enum Code: UInt, Sendable {
        case none = 0, `internal` = 1, timeout = 2, pageFault = 3, accessRevoked = 4, notPermitted = 7
        case outOfMemory = 8, invalidResource = 9, memoryless = 10, deviceRemoved = 11, stackOverflow = 12
    }
    public static let errorDomain = "MTLCommandBufferErrorDomain"
    public let code: Code
    let message: String
    public var errorCode: Int { Int(code.rawValue) }
    public var errorDescription: String? { message }
    public var description: String { message }
}
