// A list on its way through the queue.
import Metal

/// A list on its way.
final class Submission: @unchecked Sendable {
  let list: CommandList
  let buffer: any MTLCommandBuffer

  init(list: CommandList, buffer: any MTLCommandBuffer) {
    self.list = list
    self.buffer = buffer
  }
}
