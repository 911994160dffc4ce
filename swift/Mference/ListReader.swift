// Reads the commands of a list one by one, refusing what the catalogue does not allow.
import CMference

struct ListReader {
  let bytes: [UInt8]
  let device: Device
  private var offset = 0
  private var index = 0

  init(bytes: [UInt8], device: Device) {
    self.bytes = bytes
    self.device = device
  }

  mutating func next() throws -> Command? {
    guard offset < bytes.count else { return nil }
    defer { index += 1 }
    switch Int(try word()) {
    case MF_COMMAND_DISPATCH: return .dispatch(try dispatch())
    case MF_COMMAND_WAIT:
      let (event, value) = try eventCommand()
      return .wait(event, value)
    case MF_COMMAND_SIGNAL:
      let (event, value) = try eventCommand()
      return .signal(event, value)
    case let kind:
      throw Failure(
        MF_ERR_ARGUMENT,
        "command \(index) at byte \(offset) has kind \(kind); 1, 2 or 3 was expected")
    }
  }

  private mutating func eventCommand() throws -> (Event, UInt64) {
    try need(MemoryLayout<mf_event_command>.size)
    let command = load(mf_event_command.self, at: offset)
    offset += MemoryLayout<mf_event_command>.size
    let value = try eventValue(command.value)
    let event: Event = try HandleTable.shared.find(command.event)
    guard event.device === device else {
      throw Failure(MF_ERR_HANDLE, "command \(index): its event belongs to another device")
    }
    return (event, value)
  }

  private mutating func dispatch() throws -> Dispatch {
    try need(MemoryLayout<mf_command>.size)
    let command = load(mf_command.self, at: offset)
    let facts = try expected(command)
    let bindings = offset + MemoryLayout<mf_command>.size
    let params = bindings + facts.buffers * MemoryLayout<mf_binding>.size
    let length = params + roundUp(facts.paramBytes, to: 8) - offset
    try need(length)
    let ranges = try bytes.withUnsafeBytes { all in
      try (0..<facts.buffers).map { number in
        let at = bindings + number * MemoryLayout<mf_binding>.size
        let extent = mf_extent_bytes(
          command.kernel, UInt32(number), all.baseAddress! + params)
        return try range(load(mf_binding.self, at: at), command.kernel, number, extent)
      }
    }
    offset += length
    return Dispatch(
      kernel: command.kernel,
      groups: Grid(command.groups),
      threads: Grid(command.threads),
      bindings: ranges,
      params: params..<params + facts.paramBytes)
  }

  /// The catalogue's counts for a kernel, which the command must have.
  private func expected(_ command: mf_command) throws -> (buffers: Int, paramBytes: Int) {
    guard command.kernel < UInt32(MF_KERNEL_COUNT) else {
      throw Failure(
        MF_ERR_KERNEL,
        "command \(index) names kernel \(command.kernel); the catalogue has \(MF_KERNEL_COUNT)")
    }
    let shape = mf_kernel_shape(command.kernel)
    guard command.buffer_count == shape.buffers, command.param_bytes == shape.param_bytes else {
      throw Failure(
        MF_ERR_KERNEL,
        "command \(index) (\(name(command.kernel))) has \(command.buffer_count) buffers and "
          + "\(command.param_bytes) parameter bytes; \(shape.buffers) and \(shape.param_bytes) were expected")
    }
    return (Int(shape.buffers), Int(shape.param_bytes))
  }

  private func range(_ binding: mf_binding, _ kernel: UInt32, _ number: Int, _ extent: Double) throws
    -> BufferRange
  {
    let place = "command \(index) (\(name(kernel))): binding \(number)"
    let buffer: Buffer = try HandleTable.shared.find(binding.buffer)
    guard buffer.device === device else {
      throw Failure(MF_ERR_HANDLE, "\(place) is a buffer of another device")
    }
    let start = try size(binding.offset, "the offset of a binding")
    let length = try size(binding.bytes, "the size of a binding")
    guard binding.reserved == 0 else {
      throw Failure(MF_ERR_ARGUMENT, "\(place): its reserved word is \(binding.reserved), not 0")
    }
    guard start <= buffer.bytes, length <= buffer.bytes - start else {
      throw Failure(
        MF_ERR_KERNEL,
        "\(place), \(length) bytes from byte \(start) on, leaves its buffer of \(buffer.bytes)")
    }
    guard Double(length) >= extent else {
      throw Failure(MF_ERR_KERNEL, "\(place) has \(length) bytes; \(shown(extent)) are touched")
    }
    let flags = mf_binding_flags(kernel, UInt32(number))
    if flags & UInt32(MF_BINDING_WRITTEN) != 0, buffer.memory.isReadOnly {
      throw Failure(MF_ERR_KERNEL, "\(place) is written, but its memory is read-only")
    }
    let element = Int(flags & ~UInt32(MF_BINDING_WRITTEN))
    guard (buffer.start + start) % element == 0 else {
      throw Failure(MF_ERR_KERNEL, "\(place) must start at a multiple of \(element) bytes")
    }
    return BufferRange(buffer: buffer, offset: buffer.start + start)
  }

  private func name(_ kernel: UInt32) -> String { String(cString: mf_kernel_name(kernel)) }

  private func word() throws -> UInt32 {
    try need(MemoryLayout<UInt32>.size)
    return load(UInt32.self, at: offset)
  }

  private func need(_ count: Int) throws {
    guard bytes.count - offset >= count else {
      throw Failure(
        MF_ERR_ARGUMENT,
        "command \(index) at byte \(offset) needs \(count) bytes; the list has \(bytes.count - offset) left")
    }
  }

  private func load<T>(_ type: T.Type, at offset: Int) -> T {
    bytes.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: offset, as: T.self) }
  }
}
