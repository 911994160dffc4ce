// Encodes the commands of a list into command buffers: dispatches that follow one another share a serial
// compute encoder, in which each sees what those before it wrote; signals end it, and waits end the buffer.
import CMference
import Foundation
import Metal

struct ListEncoder {
  let pipelines: Pipelines
  let bytes: [UInt8]
  private let queue: any MTLCommandQueue
  private(set) var parts: [Submission.Part] = []
  private var isPartEmpty = true
  private var open: (any MTLComputeCommandEncoder)?

  init(queue: any MTLCommandQueue, pipelines: Pipelines, bytes: [UInt8]) throws {
    self.queue = queue
    self.pipelines = pipelines
    self.bytes = bytes
    try beginPart()
  }

  private var buffer: any MTLCommandBuffer { parts[parts.count - 1].buffer }

  private mutating func beginPart() throws {
    guard let buffer = queue.makeCommandBuffer() else {
      throw Failure(MF_ERR_DEVICE, "Metal made no command buffer")
    }
    parts.append(Submission.Part(buffer: buffer))
    isPartEmpty = true
  }

  mutating func encode(_ command: Command) throws {
    switch command {
    case .dispatch(let dispatch):
      // Nothing to do is no dispatch for Metal.
      if dispatch.groups.count > 0 { try encode(dispatch, into: try encoder()) }
      parts[parts.count - 1].dispatchCount += 1
    case .wait(let event, let value):
      finish()
      if !isPartEmpty { try beginPart() }
      buffer.encodeWaitForEvent(event.metal, value: value)
    case .signal(let event, let value):
      finish()
      buffer.encodeSignalEvent(event.metal, value: value)
      parts[parts.count - 1].signals.append((event, value))
    }
    isPartEmpty = false
  }

  mutating func finish() {
    open?.endEncoding()
    open = nil
  }

  private mutating func encoder() throws -> any MTLComputeCommandEncoder {
    if let open { return open }
    guard let made = buffer.makeComputeCommandEncoder(dispatchType: .serial) else {
      throw Failure(MF_ERR_DEVICE, "Metal made no compute encoder")
    }
    open = made
    return made
  }

  private func encode(_ dispatch: Dispatch, into encoder: any MTLComputeCommandEncoder) throws {
    if Self.namesDispatches { encoder.pushDebugGroup(name(of: dispatch)) }
    defer { if Self.namesDispatches { encoder.popDebugGroup() } }
    try bytes.withUnsafeBytes { all in
      let params = all.baseAddress! + dispatch.params.lowerBound
      let pipeline = try pipelines.pipeline(dispatch.kernel, params)
      try check(dispatch, fits: pipeline)
      encoder.setComputePipelineState(pipeline)
      encoder.setBytes(params, length: dispatch.params.count, index: dispatch.bindings.count)
    }
    for (index, range) in dispatch.bindings.enumerated() {
      encoder.setBuffer(range.buffer.metal, offset: range.offset, index: index)
    }
    encoder.dispatchThreadgroups(
      size(of: dispatch.groups), threadsPerThreadgroup: size(of: dispatch.threads))
  }

  private func check(_ dispatch: Dispatch, fits pipeline: any MTLComputePipelineState) throws {
    let threads = dispatch.threads.count
    guard threads >= 1, threads <= Double(pipeline.maxTotalThreadsPerThreadgroup) else {
      throw Failure(
        MF_ERR_KERNEL,
        "\(String(cString: mf_kernel_name(dispatch.kernel))) has groups of \(shown(threads)) threads; "
          + "1 to \(pipeline.maxTotalThreadsPerThreadgroup) were expected")
    }
  }

  /// Names cost time; captures and validated runs want them.
  private static let namesDispatches = ["MTL_CAPTURE_ENABLED", "MTL_SHADER_VALIDATION"].contains {
    !["", "0"].contains(ProcessInfo.processInfo.environment[$0] ?? "")
  }

  /// The kernel, and for each buffer its index, its use and the bytes that the catalogue lets it touch.
  private func name(of dispatch: Dispatch) -> String {
    let uses = dispatch.bindings.indices.map { index in
      let binding = UInt32(index)
      let extent = bytes.withUnsafeBytes { all in
        mf_extent_bytes(dispatch.kernel, binding, all.baseAddress! + dispatch.params.lowerBound)
      }
      let access = String(cString: mf_binding_access(dispatch.kernel, binding))
      return " \(index):\(access):\(Int(extent))"
    }
    return String(cString: mf_kernel_name(dispatch.kernel)) + uses.joined()
  }

  private func size(of grid: Grid) -> MTLSize {
    MTLSize(width: grid.width, height: grid.height, depth: grid.depth)
  }
}
