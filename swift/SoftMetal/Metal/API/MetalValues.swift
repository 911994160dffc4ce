// Apple's declarations, exactly as its documentation shows them: what compiles against these must compile against
// the framework. When in doubt something is left out; protocols are not Sendable, as they are not in every SDK.

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
