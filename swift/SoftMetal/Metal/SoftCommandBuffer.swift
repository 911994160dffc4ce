import Foundation

final class SoftCommandBuffer: MTLCommandBuffer, @unchecked Sendable {
  enum Command {
    case dispatch(Dispatch, isConcurrent: Bool)
    case barrier
    case work(() -> Void)
    case signal(SoftEvent, UInt64)
    case wait(SoftEvent, UInt64)
  }

  var label: String?
  let queue: SoftCommandQueue
  private var commands: [Command] = []
  private var hazards = Hazards()
  private var isEncoding = false
  private var scheduledHandlers: [MTLCommandBufferHandler] = []
  private var completedHandlers: [MTLCommandBufferHandler] = []

  private let condition = NSCondition()
  private var currentStatus = MTLCommandBufferStatus.notEnqueued
  private var currentError: MTLCommandBufferError?
  private(set) var gpuStartTime = 0.0, gpuEndTime = 0.0
  private(set) var kernelStartTime = 0.0, kernelEndTime = 0.0
  private var isFinished = false  // completed, and all handlers called
  private var hasFreedPlace = false

  init(queue: SoftCommandQueue) { self.queue = queue }
  deinit { if !hasFreedPlace { queue.freePlace() } }

  var device: any MTLDevice { queue.owner }
  var commandQueue: any MTLCommandQueue { queue }
  var status: MTLCommandBufferStatus { condition.withLock { currentStatus } }
  var error: (any Error)? { condition.withLock { currentError } }

  private func advance(to status: MTLCommandBufferStatus) {
    condition.withLock {
      currentStatus = status
      condition.broadcast()
    }
  }

  // MARK: Encoding

  /// The first mistake decides the error of the command buffer.
  func fail(_ code: MTLCommandBufferError.Code, _ message: String) {
    condition.withLock {
      if currentError == nil { currentError = MTLCommandBufferError(code: code, message: message) }
    }
  }

  func append(_ command: Command) { commands.append(command) }

  private func beginEncoding() {
    if isEncoding { fail(.invalidResource, "an encoder was made before the previous one ended") }
    isEncoding = true
  }
  func endEncoding() { isEncoding = false }

  func makeComputeCommandEncoder() -> (any MTLComputeCommandEncoder)? {
    makeComputeCommandEncoder(dispatchType: .serial)
  }
  func makeComputeCommandEncoder(dispatchType: MTLDispatchType) -> (any MTLComputeCommandEncoder)? {
    if queue.owner.configuration.injection.fails(.encoder) { return nil }
    beginEncoding()
    return SoftComputeCommandEncoder(buffer: self, dispatchType: dispatchType)
  }
  func makeBlitCommandEncoder() -> (any MTLBlitCommandEncoder)? {
    if queue.owner.configuration.injection.fails(.encoder) { return nil }
    beginEncoding()
    return SoftBlitCommandEncoder(buffer: self)
  }
  func encodeWaitForEvent(_ event: any MTLEvent, value: UInt64) {
    if isEncoding { fail(.invalidResource, "encodeWaitForEvent while an encoder is active") }
    append(.wait(event as! SoftEvent, value))
  }
  func encodeSignalEvent(_ event: any MTLEvent, value: UInt64) {
    if isEncoding { fail(.invalidResource, "encodeSignalEvent while an encoder is active") }
    append(.signal(event as! SoftEvent, value))
  }
  func addScheduledHandler(_ block: @escaping MTLCommandBufferHandler) {
    scheduledHandlers.append(block)
  }
  func addCompletedHandler(_ block: @escaping MTLCommandBufferHandler) {
    precondition(
      status.rawValue < MTLCommandBufferStatus.committed.rawValue,
      "addCompletedHandler after commit")
    completedHandlers.append(block)
  }

  func enqueue() {
    guard status == .notEnqueued else { return }
    advance(to: .enqueued)
    queue.enqueue(self)
  }

  func commit() {
    precondition(
      status.rawValue < MTLCommandBufferStatus.committed.rawValue,
      "a command buffer is committed once")
    if isEncoding { fail(.invalidResource, "commit before endEncoding") }
    enqueue()
    advance(to: .committed)
    queue.runCommitted()
  }

  // MARK: Execution, on the queue's thread

  func execute() {
    kernelStartTime = now()
    advance(to: .scheduled)
    for handler in scheduledHandlers { handler(self) }
    (kernelEndTime, gpuStartTime) = (now(), now())
    if queue.owner.configuration.injection.fails(.commands) {
      fail(.internal, "a failed command buffer, injected")
    }
    for command in commands {
      if error != nil { break }
      run(command)
    }
    commands = []
    gpuEndTime = now()
    advance(to: error == nil ? .completed : .error)
    hasFreedPlace = true
    queue.freePlace()
    for handler in completedHandlers { handler(self) }
    (scheduledHandlers, completedHandlers) = ([], [])
    condition.withLock {
      isFinished = true
      condition.broadcast()
    }
  }

  private func run(_ command: Command) {
    switch command {
    case .dispatch(let dispatch, let isConcurrent):
      let outcome = queue.run(dispatch)
      if let failure = outcome.failure { return fail(.internal, failure) }
      if !isConcurrent { hazards.barrier() }
      if let conflict = hazards.add(outcome.touched) { fail(.internal, conflict) }
    case .barrier:
      hazards.barrier()
    case .work(let body):
      body()
    case .signal(let event, let value):
      event.signaledValue = value
    case .wait(let event, let value):
      if !event.wait(untilSignaledValue: value, timeoutMS: queue.owner.configuration.eventTimeout) {
        fail(
          .timeout,
          "gave up waiting for event \(event.label ?? "") to reach \(value); "
            + "it is at \(event.signaledValue)")
      }
    }
  }

  private func now() -> Double { Double(DispatchTime.now().uptimeNanoseconds) * 1e-9 }

  func waitUntilScheduled() {
    condition.withLock {
      while currentStatus.rawValue < MTLCommandBufferStatus.scheduled.rawValue { condition.wait() }
    }
  }
  func waitUntilCompleted() {
    condition.withLock {
      while !isFinished { condition.wait() }
    }
  }
}
