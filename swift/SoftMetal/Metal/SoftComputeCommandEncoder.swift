import CSoftMetal

final class SoftComputeCommandEncoder: SoftCommandEncoder, MTLComputeCommandEncoder {
  let dispatchType: MTLDispatchType
  private var pipeline: SoftComputePipelineState?
  private var arguments = [Dispatch.Argument?](repeating: nil, count: SOFTMETAL_MAX_BUFFERS)
  private var threadgroupLengths = [Int](repeating: 0, count: SOFTMETAL_MAX_THREADGROUP_ARGUMENTS)
  private var resident: [(buffer: SoftBuffer, usage: MTLResourceUsage)] = []
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
    if length > 4096 {
      buffer.fail(.invalidResource, "setBytes takes 4096 bytes at most, not \(length)")
    }
    set(.bytes(Dispatch.Bytes(copying: bytes, length: length)), at: index)
  }

  func setBuffer(_ buffer: (any MTLBuffer)?, offset: Int, index: Int) {
    guard let buffer = buffer as? SoftBuffer else { return set(nil, at: index) }
    if offset < 0 || offset >= buffer.length {
      self.buffer.fail(
        .invalidResource, "offset \(offset) in a buffer of \(buffer.length) bytes, index \(index)")
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
    if length % 16 != 0 {
      buffer.fail(.invalidResource, "a threadgroup memory length must be a multiple of 16")
    }
    let total = threadgroupLengths.reduce(0, +)
    if total > SOFTMETAL_MAX_THREADGROUP_MEMORY {
      buffer.fail(
        .invalidResource,
        "\(total) bytes of threadgroup memory, at most \(SOFTMETAL_MAX_THREADGROUP_MEMORY)")
    }
  }

  func useResource(_ resource: any MTLResource, usage: MTLResourceUsage) {
    resident.append((resource as! SoftBuffer, usage))
  }
  func useResources(_ resources: [any MTLResource], usage: MTLResourceUsage) {
    for resource in resources { useResource(resource, usage: usage) }
  }

  // MARK: Dispatches

  private func dispatch(_ grid: Dispatch.Grid, _ threadsPerThreadgroup: MTLSize) {
    guard let pipeline else {
      return buffer.fail(.invalidResource, "dispatch without a pipeline state")
    }
    let kernel = pipeline.function.kernel
    let threads =
      threadsPerThreadgroup.width * threadsPerThreadgroup.height * threadsPerThreadgroup.depth
    if threads < 1 || threads > pipeline.maxTotalThreadsPerThreadgroup {
      buffer.fail(
        .invalidResource,
        "\(kernel.name): \(threads) threads per threadgroup, "
          + "at most \(pipeline.maxTotalThreadsPerThreadgroup) are possible")
    }
    if case .threadgroups(let groups) = grid, groups.width * groups.height * groups.depth == 0 {
      buffer.fail(.invalidResource, "\(kernel.name): a grid of no threadgroups")
    }
    for index in kernel.requiredBuffers where arguments[index] == nil {
      buffer.fail(.invalidResource, "\(kernel.name): nothing is set at buffer index \(index)")
    }
    for index in kernel.requiredThreadgroupMemory where threadgroupLengths[index] == 0 {
      buffer.fail(
        .invalidResource, "\(kernel.name): no threadgroup memory length is set at index \(index)")
    }
    let dispatch = Dispatch(
      pipeline: pipeline, arguments: arguments, threadgroupLengths: threadgroupLengths,
      resident: resident,
      extents: Extents(debugGroups.last ?? ""), grid: grid, groupSize: threadsPerThreadgroup)
    if dispatchType == .concurrent && isActive {
      unordered.append(dispatch)
    } else {
      append(.dispatch(dispatch, isConcurrent: false))
    }
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
    dispatch(
      .indirect(indirectBuffer as! SoftBuffer, offset: indirectBufferOffset), threadsPerThreadgroup)
  }

  /// Concurrent dispatches still run one after another, but in reverse if threads do: a missing
  /// barrier shows.
  private func flush() {
    let inOrder = buffer.queue.owner.configuration.order == SOFTMETAL_ORDER_FORWARD
    for dispatch in inOrder ? unordered : unordered.reversed() {
      append(.dispatch(dispatch, isConcurrent: true))
    }
    unordered = []
    append(.barrier)
  }
  func memoryBarrier(scope: MTLBarrierScope) { flush() }
  func memoryBarrier(resources: [any MTLResource]) { flush() }
  override func endEncoding() {
    flush()
    super.endEncoding()
  }
}
