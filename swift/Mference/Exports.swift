// The functions of mf.h, and nothing else: each takes its arguments apart, calls one object and turns what
// is thrown into a status.
import CMference
import Foundation

@_cdecl("mf_abi_version")
public func abiVersion() -> UInt32 { UInt32(MF_ABI_VERSION) }

@_cdecl("mf_catalogue_hash")
public func catalogueHash() -> UInt32 { MF_CATALOGUE_HASH }

@_cdecl("mf_last_error")
public func lastError(_ text: UnsafeMutablePointer<CChar>?, _ capacity: UInt32) -> Int32 {
  guard let text, capacity > 0 else { return Int32(MF_ERR_ARGUMENT.rawValue) }
  let bytes = Array(LastError.sentence.utf8CString.prefix(Int(capacity) - 1)) + [0]
  text.update(from: bytes, count: bytes.count)
  return Int32(MF_OK.rawValue)
}

/// The place for a result, which no caller may leave out.
private func place<T>(_ pointer: UnsafeMutablePointer<T>?) throws -> UnsafeMutablePointer<T> {
  guard let pointer else { throw Failure(MF_ERR_ARGUMENT, "the place for a result is null") }
  return pointer
}

// MARK: - Devices

@_cdecl("mf_device_create")
public func createDevice(
  _ options: UnsafePointer<mf_device_options>?, _ device: UnsafeMutablePointer<mf_handle>?
) -> Int32 {
  status {
    let out = try place(device)
    if let simd = options?.pointee.simd.0, simd != 0 {
      throw Failure(MF_ERR_ARGUMENT, "the Metal device has no instruction sets to choose from")
    }
    out.pointee = try HandleTable.shared.add(try Device())
  }
}

@_cdecl("mf_device_info")
public func deviceInfo(_ device: mf_handle, _ info: UnsafeMutablePointer<mf_device_info_t>?) -> Int32 {
  status { try place(info).pointee = try HandleTable.shared.find(device, as: Device.self).info }
}

@_cdecl("mf_device_destroy")
public func destroyDevice(_ device: mf_handle) -> Int32 {
  status { try HandleTable.shared.remove(device, as: Device.self).close() }
}

@_cdecl("mf_counters")
public func deviceCounters(_ device: mf_handle, _ counters: UnsafeMutablePointer<mf_counters_t>?)
  -> Int32
{
  status {
    let found = try HandleTable.shared.find(device, as: Device.self)
    let out = try place(counters)
    found.settle()
    out.pointee = found.counters.snapshot
  }
}

// MARK: - Memory

@_cdecl("mf_memory_allocate")
public func allocateMemory(_ bytes: Double, _ memory: UnsafeMutablePointer<mf_handle>?) -> Int32 {
  status {
    let out = try place(memory)
    let made = try Memory.allocate(bytes: try positiveSize(bytes, "the size of memory"))
    out.pointee = try HandleTable.shared.add(made)
  }
}

@_cdecl("mf_memory_map")
public func mapMemory(_ path: UnsafePointer<CChar>?, _ memory: UnsafeMutablePointer<mf_handle>?)
  -> Int32
{
  status {
    let out = try place(memory)
    guard let path else { throw Failure(MF_ERR_ARGUMENT, "a file without a path was to be mapped") }
    out.pointee = try HandleTable.shared.add(try Memory.map(path: String(cString: path)))
  }
}

@_cdecl("mf_memory_contents")
public func memoryContents(
  _ memory: mf_handle, _ contents: UnsafeMutablePointer<UnsafeMutableRawPointer?>?,
  _ bytes: UnsafeMutablePointer<Double>?
) -> Int32 {
  status {
    let found = try HandleTable.shared.find(memory, as: Memory.self)
    try place(contents).pointee = found.contents
    try place(bytes).pointee = Double(found.bytes)
  }
}

@_cdecl("mf_memory_release")
public func releaseMemory(_ memory: mf_handle) -> Int32 {
  status { _ = try HandleTable.shared.remove(memory, as: Memory.self) }
}

// MARK: - Buffers

@_cdecl("mf_buffer_create")
public func createBuffer(
  _ device: mf_handle, _ bytes: Double, _ buffer: UnsafeMutablePointer<mf_handle>?
) -> Int32 {
  status {
    let out = try place(buffer)
    let owner = try HandleTable.shared.find(device, as: Device.self)
    let size = try positiveSize(bytes, "the size of a buffer")
    let memory = try Memory.allocate(bytes: size, alignment: Memory.pageBytes)
    let made = try Buffer(owner, over: memory, offset: 0, bytes: size, ownsMemory: true)
    out.pointee = try HandleTable.shared.add(made)
  }
}

@_cdecl("mf_buffer_from_memory")
public func bindMemory(
  _ device: mf_handle, _ memory: mf_handle, _ offset: Double, _ bytes: Double,
  _ buffer: UnsafeMutablePointer<mf_handle>?
) -> Int32 {
  status {
    let out = try place(buffer)
    let owner = try HandleTable.shared.find(device, as: Device.self)
    let found = try HandleTable.shared.find(memory, as: Memory.self)
    let start = try size(offset, "the offset of a buffer")
    let length = try size(bytes, "the size of a buffer")
    let made = try Buffer(owner, over: found, offset: start, bytes: length, ownsMemory: false)
    out.pointee = try HandleTable.shared.add(made)
  }
}

@_cdecl("mf_buffer_contents")
public func bufferContents(
  _ buffer: mf_handle, _ contents: UnsafeMutablePointer<UnsafeMutableRawPointer?>?,
  _ bytes: UnsafeMutablePointer<Double>?
) -> Int32 {
  status {
    let found = try HandleTable.shared.find(buffer, as: Buffer.self)
    try place(contents).pointee = found.contents
    try place(bytes).pointee = Double(found.bytes)
  }
}

@_cdecl("mf_buffer_destroy")
public func destroyBuffer(_ buffer: mf_handle) -> Int32 {
  status {
    let found = try HandleTable.shared.find(buffer, as: Buffer.self)
    if found.isPinned { found.device.settle() }
    guard !found.isPinned else {
      throw Failure(
        MF_ERR_ARGUMENT,
        "buffer \(buffer) is used by a submitted command list; wait for the list first")
    }
    _ = try HandleTable.shared.remove(buffer, as: Buffer.self)
  }
}

// MARK: - Events

@_cdecl("mf_event_create")
public func createEvent(_ device: mf_handle, _ event: UnsafeMutablePointer<mf_handle>?) -> Int32 {
  status {
    let out = try place(event)
    let owner = try HandleTable.shared.find(device, as: Device.self)
    out.pointee = try HandleTable.shared.add(try Event(owner))
  }
}

@_cdecl("mf_event_value")
public func valueOfEvent(_ event: mf_handle, _ value: UnsafeMutablePointer<Double>?) -> Int32 {
  status { try place(value).pointee = Double(try HandleTable.shared.find(event, as: Event.self).value) }
}

@_cdecl("mf_event_signal")
public func signalEvent(_ event: mf_handle, _ value: Double) -> Int32 {
  status {
    let found = try HandleTable.shared.find(event, as: Event.self)
    found.raise(to: try eventValue(value))
  }
}

@_cdecl("mf_event_wait")
public func waitForEvent(_ event: mf_handle, _ value: Double, _ seconds: Double) -> Int32 {
  status {
    let found = try HandleTable.shared.find(event, as: Event.self)
    try found.device.wait(found, try eventValue(value), seconds: try timeout(seconds))
  }
}

@_cdecl("mf_event_destroy")
public func destroyEvent(_ event: mf_handle) -> Int32 {
  status {
    let found = try HandleTable.shared.find(event, as: Event.self)
    if found.isAwaited { found.device.settle() }
    guard !found.isAwaited else {
      throw Failure(
        MF_ERR_ARGUMENT,
        "a submitted command list waits for event \(event); signal it or cancel first")
    }
    _ = try HandleTable.shared.remove(event, as: Event.self)
  }
}

// MARK: - Work

@_cdecl("mf_submit")
public func submit(_ device: mf_handle, _ commands: UnsafePointer<UInt8>?, _ bytes: Double) -> Int32 {
  status {
    let count = try size(bytes, "the size of a command list")
    guard commands != nil || count == 0 else {
      throw Failure(MF_ERR_ARGUMENT, "a command list of \(count) bytes was given without bytes")
    }
    let found = try HandleTable.shared.find(device, as: Device.self)
    let list = try CommandList(UnsafeRawBufferPointer(start: commands, count: count), for: found)
    try found.submit(list)
  }
}

@_cdecl("mf_finish")
public func finish(_ device: mf_handle, _ seconds: Double) -> Int32 {
  status {
    let found = try HandleTable.shared.find(device, as: Device.self)
    try found.finish(seconds: try timeout(seconds))
  }
}

@_cdecl("mf_cancel")
public func cancel(_ device: mf_handle) -> Int32 {
  status { try HandleTable.shared.find(device, as: Device.self).cancel() }
}

@_cdecl("mf_resume")
public func resume(_ device: mf_handle) -> Int32 {
  status { try HandleTable.shared.find(device, as: Device.self).resume() }
}
