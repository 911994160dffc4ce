import CSoftMetal
import Foundation

final class SoftDevice: MTLDevice, @unchecked Sendable {
  static let shared = SoftDevice(configuration: .current)

  let configuration: Configuration
  private let lock = NSLock()
  private var allocated = 0

  init(configuration: Configuration) { self.configuration = configuration }

  let name = "Software GPU"
  let registryID: UInt64 = 1
  let hasUnifiedMemory = true
  let isLowPower = false
  let isHeadless = true
  let isRemovable = false
  let maxThreadsPerThreadgroup = MTLSize(width: SOFTMETAL_MAX_THREADS, height: 1024, depth: 1024)
  let maxThreadgroupMemoryLength = SOFTMETAL_MAX_THREADGROUP_MEMORY
  let maxBufferLength = 1 << 36
  var recommendedMaxWorkingSetSize: UInt64 { ProcessInfo.processInfo.physicalMemory / 4 * 3 }
  var currentAllocatedSize: Int { lock.withLock { allocated } }
  func addAllocation(_ size: Int) { lock.withLock { allocated += size } }

  func supportsFamily(_ gpuFamily: MTLGPUFamily) -> Bool {
    switch gpuFamily {
    case .apple7, .apple8, .common3, .mac2, .metal3: !fails(.family)
    default: false
    }
  }

  private func fails(_ place: Injection.Place) -> Bool { configuration.injection.fails(place) }

  func makeCommandQueue() -> (any MTLCommandQueue)? { makeCommandQueue(maxCommandBufferCount: 64) }
  func makeCommandQueue(maxCommandBufferCount: Int) -> (any MTLCommandQueue)? {
    fails(.queue) ? nil : SoftCommandQueue(device: self, places: maxCommandBufferCount)
  }
  func makeEvent() -> (any MTLEvent)? { fails(.event) ? nil : SoftEvent(device: self) }
  func makeSharedEvent() -> (any MTLSharedEvent)? { fails(.event) ? nil : SoftEvent(device: self) }

  func makeBuffer(length: Int, options: MTLResourceOptions) -> (any MTLBuffer)? {
    guard length > 0, length <= maxBufferLength, !fails(.buffer) else { return nil }
    return SoftBuffer(device: self, length: length, options: options)
  }

  func makeBuffer(bytes pointer: UnsafeRawPointer, length: Int, options: MTLResourceOptions) -> (
    any MTLBuffer
  )? {
    guard length > 0, !fails(.buffer),
      let buffer = SoftBuffer(device: self, length: length, options: options)
    else { return nil }
    buffer.address.copyMemory(from: pointer, byteCount: length)
    return buffer
  }

  func makeBuffer(
    bytesNoCopy pointer: UnsafeMutableRawPointer, length: Int, options: MTLResourceOptions,
    deallocator: (@Sendable (UnsafeMutableRawPointer, Int) -> Void)?
  ) -> (any MTLBuffer)? {
    // As strict as an Apple GPU: whole pages of 16 KiB, in memory that the CPU can see.
    guard length > 0, length % SoftBuffer.pageSize == 0,
      Int(bitPattern: pointer) % SoftBuffer.pageSize == 0,
      !options.contains(.storageModePrivate), !options.contains(.hazardTrackingModeUntracked),
      !fails(.buffer)
    else { return nil }
    return SoftBuffer(
      device: self, wrapping: pointer, length: length, options: options, deallocator: deallocator)
  }

  func makeLibrary(source: String, options: MTLCompileOptions?) throws -> any MTLLibrary {
    if fails(.library) {
      throw MTLLibraryError(code: .compileFailure, message: "a compile error, injected")
    }
    return try SoftLibrary(device: self, source: source, options: options ?? MTLCompileOptions())
  }

  func makeComputePipelineState(function computeFunction: any MTLFunction) throws
    -> any MTLComputePipelineState
  {
    if fails(.pipeline) {
      throw MTLLibraryError(code: .internal, message: "no pipeline state, injected")
    }
    return try SoftComputePipelineState(device: self, function: computeFunction as! SoftFunction)
  }
}
