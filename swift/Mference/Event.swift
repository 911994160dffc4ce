// An event: a number that only grows, signalled and awaited by the host and by command lists.
import CMference
import Foundation
import Metal

final class Event: Handled, @unchecked Sendable {
  static let kind = HandleKind.event

  let device: Device
  let metal: any MTLSharedEvent
  private let lock = NSLock()
  private var listWaits: [UInt64: Int] = [:]

  init(_ device: Device) throws {
    guard let metal = device.metal.makeSharedEvent() else {
      throw Failure(MF_ERR_DEVICE, "Metal made no shared event")
    }
    self.device = device
    self.metal = metal
  }

  var value: UInt64 { metal.signaledValue }

  /// A signal below the value changes nothing.
  func raise(to value: UInt64) {
    lock.withLock {
      if metal.signaledValue < value { metal.signaledValue = value }
    }
  }

  /// A submitted list waits for `value`; it ends.
  func beginWait(_ value: UInt64) { lock.withLock { listWaits[value, default: 0] += 1 } }
  func endWait(_ value: UInt64) {
    lock.withLock {
      let left = listWaits[value, default: 1] - 1
      listWaits[value] = left == 0 ? nil : left
    }
  }
  var isAwaited: Bool { lock.withLock { !listWaits.isEmpty } }
}
