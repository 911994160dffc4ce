// Apple's declarations, exactly as its documentation shows them: what compiles against these must
// compile against the framework. When in doubt something is left out; protocols are not Sendable,
// as they are not in every SDK.

public struct MTLSize: Equatable, Sendable {
  public var width, height, depth: Int
  public init() { (width, height, depth) = (0, 0, 0) }
  public init(width: Int, height: Int, depth: Int) {
    (self.width, self.height, self.depth) = (width, height, depth)
  }
}
public func MTLSizeMake(_ width: Int, _ height: Int, _ depth: Int) -> MTLSize {
  MTLSize(width: width, height: height, depth: depth)
}

public enum MTLStorageMode: UInt, Sendable {
  case shared = 0
  case managed = 1
  case `private` = 2
  case memoryless = 3
}
public enum MTLCPUCacheMode: UInt, Sendable {
  case defaultCache = 0
  case writeCombined = 1
}
public enum MTLHazardTrackingMode: UInt, Sendable {
  case `default` = 0
  case untracked = 1
  case tracked = 2
}

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

public enum MTLDispatchType: UInt, Sendable {
  case serial = 0
  case concurrent = 1
}
public enum MTLFunctionType: UInt, Sendable {
  case vertex = 1
  case fragment = 2
  case kernel = 3
}
public enum MTLCommandBufferStatus: UInt, Sendable {
  case notEnqueued = 0
  case enqueued, committed, scheduled, completed, error
}
public enum MTLGPUFamily: Int, Sendable {
  case apple7 = 1007
  case apple8 = 1008
  case apple9 = 1009
  case common3 = 3003
  case mac2 = 2002
  case metal3 = 5001
  case metal4 = 5002
}
public enum MTLMathMode: Int, Sendable {
  case safe = 0
  case relaxed = 1
  case fast = 2
}
public enum MTLLanguageVersion: UInt, Sendable {
  case version2_4 = 0x20004
  case version3_0 = 0x30000
  case version3_1 = 0x30001
  case version3_2 = 0x30002
  case version4_0 = 0x40000
}
public enum MTLDataType: UInt, Sendable {
  case none = 0
  case float = 3
  case float2, float3, float4
  case half = 16
  case half2, half3, half4
  case int = 29
  case int2, int3, int4
  case uint = 33
  case uint2, uint3, uint4
  case short = 37
  case short2, short3, short4
  case ushort = 41
  case ushort2, ushort3, ushort4
  case char = 45
  case char2, char3, char4
  case uchar = 49
  case uchar2, uchar3, uchar4
  case bool = 53
  case bool2, bool3, bool4
  case long = 81
  case long2, long3, long4
  case ulong = 85
  case ulong2, ulong3, ulong4
  case bfloat = 121
  case bfloat2, bfloat3, bfloat4
}
