// A command list: the caller's bytes, copied, checked whole against the catalogue and resolved to objects,
// so that encoding it cannot fail for its form. Nothing here talks to the GPU.
import CMference
import Foundation

/// A dispatch of a list.
struct Dispatch {
  let kernel: UInt32
  let groups: [UInt32]
  let threads: [UInt32]
  let bindings: [BufferRange]
  /// Where its parameters lie in the list's bytes.
  let params: Range<Int>
}

/// What one argument of a kernel may touch.
struct BufferRange {
  let buffer: Buffer
  let offset: Int
  let bytes: Int
  let isWritten: Bool
}

enum Command {
  case dispatch(Dispatch)
  case wait(Event, UInt64)
  case signal(Event, UInt64)
}

final class CommandList: @unchecked Sendable {
  private(set) var commands: [Command] = []
  /// Parameters are read out of the copy.
  let bytes: [UInt8]

  init(_ bytes: UnsafeRawBufferPointer, for device: Device) throws {
    self.bytes = Array(bytes)
    guard bytes.count % 8 == 0 else {
      throw Failure(
        MF_ERR_ARGUMENT,
        "a command list has \(bytes.count) bytes; a multiple of 8 was expected")
    }
    var reader = ListReader(bytes: self.bytes, device: device)
    while let command = try reader.next() { commands.append(command) }
  }

  var dispatchCount: Int {
    commands.reduce(0) { if case .dispatch = $1 { $0 + 1 } else { $0 } }
  }

  var signals: [(Event, UInt64)] {
    commands.compactMap { if case .signal(let event, let value) = $0 { (event, value) } else { nil } }
  }

  var waits: [(Event, UInt64)] {
    commands.compactMap { if case .wait(let event, let value) = $0 { (event, value) } else { nil } }
  }

  /// Keeps the list's buffers and events from being destroyed until `unpin`.
  func pin() {
    for case .dispatch(let dispatch) in commands { dispatch.bindings.forEach { $0.buffer.pin() } }
    for (event, value) in waits { event.beginWait(value) }
  }

  func unpin() {
    for case .dispatch(let dispatch) in commands { dispatch.bindings.forEach { $0.buffer.unpin() } }
    for (event, value) in waits { event.endWait(value) }
  }
}
