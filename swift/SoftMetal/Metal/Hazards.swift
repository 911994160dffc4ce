/// What the dispatches since the last barrier of a concurrent encoder have touched: nothing orders
/// them, so that no two of them may touch the same memory if one writes to it.
struct Hazards {
  private var touched: [Touch] = []

  mutating func barrier() { touched = [] }

  /// Adds a dispatch; the message of a conflict with one before it.
  mutating func add(_ new: [Touch]) -> String? {
    defer { touched += new }
    for touch in new {
      for other in touched where touch.isWrite || other.isWrite {
        guard touch.addresses.overlaps(other.addresses) else { continue }
        return "no memoryBarrier between two dispatches of a concurrent encoder: "
          + describe(other) + ", " + describe(touch)
      }
    }
    return nil
  }

  private func describe(_ touch: Touch) -> String {
    "\(touch.kernel) \(touch.isWrite ? "writes" : "reads") \(touch.argument)"
  }
}
