// Apple's declarations, exactly as its documentation shows them: what compiles against these must
// compile against the framework. When in doubt something is left out; protocols are not Sendable,
// as they are not in every SDK.
import Dispatch

public protocol MTLEvent: AnyObject {
  var label: String? { get set }
  var device: (any MTLDevice)? { get }
}

public typealias MTLSharedEventNotificationBlock = @Sendable (any MTLSharedEvent, UInt64) -> Void

public protocol MTLSharedEvent: MTLEvent {
  var signaledValue: UInt64 { get set }
  func notify(
    _ listener: MTLSharedEventListener, atValue value: UInt64,
    block: @escaping MTLSharedEventNotificationBlock)
  func wait(untilSignaledValue value: UInt64, timeoutMS milliseconds: UInt64) -> Bool
}

public final class MTLSharedEventListener: @unchecked Sendable {
  public let dispatchQueue: DispatchQueue
  public init() { dispatchQueue = DispatchQueue(label: "MTLSharedEventListener") }
  public init(dispatchQueue: DispatchQueue) { self.dispatchQueue = dispatchQueue }
}
