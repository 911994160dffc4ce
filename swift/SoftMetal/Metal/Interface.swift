// The part of Apple's Metal interface that is implemented here, with Apple's names and signatures.
//
// Keep declarations exactly as the Apple documentation shows them. What compiles against this file must compile
// against the real framework; so when in doubt leave something out rather than guess, and prefer the stricter
// form (protocols are not Sendable here, because they are not in every macOS SDK).
import Dispatch
import Foundation

public func MTLCreateSystemDefaultDevice() -> (any MTLDevice)? { SoftDevice.shared }
public func MTLCopyAllDevices() -> [any MTLDevice] { [SoftDevice.shared] }

// MARK: - Values

public struct MTLSize: Equatable, Sendable {
    public var width, height, depth: Int
    public init() { (width, height, depth) = (0, 0, 0) }
    public init(width: Int, height: Int, depth: Int) { (self.width, self.height, self.depth) = (width, height, depth) }
}
public func MTLSizeMake(_ width: Int, _ height: Int, _ depth: Int) -> MTLSize {
    MTLSize(width: width, height: height, depth: depth)
}

public enum MTLStorageMode: UInt, Sendable { case shared = 0, managed = 1, `private` = 2, memoryless = 3 }
public enum MTLCPUCacheMode: UInt, Sendable { case defaultCache = 0, writeCombined = 1 }
public enum MTLHazardTrackingMode: UInt, Sendable { case `default` = 0, untracked = 1, tracked = 2 }

public struct MTLResourceOptions: OptionSet, Sendable {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
    public static let cpuCacheModeWriteCombined = MTLResourceOptions(rawValue: 1)
    public static let storageModeShared: MTLResourceOptions = []
    public static let storageModeManaged = MTLResourceOptions(rawValue: 1 << 4)
    public static let storageModePrivate = MTLResourceOptions(rawValue: 2 << 4)
    public static let storageModeMemoryless = MTLResourceOptions(rawValue: 3 << 4)
    public static let hazardTrackingModeUntracked = MTLResourceOptions(rawValue: 1 << 8)
    public static let hazardTrackingModeTracked = MTLResourceOptions(rawValue: 2 << 8)
}

public struct MTLResourceUsage: OptionSet, Sendable {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
    public static let read = MTLResourceUsage(rawValue: 1)
    public static let write = MTLResourceUsage(rawValue: 2)
}

public struct MTLBarrierScope: OptionSet, Sendable {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
    public static let buffers = MTLBarrierScope(rawValue: 1)
    public static let textures = MTLBarrierScope(rawValue: 2)
}

public enum MTLDispatchType: UInt, Sendable { case serial = 0, concurrent = 1 }
public enum MTLFunctionType: UInt, Sendable { case vertex = 1, fragment = 2, kernel = 3 }
public enum MTLCommandBufferStatus: UInt, Sendable {
    case notEnqueued = 0, enqueued, committed, scheduled, completed, error
}
public enum MTLGPUFamily: Int, Sendable {
    case apple7 = 1007, apple8 = 1008, apple9 = 1009, common3 = 3003, mac2 = 2002, metal3 = 5001, metal4 = 5002
}
public enum MTLMathMode: Int, Sendable { case safe = 0, relaxed = 1, fast = 2 }
public enum MTLLanguageVersion: UInt, Sendable {
    case version2_4 = 0x20004, version3_0 = 0x30000, version3_1 = 0x30001, version3_2 = 0x30002, version4_0 = 0x40000
}
public enum MTLDataType: UInt, Sendable {
    case none = 0
    case float = 3, float2, float3, float4
    case half = 16, half2, half3, half4
    case int = 29, int2, int3, int4
    case uint = 33, uint2, uint3, uint4
    case short = 37, short2, short3, short4
    case ushort = 41, ushort2, ushort3, ushort4
    case char = 45, char2, char3, char4
    case uchar = 49, uchar2, uchar3, uchar4
    case bool = 53, bool2, bool3, bool4
    case long = 81, long2, long3, long4
    case ulong = 85, ulong2, ulong3, ulong4
    case bfloat = 121, bfloat2, bfloat3, bfloat4
}

// MARK: - Errors

public struct MTLLibraryError: Error, LocalizedError, CustomNSError, CustomStringConvertible {
    public enum Code: UInt, Sendable {
        case unsupported = 1, `internal`, compileFailure, compileWarning, functionNotFound, fileNotFound
    }
    public static let errorDomain = "MTLLibraryErrorDomain"
    public let code: Code
    let message: String
    public var errorCode: Int { Int(code.rawValue) }
    public var errorDescription: String? { message }
    public var description: String { message }
}

public struct MTLCommandBufferError: Error, LocalizedError, CustomNSError, CustomStringConvertible {
    public enum Code: UInt, Sendable {
        case none = 0, `internal` = 1, timeout = 2, pageFault = 3, accessRevoked = 4, notPermitted = 7
        case outOfMemory = 8, invalidResource = 9, memoryless = 10, deviceRemoved = 11, stackOverflow = 12
    }
    public static let errorDomain = "MTLCommandBufferErrorDomain"
    public let code: Code
    let message: String
    public var errorCode: Int { Int(code.rawValue) }
    public var errorDescription: String? { message }
    public var description: String { message }
}

// MARK: - Device and resources

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
    func makeBuffer(bytes pointer: UnsafeRawPointer, length: Int, options: MTLResourceOptions) -> (any MTLBuffer)?
    func makeBuffer(
        bytesNoCopy pointer: UnsafeMutableRawPointer, length: Int, options: MTLResourceOptions,
        deallocator: (@Sendable (UnsafeMutableRawPointer, Int) -> Void)?
    ) -> (any MTLBuffer)?
    func makeLibrary(source: String, options: MTLCompileOptions?) throws -> any MTLLibrary
    func makeComputePipelineState(function computeFunction: any MTLFunction) throws -> any MTLComputePipelineState
    func makeComputePipelineState(
        descriptor: MTLComputePipelineDescriptor, options: MTLPipelineOption,
        reflection: UnsafeMutablePointer<MTLAutoreleasedComputePipelineReflection?>?  // pass nil
    ) throws -> any MTLComputePipelineState
    func makeEvent() -> (any MTLEvent)?
    func makeSharedEvent() -> (any MTLSharedEvent)?
    func makeFence() -> (any MTLFence)?
}

// Default arguments, which Swift adds when it imports the Objective-C declarations.
extension MTLDevice {
    public func makeBuffer(length: Int) -> (any MTLBuffer)? { makeBuffer(length: length, options: []) }
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

public protocol MTLFence: AnyObject {
    var device: any MTLDevice { get }
    var label: String? { get set }
}

// MARK: - Functions

public final class MTLCompileOptions: @unchecked Sendable {
    public init() {}
    public var preprocessorMacros: [String: NSObject]?
    public var mathMode: MTLMathMode = .fast
    public var languageVersion: MTLLanguageVersion = .version3_1
    public var fastMathEnabled: Bool {
        get { mathMode == .fast }
        set { mathMode = newValue ? .fast : .safe }
    }
}

public protocol MTLLibrary: AnyObject {
    var label: String? { get set }
    var device: any MTLDevice { get }
    var functionNames: [String] { get }
    func makeFunction(name functionName: String) -> (any MTLFunction)?
    func makeFunction(name: String, constantValues: MTLFunctionConstantValues) throws -> any MTLFunction
}

public protocol MTLFunction: AnyObject {
    var label: String? { get set }
    var device: any MTLDevice { get }
    var name: String { get }
    var functionType: MTLFunctionType { get }
}

public struct MTLPipelineOption: OptionSet, Sendable {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
}
public final class MTLAutoreleasedComputePipelineReflection {}

public final class MTLComputePipelineDescriptor: @unchecked Sendable {
    public init() {}
    public var label: String?
    public var computeFunction: (any MTLFunction)?
    public var maxTotalThreadsPerThreadgroup = 0
    public var threadGroupSizeIsMultipleOfThreadExecutionWidth = false
}

public protocol MTLComputePipelineState: AnyObject {
    var label: String? { get }
    var device: any MTLDevice { get }
    var maxTotalThreadsPerThreadgroup: Int { get }
    var threadExecutionWidth: Int { get }
}

// MARK: - Commands

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
    func updateFence(_ fence: any MTLFence)
    func waitForFence(_ fence: any MTLFence)
}

public protocol MTLBlitCommandEncoder: MTLCommandEncoder {
    func fill(buffer: any MTLBuffer, range: Range<Int>, value: UInt8)
    func copy(
        from sourceBuffer: any MTLBuffer, sourceOffset: Int, to destinationBuffer: any MTLBuffer,
        destinationOffset: Int, size: Int)
}

// MARK: - Events

public protocol MTLEvent: AnyObject {
    var label: String? { get set }
    var device: (any MTLDevice)? { get }
}

public typealias MTLSharedEventNotificationBlock = @Sendable (any MTLSharedEvent, UInt64) -> Void

public protocol MTLSharedEvent: MTLEvent {
    var signaledValue: UInt64 { get set }
    func notify(
        _ listener: MTLSharedEventListener, atValue value: UInt64, block: @escaping MTLSharedEventNotificationBlock)
    func wait(untilSignaledValue value: UInt64, timeoutMS milliseconds: UInt64) -> Bool
}

public final class MTLSharedEventListener: @unchecked Sendable {
    public let dispatchQueue: DispatchQueue
    public init() { dispatchQueue = DispatchQueue(label: "MTLSharedEventListener") }
    public init(dispatchQueue: DispatchQueue) { self.dispatchQueue = dispatchQueue }
}
