import CSoftMetal
import Foundation

// What a checked dispatch may touch, and what it has touched.

/// Memory that a dispatch read, or may have read, or has written.
struct Touch {
  let kernel: String
  let argument: String
  let addresses: Range<UInt>
  let isWrite: Bool
}

extension Dispatch {
  struct Undeclared: Error, CustomStringConvertible { let description: String }

  func bindings(allowsUndeclared: Bool) throws -> [softmetal_binding] {
    var bindings: [softmetal_binding] = []
    // What is left from another kernel's dispatch is not of this one.
    for (index, argument) in arguments.enumerated() where kernel.bufferNames[index] != nil {
      switch argument {
      case .bytes(let bytes):
        bindings.append(
          binding(bytes.address, bytes.length, index: index, access: .read, isolated: true))
      case .buffer(let buffer, let offset):
        if let extent = extents.byIndex[index] {
          bindings.append(try declared(buffer, offset, index: index, extent))
        } else if allowsUndeclared {
          bindings.append(
            binding(buffer.address, buffer.length, index: index, access: .update, isolated: false))
        } else {
          throw Undeclared(
            description: "a checked dispatch declares each buffer; push a debug group with "
              + "the word '\(index):<read|write|update>:<bytes>' for '\(kernel.bufferNames[index]!)'"
          )
        }
      case nil: break
      }
    }
    for (buffer, usage) in resident {
      bindings.append(
        binding(
          buffer.address, buffer.length, index: -1,
          access: usage.contains(.write) ? .update : .read,
          isolated: false))
    }
    if bindings.count > SOFTMETAL_MAX_BINDINGS {
      throw Undeclared(
        description: "at most \(SOFTMETAL_MAX_BINDINGS) buffers can be checked in a dispatch")
    }
    return bindings
  }

  private var kernel: Translation.Kernel { pipeline.function.kernel }

  private func declared(
    _ buffer: SoftBuffer, _ offset: Int, index: Int, _ extent: Extents.Extent
  ) throws -> softmetal_binding {
    guard extent.bytes <= buffer.length - offset else {
      throw Undeclared(
        description: "'\(kernel.bufferNames[index]!)' (buffer \(index)) is declared to have "
          + "\(extent.bytes) bytes, but only \(buffer.length - offset) follow offset \(offset)")
    }
    var result = binding(
      buffer.address + offset, extent.bytes, index: index, access: extent.access, isolated: true)
    result.fresh = buffer.tracksFresh
    return result
  }

  private func binding(
    _ start: UnsafeMutableRawPointer, _ length: Int, index: Int, access: Extents.Access,
    isolated: Bool
  ) -> softmetal_binding {
    var binding = softmetal_binding()
    binding.start = start.assumingMemoryBound(to: UInt8.self)
    binding.length = length
    binding.index = Int32(index)
    binding.reads = access != .write
    binding.writes = access != .read
    binding.isolated = isolated
    return binding
  }

  /// A declared reader may have read its whole extent; of writes it is known where they were.
  func touches(_ binding: softmetal_binding) -> [Touch] {
    let start = UInt(bitPattern: binding.start)
    let argument = "'\(kernel.bufferNames[Int(binding.index)] ?? "")' (buffer \(binding.index))"
    var touches: [Touch] = []
    if binding.reads, binding.length > 0 {
      touches.append(
        Touch(
          kernel: kernel.name, argument: argument,
          addresses: start..<(start + UInt(binding.length)),
          isWrite: false))
    }
    if binding.written_to > 0 {
      touches.append(
        Touch(
          kernel: kernel.name, argument: argument,
          addresses: (start + UInt(binding.written_from))..<(start + UInt(binding.written_to)),
          isWrite: true))
    }
    return touches
  }
}
