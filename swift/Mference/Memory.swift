// Memory that the library owns: slabs, and files mapped read-only. Regions start and end at the pages of
// Apple silicon (16 KiB) wherever this runs, because a buffer without a copy insists on them.
import CMference
import Foundation

final class Memory: Handled, @unchecked Sendable {
  static let kind = HandleKind.memory
  /// Page of Apple silicon; a multiple of the page of any system this runs on.
  static let pageBytes = 16_384
  /// Slabs start where direct reads and huge pages want them.
  static let slabAlignment = 2 << 20

  let contents: UnsafeMutableRawPointer
  /// What the owner asked for, or the size of the file.
  let bytes: Int
  /// What is mapped: whole pages.
  let mappedBytes: Int
  let isReadOnly: Bool
  private let reservation: UnsafeMutableRawPointer
  private let reservedBytes: Int

  private init(_ region: Region, bytes: Int, isReadOnly: Bool) {
    contents = region.start
    mappedBytes = region.bytes
    reservation = region.reservation
    reservedBytes = region.reservedBytes
    self.bytes = bytes
    self.isReadOnly = isReadOnly
  }

  deinit { munmap(reservation, reservedBytes) }

  /// Zeroed memory; pages become physical when they are written.
  static func allocate(bytes: Int, alignment: Int = slabAlignment) throws -> Memory {
    let region = try Region(bytes: bytes, alignment: alignment, protection: PROT_READ | PROT_WRITE)
    return Memory(region, bytes: bytes, isReadOnly: false)
  }

  /// Maps a whole file. Reading past its end, within the last page, gives zeros.
  static func map(path: String) throws -> Memory {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else {
      throw Failure(MF_ERR_IO, "\(path) could not be opened: \(String(cString: strerror(errno)))")
    }
    defer { close(descriptor) }
    var facts = stat()
    guard fstat(descriptor, &facts) == 0, facts.st_mode & S_IFMT == S_IFREG, facts.st_size > 0 else {
      throw Failure(
        MF_ERR_IO, "\(path) cannot be mapped: a regular file that is not empty was expected")
    }
    let bytes = Int(facts.st_size)
    let region = try Region(bytes: bytes, alignment: pageBytes, protection: PROT_READ)
    // Shared, so that no system keeps a copy of what a GPU has wired.
    let mapped = mmap(region.start, bytes, PROT_READ, MAP_FIXED | MAP_SHARED, descriptor, 0)
    guard mapped != MAP_FAILED else {
      let reason = String(cString: strerror(errno))
      munmap(region.reservation, region.reservedBytes)
      throw Failure(MF_ERR_IO, "\(path) could not be mapped: \(reason)")
    }
    // Experts are read through descriptors; the common weights are wanted whole and soon.
    madvise(region.start, bytes, MADV_WILLNEED)
    return Memory(region, bytes: bytes, isReadOnly: true)
  }
}

/// Reserved address space of whole pages at an alignment.
private struct Region {
  let start: UnsafeMutableRawPointer
  let bytes: Int
  let reservation: UnsafeMutableRawPointer
  let reservedBytes: Int

  init(bytes wanted: Int, alignment: Int, protection: Int32) throws {
    bytes = roundUp(wanted, to: Memory.pageBytes)
    reservedBytes = bytes + alignment
    let flags = MAP_PRIVATE | MAP_ANON
    guard let reserved = mmap(nil, reservedBytes, protection, flags, -1, 0),
      reserved != MAP_FAILED
    else {
      throw Failure(MF_ERR_MEMORY, "\(wanted) bytes of memory could not be had")
    }
    reservation = reserved
    let address = roundUp(Int(bitPattern: reserved), to: alignment)
    start = UnsafeMutableRawPointer(bitPattern: address)!
  }
}
