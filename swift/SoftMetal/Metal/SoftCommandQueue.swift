import CSoftMetal
import Foundation

/// Runs command buffers one after another, in the order in which they were enqueued, on a thread of
/// its own.
final class SoftCommandQueue: MTLCommandQueue, @unchecked Sendable {
  var label: String?
  let owner: SoftDevice
  private let thread = DispatchQueue(label: "software GPU", qos: .userInitiated)
  private let lock = NSLock()
  private var enqueued: [SoftCommandBuffer] = []
  private let watchdog: Watchdog
  /// Places for command buffers that have not ended; guarded by `room`.
  private var places: Int
  private let room = NSCondition()

  init(device: SoftDevice, places: Int) {
    owner = device
    self.places = places
    watchdog = Watchdog(seconds: device.configuration.kernelTimeout)
  }
  var device: any MTLDevice { owner }

  func run(_ dispatch: Dispatch) -> Dispatch.Outcome {
    watchdog.watch(dispatch.pipeline.function.name)
    defer { watchdog.watch(nil) }
    return dispatch.run(configuration: owner.configuration)
  }

  /// Blocks until there is a place, like Apple's; gives up where that would block for ever.
  func makeCommandBuffer() -> (any MTLCommandBuffer)? {
    if owner.configuration.injection.fails(.commandBuffer) { return nil }
    let seconds = Double(owner.configuration.eventTimeout) / 1000
    let deadline = Date(timeIntervalSinceNow: seconds)
    let hasPlace = room.withLock {
      while places == 0 { if !room.wait(until: deadline) { return false } }
      places -= 1
      return true
    }
    return hasPlace ? SoftCommandBuffer(queue: self) : nil
  }

  /// A command buffer has ended, or went without being committed.
  func freePlace() {
    room.withLock {
      places += 1
      room.signal()
    }
  }

  func makeCommandBufferWithUnretainedReferences() -> (any MTLCommandBuffer)? {
    makeCommandBuffer()
  }

  func enqueue(_ buffer: SoftCommandBuffer) {
    lock.withLock { enqueued.append(buffer) }
  }

  /// A buffer was committed: run what is at the head of the queue and committed.
  func runCommitted() {
    thread.async { [self] in
      while let next = lock.withLock({ takeCommitted() }) { next.execute() }
    }
  }

  private func takeCommitted() -> SoftCommandBuffer? {
    guard let first = enqueued.first, first.status == .committed else { return nil }
    return enqueued.removeFirst()
  }
}
