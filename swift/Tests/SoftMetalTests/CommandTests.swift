import CSoftMetal
import Foundation
import Testing

@testable import Metal

private let harness = Harness()
private let one = MTLSizeMake(1, 1, 1)

private let increment = """
  kernel void test(device int *x [[buffer(0)]], constant int &by [[buffer(1)]], uint i [[thread_position_in_grid]]) {
      x[i] = 2 * x[i] + by;
  }
  """

@Suite struct CommandTests {
  let pipeline: any MTLComputePipelineState
  init() throws { pipeline = try harness.pipeline(increment) }

  func encode(_ encoder: any MTLComputeCommandEncoder, _ buffer: any MTLBuffer, by value: Int32) {
    var value = value
    encoder.setComputePipelineState(pipeline)
    encoder.setBuffer(buffer, offset: 0, index: 0)
    encoder.setBytes(&value, length: 4, index: 1)
    encoder.dispatchThreads(one, threadsPerThreadgroup: one)
  }

  @Test func statusAndHandlers() throws {
    let commands = try #require(harness.queue.makeCommandBuffer())
    #expect(commands.status == .notEnqueued)
    nonisolated(unsafe) var calls: [String] = []
    commands.addScheduledHandler { _ in calls.append("scheduled") }
    commands.addCompletedHandler { calls.append($0.status == .completed ? "completed" : "failed") }
    commands.commit()
    commands.waitUntilCompleted()
    #expect(calls == ["scheduled", "completed"])
    #expect(commands.gpuEndTime >= commands.gpuStartTime && commands.gpuStartTime > 0)
  }

  @Test func enqueueReservesAPlace() throws {
    let x = harness.buffer([Int32(1)])
    let first = harness.queue.makeCommandBuffer()!
    let second = harness.queue.makeCommandBuffer()!
    first.enqueue()
    for (commands, value) in [(second, Int32(10)), (first, 1)] {
      let encoder = commands.makeComputeCommandEncoder()!
      encode(encoder, x, by: value)
      encoder.endEncoding()
      commands.commit()
    }
    second.waitUntilCompleted()
    #expect(x.array(Int32.self, 1) == [16])
  }

  @Test func blitAndIndirect() throws {
    let x = harness.buffer([Int32](repeating: 1, count: 8))
    let y = harness.buffer(of: Int32.self, count: 8)
    let sizes = harness.buffer([UInt32(0), 3, 1, 1])
    let commands = harness.queue.makeCommandBuffer()!
    let blit = commands.makeBlitCommandEncoder()!
    blit.copy(from: x, sourceOffset: 0, to: y, destinationOffset: 8, size: 16)
    blit.fill(buffer: y, range: 28..<32, value: 0xFF)
    blit.endEncoding()
    let encoder = commands.makeComputeCommandEncoder()!
    var by: Int32 = 5
    encoder.setComputePipelineState(pipeline)
    encoder.setBuffers([y], offsets: [4], range: 0..<1)
    encoder.setBytes(&by, length: 4, index: 1)
    encoder.dispatchThreadgroups(
      indirectBuffer: sizes, indirectBufferOffset: 4, threadsPerThreadgroup: one)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    #expect(y.array(Int32.self, 8) == [0, 5, 7, 7, 1, 1, 0, -1])
  }

  @Test func concurrentDispatchesNeedABarrier() throws {
    for (order, barrier, expected) in [
      (SOFTMETAL_ORDER_FORWARD, false, 16), (SOFTMETAL_ORDER_REVERSE, false, 25),
      (SOFTMETAL_ORDER_REVERSE, true, 16),
    ] {
      let harness = Harness { $0.order = order }
      let x = harness.buffer([Int32(1)])
      try harness.encode(dispatchType: .concurrent) { encoder in
        encode(encoder, x, by: 1)
        if barrier { encoder.memoryBarrier(scope: .buffers) }
        encode(encoder, x, by: 10)
      }
      #expect(x.array(Int32.self, 1) == [Int32(expected)])
    }
  }

  @Test func errorsEndTheCommandBufferOnly() throws {
    let bad = try harness.pipeline(
      "kernel void test(uint i [[thread_position_in_grid]]) { if (i > 0) threadgroup_barrier(mem_flags::mem_none); }"
    )
    let x = harness.buffer([Int32(1)])
    let commands = harness.queue.makeCommandBuffer()!
    let next = harness.queue.makeCommandBuffer()!
    let encoder = commands.makeComputeCommandEncoder()!
    encoder.setComputePipelineState(bad)
    encoder.dispatchThreads(MTLSizeMake(4, 1, 1), threadsPerThreadgroup: MTLSizeMake(4, 1, 1))
    encode(encoder, x, by: 1)
    encoder.endEncoding()
    commands.commit()
    let encoder2 = next.makeComputeCommandEncoder()!
    encode(encoder2, x, by: 7)
    encoder2.endEncoding()
    next.commit()
    next.waitUntilCompleted()
    #expect(commands.status == .error && next.status == .completed)
    #expect((commands.error as? MTLCommandBufferError)?.code == .internal)
    #expect(x.array(Int32.self, 1) == [9])
  }

  @Test func eventsTimeOutInsteadOfHanging() throws {
    let harness = Harness { $0.eventTimeout = 20 }
    let event = harness.device.makeSharedEvent()!
    let commands = harness.queue.makeCommandBuffer()!
    commands.encodeWaitForEvent(event, value: 3)
    commands.commit()
    commands.waitUntilCompleted()
    #expect((commands.error as? MTLCommandBufferError)?.code == .timeout)
  }

  @Test func aFullQueueMakesTheNextBufferWait() throws {
    let harness = Harness { $0.eventTimeout = 20 }
    let queue = harness.device.makeCommandQueue(maxCommandBufferCount: 2)!
    var (first, dropped) = (queue.makeCommandBuffer(), queue.makeCommandBuffer())
    #expect(first != nil && dropped != nil)
    #expect(queue.makeCommandBuffer() == nil, "it would block for ever")
    dropped = nil
    dropped = queue.makeCommandBuffer()
    #expect(dropped != nil)
    first!.commit()
    first!.waitUntilCompleted()
    first = queue.makeCommandBuffer()
    #expect(first != nil)
  }

  @Test func sharedEventNotifies() async throws {
    let event = harness.device.makeSharedEvent()!
    let commands = harness.queue.makeCommandBuffer()!
    commands.encodeSignalEvent(event, value: 2)
    let value: UInt64 = await withCheckedContinuation { continuation in
      event.notify(MTLSharedEventListener(), atValue: 2) { _, value in
        continuation.resume(returning: value)
      }
      commands.commit()
    }
    #expect(value == 2 && event.wait(untilSignaledValue: 2, timeoutMS: 0))
  }

  @Test func queuesRunSideBySide() throws {
    let other = harness.device.makeCommandQueue()!
    let event = harness.device.makeEvent()!
    let waiting = harness.queue.makeCommandBuffer()!
    let signalling = other.makeCommandBuffer()!
    waiting.encodeWaitForEvent(event, value: 1)
    waiting.commit()
    signalling.encodeSignalEvent(event, value: 1)
    signalling.commit()
    waiting.waitUntilCompleted()
    #expect(waiting.status == .completed)
  }

  @Test func buffersWithoutCopy() throws {
    let memory = try #require(aligned_alloc(16384, 32768))
    nonisolated(unsafe) var freed = 0
    do {
      let buffer = harness.device.makeBuffer(
        bytesNoCopy: memory, length: 32768, options: .storageModeShared
      ) { pointer, length in
        freed = length
        free(pointer)
      }
      #expect(buffer?.contents() == memory && buffer?.length == 32768)
      #expect(harness.device.makeBuffer(bytesNoCopy: memory + 64, length: 16384) == nil)
      #expect(harness.device.makeBuffer(bytesNoCopy: memory, length: 100) == nil)
    }
    #expect(freed == 32768)
  }
}
