import Foundation

/// Ends the process when a kernel runs for too long: an endless loop cannot be interrupted, and a
/// message is better than a test run that hangs.
final class Watchdog: @unchecked Sendable {
  private let lock = NSLock()
  private var kernel: String?
  private var ticks = 0
  private let timer: (any DispatchSourceTimer)?

  init(seconds: Int) {
    timer = seconds > 0 ? DispatchSource.makeTimerSource(queue: .global()) : nil
    timer?.schedule(deadline: .now() + 1, repeating: 1)
    timer?.setEventHandler { [weak self] in self?.tick(limit: seconds) }
    timer?.activate()
  }
  deinit { timer?.cancel() }

  func watch(_ kernel: String?) {
    lock.withLock { (self.kernel, ticks) = (kernel, 0) }
  }

  private func tick(limit: Int) {
    lock.withLock {
      guard let kernel else { return }
      ticks += 1
      if ticks > limit { fatalError("the kernel \(kernel) has been running for \(limit) seconds") }
    }
  }
}
