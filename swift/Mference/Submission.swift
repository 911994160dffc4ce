// A list on its way through the queue: one command buffer up to each of its waits and one for the rest, so
// that what has run is known although something behind it still waits.
import Metal

final class Submission: @unchecked Sendable {
  struct Part {
    let buffer: any MTLCommandBuffer
    var dispatchCount = 0
  }

  let list: CommandList
  let parts: [Part]

  init(list: CommandList, parts: [Part]) {
    self.list = list
    self.parts = parts
  }
}
