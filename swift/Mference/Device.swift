// A device: one Metal device with one in-order queue. Command buffers are committed at once, gated by the
// events they wait for; a committed one cannot be taken back, so cancelling lets it run to its end and
// only says so to whoever waits.
import CMference
import Foundation
import Metal

final class Device: Handled, @unchecked Sendable {
  static let kind = HandleKind.device

  let metal: any MTLDevice
  let counters = Counters()
  private let queue: any MTLCommandQueue
  private let pipelines: Pipelines
  /// Guards everything below; signalled when a list ends and when the state changes.
  private let state = NSCondition()
  private var submitted = 0
  private var running: [Submission] = []
  private var isCancelled = false
  private var isClosed = false
  private var failure: String?

  init() throws {
    guard let metal = MTLCreateSystemDefaultDevice() else {
      throw Failure(MF_ERR_DEVICE, "this machine has no Metal device; use the CPU device")
    }
    guard metal.supportsFamily(.apple7), metal.hasUnifiedMemory else {
      throw Failure(
        MF_ERR_DEVICE, "\(metal.name) is no Apple silicon GPU, which the Metal device needs")
    }
    guard let queue = metal.makeCommandQueue(maxCommandBufferCount: Self.buffersMax) else {
      throw Failure(MF_ERR_DEVICE, "Metal made no command queue")
    }
    self.metal = metal
    self.queue = queue
    pipelines = try Pipelines(metal)
  }

  var info: mf_device_info_t {
    var info = mf_device_info_t()
    withUnsafeMutableBytes(of: &info.name) { target in
      target.copyBytes(from: Array(metal.name.utf8).prefix(target.count - 1))
    }
    info.page_bytes = UInt32(Memory.pageBytes)
    info.buffer_bytes_max = Double(metal.maxBufferLength)
    info.memory_bytes = Double(metal.recommendedMaxWorkingSetSize)
    return info
  }

  // MARK: - Work

  /// Command buffers that have not ended. Metal makes the one that asks for more wait, and what it waits for
  /// may be waiting for an event that only the one who asks signals.
  private static let buffersMax = 1024

  func submit(_ list: CommandList) throws {
    try checkRoom(for: list)
    let submission = try encode(list)
    state.lock()
    defer { state.unlock() }
    try checkState()
    submitted += 1
    list.pin()
    running.append(submission)
    for (index, part) in submission.parts.enumerated() {
      part.buffer.addCompletedHandler { [self] in end(submission, part: index, $0) }
      part.buffer.commit()
    }
  }

  private func checkRoom(for list: CommandList) throws {
    let wanted = list.waits.count + 1
    let taken = state.withLock { running.reduce(0) { $0 + $1.parts.count } }
    guard taken + wanted <= Self.buffersMax else {
      throw Failure(
        MF_ERR_DEVICE,
        "\(taken) command buffers run and a list needs \(wanted) more, of at most \(Self.buffersMax); "
          + "lists with fewer waits, or waiting for earlier ones, make room")
    }
  }

  private func encode(_ list: CommandList) throws -> Submission {
    var encoder = try ListEncoder(queue: queue, pipelines: pipelines, bytes: list.bytes)
    // An encoder may not go before it has ended, a failed one either.
    defer { encoder.finish() }
    for command in list.commands { try encoder.encode(command) }
    return Submission(list: list, parts: encoder.parts)
  }

  /// A part of a list has run, or failed: then what the list would have signalled is signalled all the
  /// same, so that nobody waits for ever.
  private func end(_ submission: Submission, part index: Int, _ buffer: any MTLCommandBuffer) {
    let busySeconds = max(0, buffer.gpuEndTime - buffer.gpuStartTime)
    state.lock()
    submission.parts[index].hasEnded = true
    counters.add(dispatches: submission.parts[index].dispatchCount, busySeconds: busySeconds)
    if buffer.status == .error, failure == nil {
      failure = "a command list failed: \(buffer.error?.localizedDescription ?? "no reason given")"
    }
    if index == submission.parts.count - 1 {
      if failure != nil { submission.list.signals.forEach { $0.raise(to: $1) } }
      running.removeAll { $0 === submission }
      submission.list.unpin()
      counters.addList()
    }
    if failure != nil || isCancelled { releaseWaits() }
    state.broadcast()
    state.unlock()
  }

  /// Lets every list go on that waits for an event, as cancelling promises. With `state` locked.
  private func releaseWaits() {
    for submission in running { submission.list.waits.forEach { $0.raise(to: $1) } }
  }

  // MARK: - Waiting

  /// Blocks until the event has reached the value. A failure or a cancellation comes before a value
  /// reached, because cancelled work signals too.
  func wait(_ event: Event, _ value: UInt64, seconds: Double) throws {
    let deadline = Date(timeIntervalSinceNow: seconds)
    try checkNow()
    while event.value < value {
      let left = deadline.timeIntervalSinceNow
      guard left > 0 else { throw Failure(MF_ERR_TIMEOUT, "the work was not done in time") }
      // Short waits in a row, because a cancellation does not reach a wait for an event.
      let milliseconds = UInt64(max(1, min(Self.lookMilliseconds, 1000 * left)))
      _ = event.metal.wait(untilSignaledValue: value, timeoutMS: milliseconds)
      try checkNow()
    }
    try checkEarlier(event, value...event.value, until: deadline)
  }

  private static let lookMilliseconds = 10.0

  /// A signal may be seen before Metal has said that something before it failed: what was committed before
  /// it must have ended well.
  private func checkEarlier(_ event: Event, _ values: ClosedRange<UInt64>, until deadline: Date) throws {
    state.lock()
    defer { state.unlock() }
    while hasRunningBefore(event, values), state.wait(until: deadline) {}
    try checkState()
  }

  /// With `state` locked.
  private func hasRunningBefore(_ event: Event, _ values: ClosedRange<UInt64>) -> Bool {
    let parts = running.flatMap(\.parts)
    guard let signalling = parts.firstIndex(where: { $0.signals(event, values) }) else { return false }
    return parts[..<signalling].contains { !$0.hasEnded }
  }

  /// Blocks until Metal has said of each list that is over that it is. A signal is seen a little earlier,
  /// and whoever has seen it may take it that the list's buffers are free and that it counts.
  func settle() {
    let deadline = Date(timeIntervalSinceNow: Self.settleSeconds)
    state.lock()
    defer { state.unlock() }
    while running.contains(where: { $0.list.isOver }), state.wait(until: deadline) {}
  }

  /// Metal needs a moment; for ever is for a list whose last signal the host itself has given.
  private static let settleSeconds = 1.0

  /// Blocks until every list submitted so far has ended.
  func finish(seconds: Double) throws {
    let deadline = Date(timeIntervalSinceNow: seconds)
    state.lock()
    defer { state.unlock() }
    while !running.isEmpty {
      guard state.wait(until: deadline) else {
        throw Failure(MF_ERR_TIMEOUT, "the work was not done in time")
      }
    }
    try checkState()
  }

  // MARK: - State

  func cancel() {
    state.lock()
    isCancelled = true
    releaseWaits()
    state.broadcast()
    state.unlock()
  }

  func resume() {
    state.lock()
    isCancelled = false
    failure = nil
    state.unlock()
  }

  /// Waits for what runs, but for no event, and refuses everything afterwards.
  func close() {
    state.lock()
    isClosed = true
    releaseWaits()
    while !running.isEmpty { state.wait() }
    state.broadcast()
    state.unlock()
  }

  private func checkNow() throws {
    state.lock()
    defer { state.unlock() }
    try checkState()
  }

  /// With `state` locked.
  private func checkState() throws {
    if isClosed { throw Failure(MF_ERR_DEVICE, "the device was destroyed") }
    if let failure { throw Failure(MF_ERR_DEVICE, failure) }
    if isCancelled {
      throw Failure(MF_ERR_CANCELLED, "the work was cancelled; mf_resume lets the device go on")
    }
  }
}
