import CSoftMetal
import Foundation

final class SoftBuffer: MTLBuffer, @unchecked Sendable {
  static let pageSize = 16384

  let length: Int
  let address: UnsafeMutableRawPointer
  let resourceOptions: MTLResourceOptions
  var label: String?
  /// Whether checked runs look for pages of it that nobody has written.
  let tracksFresh: Bool
  private let owner: SoftDevice
  private let release: () -> Void

  /// Zeroed memory. Untracked memory is refused: what fences and barriers order it is not modelled.
  /// The page after the buffer cannot be accessed, so that large overruns crash at once.
  init?(device: SoftDevice, length: Int, options: MTLResourceOptions) {
    let size = (length + Self.pageSize - 1) / Self.pageSize * Self.pageSize
    guard !options.contains(.hazardTrackingModeUntracked),
      let memory = mmap(
        nil, size + Self.pageSize, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
      memory != MAP_FAILED
    else { return nil }
    mprotect(memory + size, Self.pageSize, PROT_NONE)
    (self.length, address, resourceOptions, owner) = (length, memory, options, device)
    let tracksFresh = device.configuration.tracksFresh && softmetal_is_anonymous(memory, size)
    self.tracksFresh = tracksFresh
    device.addAllocation(size)
    release = {
      if tracksFresh { softmetal_forget(memory, size) }
      munmap(memory, size + Self.pageSize)
      device.addAllocation(-size)
    }
  }

  init(
    device: SoftDevice, wrapping pointer: UnsafeMutableRawPointer, length: Int,
    options: MTLResourceOptions,
    deallocator: (@Sendable (UnsafeMutableRawPointer, Int) -> Void)?
  ) {
    (self.length, address, resourceOptions, owner) = (length, pointer, options, device)
    let tracksFresh = device.configuration.tracksFresh && softmetal_is_anonymous(pointer, length)
    self.tracksFresh = tracksFresh
    release = {
      if tracksFresh { softmetal_forget(pointer, length) }
      deallocator?(pointer, length)
    }
  }

  deinit {
    softmetal_forget_lost(address, length)
    release()
  }

  var device: any MTLDevice { owner }
  var allocatedSize: Int { length }
  var gpuAddress: UInt64 { UInt64(UInt(bitPattern: address)) }
  var storageMode: MTLStorageMode {
    MTLStorageMode(rawValue: resourceOptions.rawValue >> 4 & 0xF) ?? .shared
  }
  var cpuCacheMode: MTLCPUCacheMode {
    MTLCPUCacheMode(rawValue: resourceOptions.rawValue & 0xF) ?? .defaultCache
  }
  var hazardTrackingMode: MTLHazardTrackingMode {
    MTLHazardTrackingMode(rawValue: resourceOptions.rawValue >> 8 & 0x3) ?? .default
  }

  func contents() -> UnsafeMutableRawPointer {
    precondition(storageMode != .private, "contents() of a buffer with private storage")
    return address
  }
}
