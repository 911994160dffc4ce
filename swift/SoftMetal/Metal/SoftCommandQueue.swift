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

  init(device: SoftDevice) {
    owner = device
    watchdog = Watchdog(seconds: device.configuration.kernelTimeout)
  }
  var device: any MTLDevice { owner }

  func run(_ dispatch: Dispatch) -> Dispatch.Outcome {
    watchdog.watch(dispatch.pipeline.function.name)
    defer { watchdog.watch(nil) }
    return dispatch.run(configuration: owner.configuration)
  }

  func makeCommandBuffer() -> (any MTLCommandBuffer)? {
    owner.configuration.injection.fails(.commandBuffer) ? nil : SoftCommandBuffer(queue: self)
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
