// A command list: the caller's bytes, copied, checked whole against the catalogue and resolved to objects,
// so that encoding it cannot fail for its form. Nothing here talks to the GPU.
import CMference
import Foundation

/// A dispatch of a list.
struct Dispatch {
  let kernel: UInt32
  let groups: Grid
  let threads: Grid
  let bindings: [BufferRange]
  /// Where its parameters lie in the list's bytes.
  let params: Range<Int>
}

/// Counts in three directions.
struct Grid {
  let width: Int, height: Int, depth: Int

  init(_ three: (UInt32, UInt32, UInt32)) {
    (width, height, depth) = (Int(three.0), Int(three.1), Int(three.2))
  }

  /// At most 2^53: what lies beyond is as impossible.
  var count: Double { Double(width) * Double(height) * Double(depth) }
}

/// Where one argument of a kernel begins.
struct BufferRange {
  let buffer: Buffer
  let offset: Int
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

  /// Of any list; a longer one is a mistake.
  static let bytesMax = Int(UInt32.max)

  init(_ bytes: UnsafeRawBufferPointer, for device: Device) throws {
    guard bytes.count <= Self.bytesMax else {
      throw Failure(
        MF_ERR_ARGUMENT,
        "a command list has \(bytes.count) bytes; at most \(Self.bytesMax) were expected")
    }
    // Copied before it is checked: the caller's bytes may change under our eyes.
    self.bytes = Array(bytes)
    guard bytes.count % 8 == 0 else {
      throw Failure(
        MF_ERR_ARGUMENT,
        "a command list has \(bytes.count) bytes; a multiple of 8 was expected")
    }
    var reader = ListReader(bytes: self.bytes, device: device)
    while let command = try reader.next() { commands.append(command) }
  }

  var signals: [(Event, UInt64)] {
    commands.compactMap { if case .signal(let event, let value) = $0 { (event, value) } else { nil } }
  }

  var waits: [(Event, UInt64)] {
    commands.compactMap { if case .wait(let event, let value) = $0 { (event, value) } else { nil } }
  }

  /// Whether its last command, a signal, has taken place: then all of it has run, although Metal may not
  /// have said so yet.
  var isOver: Bool {
    if case .signal(let event, let value) = commands.last { event.value >= value } else { false }
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
