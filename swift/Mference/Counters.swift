// What a device has done, for mf_counters.
import CMference
import Foundation

final class Counters: @unchecked Sendable {
  private let lock = NSLock()
  private var values = mf_counters_t()

  func add(bufferBytes: Int) { lock.withLock { values.buffer_bytes += Double(bufferBytes) } }

  func addList() { lock.withLock { values.lists += 1 } }

  func add(dispatches: Int, busySeconds: Double) {
    lock.withLock {
      values.dispatches += Double(dispatches)
      values.busy_seconds += busySeconds
    }
  }

  var snapshot: mf_counters_t { lock.withLock { values } }
}
