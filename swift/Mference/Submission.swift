// A list on its way through the queue: one command buffer up to each of its waits and one for the rest, so
// that what has run is known although something behind it still waits.
import Metal

final class Submission: @unchecked Sendable {
  struct Part {
    let buffer: any MTLCommandBuffer
    var dispatchCount = 0
    var signals: [(event: Event, value: UInt64)] = []
    /// Whether Metal has said how it ended.
    var hasEnded = false

    /// Whether it gives the event one of these values.
    func signals(_ event: Event, _ values: ClosedRange<UInt64>) -> Bool {
      signals.contains { $0.event === event && values.contains($0.value) }
    }
  }

  let list: CommandList
  /// In the order of their commitment; guarded by the device once it is submitted.
  var parts: [Part]

  init(list: CommandList, parts: [Part]) {
    self.list = list
    self.parts = parts
  }
}
