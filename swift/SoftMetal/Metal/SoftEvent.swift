import Foundation

/// Both kinds of events. The value only grows.
final class SoftEvent: MTLSharedEvent, @unchecked Sendable {
  var label: String?
  let owner: SoftDevice
  private let condition = NSCondition()
  private var value: UInt64 = 0
  private var notifications:
    [(value: UInt64, queue: DispatchQueue, block: MTLSharedEventNotificationBlock)] = []

  init(device: SoftDevice) { owner = device }
  var device: (any MTLDevice)? { owner }

  var signaledValue: UInt64 {
    get { condition.withLock { value } }
    set {
      condition.lock()
      value = max(value, newValue)
      let due = notifications.filter { $0.value <= value }
      notifications.removeAll { $0.value <= value }
      condition.broadcast()
      condition.unlock()
      for notification in due {
        deliver(notification.block, on: notification.queue, value: newValue)
      }
    }
  }

  func notify(
    _ listener: MTLSharedEventListener, atValue value: UInt64,
    block: @escaping MTLSharedEventNotificationBlock
  ) {
    condition.lock()
    let reached = self.value >= value
    if !reached { notifications.append((value, listener.dispatchQueue, block)) }
    condition.unlock()
    if reached { deliver(block, on: listener.dispatchQueue, value: value) }
  }

  private func deliver(
    _ block: @escaping MTLSharedEventNotificationBlock, on queue: DispatchQueue, value: UInt64
  ) {
    queue.async { block(self, value) }
  }

  func wait(untilSignaledValue value: UInt64, timeoutMS milliseconds: UInt64) -> Bool {
    let deadline = Date(timeIntervalSinceNow: Double(milliseconds) / 1000)
    return condition.withLock {
      while self.value < value {
        if !condition.wait(until: deadline) { return self.value >= value }
      }
      return true
    }
  }
}
