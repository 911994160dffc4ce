// Apple's declarations, exactly as its documentation shows them: what compiles against these must
// compile against the framework. When in doubt something is left out; protocols are not Sendable,
// as they are not in every SDK.
import Foundation

public func MTLCreateSystemDefaultDevice() -> (any MTLDevice)? {
  SoftDevice.shared.configuration.injection.fails(.device) ? nil : SoftDevice.shared
}

public protocol MTLDevice: AnyObject {
  var name: String { get }
  var registryID: UInt64 { get }
  var hasUnifiedMemory: Bool { get }
  var isLowPower: Bool { get }
  var isHeadless: Bool { get }
  var isRemovable: Bool { get }
  var maxThreadsPerThreadgroup: MTLSize { get }
  var maxThreadgroupMemoryLength: Int { get }
  var maxBufferLength: Int { get }
  var recommendedMaxWorkingSetSize: UInt64 { get }
  var currentAllocatedSize: Int { get }
  func supportsFamily(_ gpuFamily: MTLGPUFamily) -> Bool

  func makeCommandQueue() -> (any MTLCommandQueue)?
  func makeCommandQueue(maxCommandBufferCount: Int) -> (any MTLCommandQueue)?
  func makeBuffer(length: Int, options: MTLResourceOptions) -> (any MTLBuffer)?
  func makeBuffer(bytes pointer: UnsafeRawPointer, length: Int, options: MTLResourceOptions) -> (
    any MTLBuffer
  )?
  func makeBuffer(
    bytesNoCopy pointer: UnsafeMutableRawPointer, length: Int, options: MTLResourceOptions,
    deallocator: (@Sendable (UnsafeMutableRawPointer, Int) -> Void)?
  ) -> (any MTLBuffer)?
  func makeLibrary(source: String, options: MTLCompileOptions?) throws -> any MTLLibrary
  func makeComputePipelineState(function computeFunction: any MTLFunction) throws
    -> any MTLComputePipelineState
  func makeEvent() -> (any MTLEvent)?
  func makeSharedEvent() -> (any MTLSharedEvent)?
}

// Default arguments, which Swift adds when it imports the Objective-C declarations.
extension MTLDevice {
  public func makeBuffer(length: Int) -> (any MTLBuffer)? {
    makeBuffer(length: length, options: [])
  }
  public func makeBuffer(bytes pointer: UnsafeRawPointer, length: Int) -> (any MTLBuffer)? {
    makeBuffer(bytes: pointer, length: length, options: [])
  }
  public func makeBuffer(
    bytesNoCopy pointer: UnsafeMutableRawPointer, length: Int, options: MTLResourceOptions = []
  ) -> (any MTLBuffer)? {
    makeBuffer(bytesNoCopy: pointer, length: length, options: options, deallocator: nil)
  }
}

public protocol MTLResource: AnyObject {
  var label: String? { get set }
  var device: any MTLDevice { get }
  var storageMode: MTLStorageMode { get }
  var cpuCacheMode: MTLCPUCacheMode { get }
  var hazardTrackingMode: MTLHazardTrackingMode { get }
  var resourceOptions: MTLResourceOptions { get }
  var allocatedSize: Int { get }
}

public protocol MTLBuffer: MTLResource {
  var length: Int { get }
  var gpuAddress: UInt64 { get }
  func contents() -> UnsafeMutableRawPointer
}
