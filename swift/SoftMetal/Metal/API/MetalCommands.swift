// Apple's declarations, exactly as its documentation shows them: what compiles against these must
// compile against the framework. When in doubt something is left out; protocols are not Sendable,
// as they are not in every SDK.

public protocol MTLCommandQueue: AnyObject {
  var label: String? { get set }
  var device: any MTLDevice { get }
  func makeCommandBuffer() -> (any MTLCommandBuffer)?
  func makeCommandBufferWithUnretainedReferences() -> (any MTLCommandBuffer)?
}

public typealias MTLCommandBufferHandler = @Sendable (any MTLCommandBuffer) -> Void

public protocol MTLCommandBuffer: AnyObject {
  var label: String? { get set }
  var device: any MTLDevice { get }
  var commandQueue: any MTLCommandQueue { get }
  var status: MTLCommandBufferStatus { get }
  var error: (any Error)? { get }
  var kernelStartTime: Double { get }
  var kernelEndTime: Double { get }
  var gpuStartTime: Double { get }
  var gpuEndTime: Double { get }
  func makeComputeCommandEncoder() -> (any MTLComputeCommandEncoder)?
  func makeComputeCommandEncoder(dispatchType: MTLDispatchType) -> (any MTLComputeCommandEncoder)?
  func makeBlitCommandEncoder() -> (any MTLBlitCommandEncoder)?
  func encodeWaitForEvent(_ event: any MTLEvent, value: UInt64)
  func encodeSignalEvent(_ event: any MTLEvent, value: UInt64)
  func addScheduledHandler(_ block: @escaping MTLCommandBufferHandler)
  func addCompletedHandler(_ block: @escaping MTLCommandBufferHandler)
  func enqueue()
  func commit()
  func waitUntilScheduled()
  func waitUntilCompleted()
}

public protocol MTLCommandEncoder: AnyObject {
  var label: String? { get set }
  var device: any MTLDevice { get }
  func endEncoding()
  func pushDebugGroup(_ string: String)
  func popDebugGroup()
  func insertDebugSignpost(_ string: String)
}

public protocol MTLComputeCommandEncoder: MTLCommandEncoder {
  var dispatchType: MTLDispatchType { get }
  func setComputePipelineState(_ state: any MTLComputePipelineState)
  func setBytes(_ bytes: UnsafeRawPointer, length: Int, index: Int)
  func setBuffer(_ buffer: (any MTLBuffer)?, offset: Int, index: Int)
  func setBufferOffset(_ offset: Int, index: Int)
  func setBuffers(_ buffers: [(any MTLBuffer)?], offsets: [Int], range: Range<Int>)
  func setThreadgroupMemoryLength(_ length: Int, index: Int)
  func dispatchThreadgroups(_ threadgroupsPerGrid: MTLSize, threadsPerThreadgroup: MTLSize)
  func dispatchThreads(_ threadsPerGrid: MTLSize, threadsPerThreadgroup: MTLSize)
  func dispatchThreadgroups(
    indirectBuffer: any MTLBuffer, indirectBufferOffset: Int, threadsPerThreadgroup: MTLSize)
  func memoryBarrier(scope: MTLBarrierScope)
  func memoryBarrier(resources: [any MTLResource])
  func useResource(_ resource: any MTLResource, usage: MTLResourceUsage)
  func useResources(_ resources: [any MTLResource], usage: MTLResourceUsage)
}

public protocol MTLBlitCommandEncoder: MTLCommandEncoder {
  func fill(buffer: any MTLBuffer, range: Range<Int>, value: UInt8)
  func copy(
    from sourceBuffer: any MTLBuffer, sourceOffset: Int, to destinationBuffer: any MTLBuffer,
    destinationOffset: Int, size: Int)
}
