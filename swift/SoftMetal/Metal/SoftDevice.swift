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
        case .apple7, .apple8, .common3, .mac2, .metal3: true
        default: false
        }
    }

    func makeCommandQueue() -> (any MTLCommandQueue)? { SoftCommandQueue(device: self) }
    func makeCommandQueue(maxCommandBufferCount: Int) -> (any MTLCommandQueue)? { SoftCommandQueue(device: self) }
    func makeEvent() -> (any MTLEvent)? { SoftEvent(device: self) }
    func makeSharedEvent() -> (any MTLSharedEvent)? { SoftEvent(device: self) }
    func makeFence() -> (any MTLFence)? { SoftFence(device: self) }

    func makeBuffer(length: Int, options: MTLResourceOptions) -> (any MTLBuffer)? {
        guard length > 0, length <= maxBufferLength else { return nil }
        return SoftBuffer(device: self, length: length, options: options)
    }

    func makeBuffer(bytes pointer: UnsafeRawPointer, length: Int, options: MTLResourceOptions) -> (any MTLBuffer)? {
        guard length > 0, let buffer = SoftBuffer(device: self, length: length, options: options) else { return nil }
        buffer.address.copyMemory(from: pointer, byteCount: length)
        return buffer
    }

    func makeBuffer(
        bytesNoCopy pointer: UnsafeMutableRawPointer, length: Int, options: MTLResourceOptions,
        deallocator: (@Sendable (UnsafeMutableRawPointer, Int) -> Void)?
    ) -> (any MTLBuffer)? {
        // As strict as an Apple GPU: whole pages of 16 KiB, in memory that the CPU can see.
        guard length > 0, length % SoftBuffer.pageSize == 0, Int(bitPattern: pointer) % SoftBuffer.pageSize == 0,
            !options.contains(.storageModePrivate)
        else { return nil }
        return SoftBuffer(device: self, wrapping: pointer, length: length, options: options, deallocator: deallocator)
    }

    func makeLibrary(source: String, options: MTLCompileOptions?) throws -> any MTLLibrary {
        try SoftLibrary(device: self, source: source, options: options ?? MTLCompileOptions())
    }

    func makeComputePipelineState(function computeFunction: any MTLFunction) throws -> any MTLComputePipelineState {
        try SoftComputePipelineState(device: self, function: computeFunction as! SoftFunction)
    }

    func makeComputePipelineState(
        descriptor: MTLComputePipelineDescriptor, options: MTLPipelineOption,
        reflection: UnsafeMutablePointer<MTLAutoreleasedComputePipelineReflection?>?
    ) throws -> any MTLComputePipelineState {
        guard let function = descriptor.computeFunction as? SoftFunction else {
            throw MTLLibraryError(code: .functionNotFound, message: "the pipeline descriptor has no function")
        }
        let limit = descriptor.maxTotalThreadsPerThreadgroup
        return try SoftComputePipelineState(
            device: self, function: function, label: descriptor.label, maxTotalThreads: limit > 0 ? limit : nil)
    }
}

final class SoftFence: MTLFence, @unchecked Sendable {
    let device: any MTLDevice
    var label: String?
    init(device: SoftDevice) { self.device = device }
}

final class SoftBuffer: MTLBuffer, @unchecked Sendable {
    static let pageSize = 16384

    let length: Int
    let address: UnsafeMutableRawPointer
    let resourceOptions: MTLResourceOptions
    var label: String?
    private let owner: SoftDevice
    private let release: () -> Void

    /// Zeroed memory. The page after the buffer cannot be accessed, so that large overruns crash at once.
    init?(device: SoftDevice, length: Int, options: MTLResourceOptions) {
        let size = (length + Self.pageSize - 1) / Self.pageSize * Self.pageSize
        guard
            let memory = mmap(
                nil, size + Self.pageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
            memory != MAP_FAILED
        else { return nil }
        mprotect(memory + size, Self.pageSize, PROT_NONE)
        (self.length, address, resourceOptions, owner) = (length, memory, options, device)
        device.addAllocation(size)
        release = {
            munmap(memory, size + Self.pageSize)
            device.addAllocation(-size)
        }
    }

    init(
        device: SoftDevice, wrapping pointer: UnsafeMutableRawPointer, length: Int, options: MTLResourceOptions,
        deallocator: (@Sendable (UnsafeMutableRawPointer, Int) -> Void)?
    ) {
        (self.length, address, resourceOptions, owner) = (length, pointer, options, device)
        release = { deallocator?(pointer, length) }
    }

    deinit { release() }

    var device: any MTLDevice { owner }
    var allocatedSize: Int { length }
    var gpuAddress: UInt64 { UInt64(UInt(bitPattern: address)) }
    var storageMode: MTLStorageMode { MTLStorageMode(rawValue: resourceOptions.rawValue >> 4 & 0xF) ?? .shared }
    var cpuCacheMode: MTLCPUCacheMode { MTLCPUCacheMode(rawValue: resourceOptions.rawValue & 0xF) ?? .defaultCache }
    var hazardTrackingMode: MTLHazardTrackingMode {
        MTLHazardTrackingMode(rawValue: resourceOptions.rawValue >> 8 & 0x3) ?? .default
    }

    func contents() -> UnsafeMutableRawPointer {
        precondition(storageMode != .private, "contents() of a buffer with private storage")
        return address
    }
}
