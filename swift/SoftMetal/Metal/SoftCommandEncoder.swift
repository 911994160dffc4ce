class SoftCommandEncoder {
  var label: String?
  let buffer: SoftCommandBuffer
  var isActive = true
  private(set) var debugGroups: [String] = []

  init(buffer: SoftCommandBuffer) { self.buffer = buffer }
  var device: any MTLDevice { buffer.device }

  func append(_ command: SoftCommandBuffer.Command) {
    if isActive {
      buffer.append(command)
    } else {
      buffer.fail(.invalidResource, "command after endEncoding")
    }
  }
  func endEncoding() {
    isActive = false
    buffer.endEncoding()
  }
  func pushDebugGroup(_ string: String) { debugGroups.append(string) }
  func popDebugGroup() {
    if debugGroups.popLast() == nil {
      buffer.fail(.invalidResource, "popDebugGroup without pushDebugGroup")
    }
  }
  func insertDebugSignpost(_ string: String) {}
}
