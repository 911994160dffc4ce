// The one table of handles: 3 bits of kind, 12 of generation and 17 of index. A place whose generations
// are used up is retired, so that a stale handle is never taken for a live one.
import CMference
import Foundation

/// What a handle may stand for.
protocol Handled: AnyObject {
  static var kind: HandleKind { get }
}

enum HandleKind: UInt32 {
  case device = 1
  case memory, buffer, event

  var name: String { ["a device", "a memory", "a buffer", "an event"][Int(rawValue) - 1] }
}

final class HandleTable: @unchecked Sendable {
  static let shared = HandleTable()

  private static let indexBits: UInt32 = 17
  private static let generationBits: UInt32 = 12
  private static let generationMax: UInt32 = 1 << generationBits - 1

  private struct Place {
    var object: (any Handled)?
    var generation: UInt32 = 0
  }

  private let lock = NSLock()
  private var places: [Place] = []
  /// Used again oldest first, which keeps generations far from their end.
  private var free: [Int] = []
  private var nextFree = 0

  func add<T: Handled>(_ object: T) throws -> mf_handle {
    try lock.withLock {
      let index = try takePlace(for: T.kind)
      places[index].object = object
      return Self.encode(T.kind, places[index].generation, index)
    }
  }

  /// The object behind a handle of the wanted kind.
  func find<T: Handled>(_ handle: mf_handle, as type: T.Type = T.self) throws -> T {
    try lock.withLock { try located(handle, type).object }
  }

  /// Takes the handle away; the object lives on while anything else refers to it.
  func remove<T: Handled>(_ handle: mf_handle, as type: T.Type = T.self) throws -> T {
    try lock.withLock {
      let (object, index) = try located(handle, type)
      places[index].object = nil
      if places[index].generation < Self.generationMax {
        places[index].generation += 1
        free.append(index)
      }
      return object
    }
  }

  private func takePlace(for kind: HandleKind) throws -> Int {
    if nextFree < free.count { return takeFree() }
    guard places.count < 1 << Self.indexBits else {
      throw Failure(
        MF_ERR_MEMORY, "no handle is left for \(kind.name): destroy what is no longer used")
    }
    places.append(Place())
    return places.count - 1
  }

  /// Those taken are dropped once they are half of the list, so that taking costs the same however many
  /// are free.
  private func takeFree() -> Int {
    let index = free[nextFree]
    nextFree += 1
    if 2 * nextFree > free.count {
      free.removeFirst(nextFree)
      nextFree = 0
    }
    return index
  }

  private func located<T: Handled>(_ handle: mf_handle, _ type: T.Type) throws -> (
    object: T, index: Int
  ) {
    let kind = handle >> (Self.indexBits + Self.generationBits)
    let index = Int(handle & (1 << Self.indexBits - 1))
    let generation = handle >> Self.indexBits & Self.generationMax
    if kind == T.kind.rawValue, index < places.count, places[index].generation == generation,
      let object = places[index].object as? T
    {
      return (object, index)
    }
    throw Failure(MF_ERR_HANDLE, Self.sentence(handle, found: HandleKind(rawValue: kind), T.kind))
  }

  private static func sentence(_ handle: mf_handle, found: HandleKind?, _ wanted: HandleKind)
    -> String
  {
    if handle == 0 { return "0 is no handle; the one of \(wanted.name) was expected" }
    if let found, found != wanted {
      return "handle \(handle) is the one of \(found.name); \(wanted.name) was expected"
    }
    return "handle \(handle) of \(wanted.name) was destroyed or never created"
  }

  private static func encode(_ kind: HandleKind, _ generation: UInt32, _ index: Int) -> mf_handle {
    kind.rawValue << (indexBits + generationBits) | generation << indexBits | UInt32(index)
  }
}
