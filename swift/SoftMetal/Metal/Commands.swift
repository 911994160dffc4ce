import CSoftMetal
import Foundation

/// Runs command buffers one after another, in the order in which they were enqueued, on a thread of its own.
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

    /// Runs a kernel. Returns a message if it failed.
    func run(_ dispatch: Dispatch) -> String? {
        watchdog.watch(dispatch.pipeline.function.name)
        defer { watchdog.watch(nil) }
        return dispatch.run(configuration: owner.configuration)
    }

    func makeCommandBuffer() -> (any MTLCommandBuffer)? { SoftCommandBuffer(queue: self) }
    func makeCommandBufferWithUnretainedReferences() -> (any MTLCommandBuffer)? { makeCommandBuffer() }

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

/// Ends the process when a kernel runs for too long: an endless loop cannot be interrupted, and a message is better
/// than a test run that hangs.
private final class Watchdog: @unchecked Sendable {
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

final class SoftCommandBuffer: MTLCommandBuffer, @unchecked Sendable {
    enum Command {
        case dispatch(Dispatch)
        case work(() -> Void)
        case signal(SoftEvent, UInt64)
        case wait(SoftEvent, UInt64)
    }

    var label: String?
    let queue: SoftCommandQueue
    private var commands: [Command] = []
    private var isEncoding = false
    private var scheduledHandlers: [MTLCommandBufferHandler] = []
    private var completedHandlers: [MTLCommandBufferHandler] = []

    private let condition = NSCondition()
    private var currentStatus = MTLCommandBufferStatus.notEnqueued
    private var currentError: MTLCommandBufferError?
    private(set) var gpuStartTime = 0.0, gpuEndTime = 0.0
    private(set) var kernelStartTime = 0.0, kernelEndTime = 0.0
    private var isFinished = false  // completed, and all handlers called

    init(queue: SoftCommandQueue) { self.queue = queue }

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
        beginEncoding()
        return SoftComputeCommandEncoder(buffer: self, dispatchType: dispatchType)
    }
    func makeBlitCommandEncoder() -> (any MTLBlitCommandEncoder)? {
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
    func addScheduledHandler(_ block: @escaping MTLCommandBufferHandler) { scheduledHandlers.append(block) }
    func addCompletedHandler(_ block: @escaping MTLCommandBufferHandler) {
        precondition(status.rawValue < MTLCommandBufferStatus.committed.rawValue, "addCompletedHandler after commit")
        completedHandlers.append(block)
    }

    func enqueue() {
        guard status == .notEnqueued else { return }
        advance(to: .enqueued)
        queue.enqueue(self)
    }

    func commit() {
        precondition(status.rawValue < MTLCommandBufferStatus.committed.rawValue, "a command buffer is committed once")
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
        for command in commands {
            if error != nil { break }
            run(command)
        }
        commands = []
        gpuEndTime = now()
        advance(to: error == nil ? .completed : .error)
        for handler in completedHandlers { handler(self) }
        (scheduledHandlers, completedHandlers) = ([], [])
        condition.withLock {
            isFinished = true
            condition.broadcast()
        }
    }

    private func run(_ command: Command) {
        switch command {
        case .dispatch(let dispatch):
            if let failure = queue.run(dispatch) { fail(.internal, failure) }
        case .work(let body):
            body()
        case .signal(let event, let value):
            event.signaledValue = value
        case .wait(let event, let value):
            if !event.wait(untilSignaledValue: value, timeoutMS: queue.owner.configuration.eventTimeout) {
                fail(.timeout, "gave up waiting for event \(event.label ?? "") to reach \(value); "
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

// MARK: - Encoders

class SoftCommandEncoder {
    var label: String?
    let buffer: SoftCommandBuffer
    var isActive = true

    init(buffer: SoftCommandBuffer) { self.buffer = buffer }
    var device: any MTLDevice { buffer.device }

    func append(_ command: SoftCommandBuffer.Command) {
        if isActive { buffer.append(command) } else { buffer.fail(.invalidResource, "command after endEncoding") }
    }
    func endEncoding() {
        isActive = false
        buffer.endEncoding()
    }
    func pushDebugGroup(_ string: String) {}
    func popDebugGroup() {}
    func insertDebugSignpost(_ string: String) {}
}

final class SoftBlitCommandEncoder: SoftCommandEncoder, MTLBlitCommandEncoder {
    private func check(_ buffer: SoftBuffer, _ range: Range<Int>) -> Bool {
        if range.lowerBound >= 0, range.upperBound <= buffer.length { return true }
        self.buffer.fail(.invalidResource, "bytes \(range) of a buffer of \(buffer.length) bytes")
        return false
    }

    func fill(buffer: any MTLBuffer, range: Range<Int>, value: UInt8) {
        let target = buffer as! SoftBuffer
        guard check(target, range) else { return }
        append(.work { memset(target.address + range.lowerBound, Int32(value), range.count) })
    }

    func copy(
        from sourceBuffer: any MTLBuffer, sourceOffset: Int, to destinationBuffer: any MTLBuffer,
        destinationOffset: Int, size: Int
    ) {
        let source = sourceBuffer as! SoftBuffer, destination = destinationBuffer as! SoftBuffer
        guard check(source, sourceOffset..<(sourceOffset + size)),
            check(destination, destinationOffset..<(destinationOffset + size))
        else { return }
        append(.work { memmove(destination.address + destinationOffset, source.address + sourceOffset, size) })
    }
}

final class SoftComputeCommandEncoder: SoftCommandEncoder, MTLComputeCommandEncoder {
    let dispatchType: MTLDispatchType
    private var pipeline: SoftComputePipelineState?
    private var arguments = [Dispatch.Argument?](repeating: nil, count: SOFTMETAL_MAX_BUFFERS)
    private var threadgroupLengths = [Int](repeating: 0, count: SOFTMETAL_MAX_THREADGROUP_ARGUMENTS)
    private var resident: [SoftBuffer] = []
    /// Dispatches of a concurrent encoder since the last barrier: nothing orders them.
    private var unordered: [Dispatch] = []

    init(buffer: SoftCommandBuffer, dispatchType: MTLDispatchType) {
        self.dispatchType = dispatchType
        super.init(buffer: buffer)
    }

    func setComputePipelineState(_ state: any MTLComputePipelineState) {
        pipeline = (state as! SoftComputePipelineState)
    }

    private func set(_ argument: Dispatch.Argument?, at index: Int) {
        guard arguments.indices.contains(index) else {
            return buffer.fail(.invalidResource, "there is no buffer index \(index)")
        }
        arguments[index] = argument
    }

    func setBytes(_ bytes: UnsafeRawPointer, length: Int, index: Int) {
        if length > 4096 { buffer.fail(.invalidResource, "setBytes takes 4096 bytes at most, not \(length)") }
        set(.bytes(Dispatch.Bytes(copying: bytes, length: length)), at: index)
    }

    func setBuffer(_ buffer: (any MTLBuffer)?, offset: Int, index: Int) {
        guard let buffer = buffer as? SoftBuffer else { return set(nil, at: index) }
        if offset < 0 || offset >= buffer.length {
            self.buffer.fail(.invalidResource, "offset \(offset) in a buffer of \(buffer.length) bytes, index \(index)")
        }
        set(.buffer(buffer, offset: offset), at: index)
    }

    func setBufferOffset(_ offset: Int, index: Int) {
        guard arguments.indices.contains(index), case .buffer(let bound, _)? = arguments[index] else {
            return buffer.fail(.invalidResource, "setBufferOffset: no buffer is set at index \(index)")
        }
        setBuffer(bound, offset: offset, index: index)
    }

    func setBuffers(_ buffers: [(any MTLBuffer)?], offsets: [Int], range: Range<Int>) {
        for (i, index) in range.enumerated() { setBuffer(buffers[i], offset: offsets[i], index: index) }
    }

    func setThreadgroupMemoryLength(_ length: Int, index: Int) {
        threadgroupLengths[index] = length
        if length % 16 != 0 { buffer.fail(.invalidResource, "a threadgroup memory length must be a multiple of 16") }
        let total = threadgroupLengths.reduce(0, +)
        if total > SOFTMETAL_MAX_THREADGROUP_MEMORY {
            buffer.fail(
                .invalidResource, "\(total) bytes of threadgroup memory, at most \(SOFTMETAL_MAX_THREADGROUP_MEMORY)")
        }
    }

    func useResource(_ resource: any MTLResource, usage: MTLResourceUsage) { resident.append(resource as! SoftBuffer) }
    func useResources(_ resources: [any MTLResource], usage: MTLResourceUsage) {
        for resource in resources { useResource(resource, usage: usage) }
    }
    func updateFence(_ fence: any MTLFence) {}  // encoders run one after another anyway
    func waitForFence(_ fence: any MTLFence) {}

    // MARK: Dispatches

    private func dispatch(_ grid: Dispatch.Grid, _ threadsPerThreadgroup: MTLSize) {
        guard let pipeline else { return buffer.fail(.invalidResource, "dispatch without a pipeline state") }
        let kernel = pipeline.function.kernel
        let threads = threadsPerThreadgroup.width * threadsPerThreadgroup.height * threadsPerThreadgroup.depth
        if threads < 1 || threads > pipeline.maxTotalThreadsPerThreadgroup {
            buffer.fail(.invalidResource, "\(kernel.name): \(threads) threads per threadgroup, "
                + "at most \(pipeline.maxTotalThreadsPerThreadgroup) are possible")
        }
        for index in kernel.requiredBuffers where arguments[index] == nil {
            buffer.fail(.invalidResource, "\(kernel.name): nothing is set at buffer index \(index)")
        }
        for index in kernel.requiredThreadgroupMemory where threadgroupLengths[index] == 0 {
            buffer.fail(.invalidResource, "\(kernel.name): no threadgroup memory length is set at index \(index)")
        }
        let dispatch = Dispatch(
            pipeline: pipeline, arguments: arguments, threadgroupLengths: threadgroupLengths, resident: resident,
            grid: grid, groupSize: threadsPerThreadgroup)
        if dispatchType == .concurrent && isActive { unordered.append(dispatch) } else { append(.dispatch(dispatch)) }
    }

    func dispatchThreadgroups(_ threadgroupsPerGrid: MTLSize, threadsPerThreadgroup: MTLSize) {
        dispatch(.threadgroups(threadgroupsPerGrid), threadsPerThreadgroup)
    }
    func dispatchThreads(_ threadsPerGrid: MTLSize, threadsPerThreadgroup: MTLSize) {
        dispatch(.threads(threadsPerGrid), threadsPerThreadgroup)
    }
    func dispatchThreadgroups(
        indirectBuffer: any MTLBuffer, indirectBufferOffset: Int, threadsPerThreadgroup: MTLSize
    ) {
        dispatch(.indirect(indirectBuffer as! SoftBuffer, offset: indirectBufferOffset), threadsPerThreadgroup)
    }

    /// Concurrent dispatches still run one after another, but in reverse if threads do: a missing barrier shows.
    private func flush() {
        let inOrder = buffer.queue.owner.configuration.order == SOFTMETAL_ORDER_FORWARD
        for dispatch in inOrder ? unordered : unordered.reversed() { append(.dispatch(dispatch)) }
        unordered = []
    }
    func memoryBarrier(scope: MTLBarrierScope) { flush() }
    func memoryBarrier(resources: [any MTLResource]) { flush() }
    override func endEncoding() {
        flush()
        super.endEncoding()
    }
}
