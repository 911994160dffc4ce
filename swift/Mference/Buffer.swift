// A buffer: what kernels bind. One over memory copies nothing; Metal wants whole pages, so it wraps the
// pages around the range and remembers where the range begins.
import CMference
import Foundation
import Metal

final class Buffer: Handled, @unchecked Sendable {
  static let kind = HandleKind.buffer

  let device: Device
  let memory: Memory
  let metal: any MTLBuffer
  /// Where the range begins in the Metal buffer.
  let start: Int
  let bytes: Int
  /// Counted in the device's buffer bytes.
  let ownsMemory: Bool
  private let lock = NSLock()
  private var pins = 0

  /// A range of memory; with `ownsMemory` the memory is this buffer's alone.
  init(_ device: Device, over memory: Memory, offset: Int, bytes: Int, ownsMemory: Bool) throws {
    guard bytes > 0, offset <= memory.bytes, bytes <= memory.bytes - offset else {
      throw Failure(
        MF_ERR_ARGUMENT,
        "a buffer of \(bytes) bytes from byte \(offset) on does not fit a memory of \(memory.bytes)")
    }
    let page = Memory.pageBytes
    let first = offset / page * page
    let length = roundUp(offset + bytes, to: page) - first
    guard length <= device.metal.maxBufferLength else {
      throw Failure(
        MF_ERR_MEMORY,
        "a buffer of \(length) bytes exceeds the device's largest of \(device.metal.maxBufferLength)")
    }
    // Metal's buffer outlives this one while a command buffer refers to it, and the memory has to outlive both.
    guard
      let metal = device.metal.makeBuffer(
        bytesNoCopy: memory.contents + first, length: length, options: .storageModeShared,
        deallocator: { _, _ in withExtendedLifetime(memory) {} })
    else {
      throw Failure(MF_ERR_MEMORY, "Metal made no buffer of \(length) bytes")
    }
    self.device = device
    self.memory = memory
    self.metal = metal
    self.start = offset - first
    self.bytes = bytes
    self.ownsMemory = ownsMemory
    if ownsMemory { device.counters.add(bufferBytes: bytes) }
  }

  deinit {
    if ownsMemory { device.counters.add(bufferBytes: -bytes) }
  }

  var contents: UnsafeMutableRawPointer { metal.contents() + start }

  /// Submitted lists that use the buffer keep it from being destroyed.
  func pin() { lock.withLock { pins += 1 } }
  func unpin() { lock.withLock { pins -= 1 } }
  var isPinned: Bool { lock.withLock { pins > 0 } }
}
