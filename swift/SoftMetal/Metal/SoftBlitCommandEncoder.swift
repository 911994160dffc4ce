import Foundation

final class SoftBlitCommandEncoder: SoftCommandEncoder, MTLBlitCommandEncoder {
  private func check(_ buffer: SoftBuffer, _ range: Range<Int>) -> Bool {
    if range.lowerBound >= 0, range.upperBound <= buffer.length { return true }
    self.buffer.fail(.invalidResource, "bytes \(range) of a buffer of \(buffer.length) bytes")
    return false
  }

  func fill(buffer: any MTLBuffer, range: Range<Int>, value: UInt8) {
    let target = buffer as! SoftBuffer
    guard check(target, range) else { return }
    append(.work { memset(target.address + range.lowerBound, Int32(value), range.count) })
  }

  func copy(
    from sourceBuffer: any MTLBuffer, sourceOffset: Int, to destinationBuffer: any MTLBuffer,
    destinationOffset: Int, size: Int
  ) {
    let source = sourceBuffer as! SoftBuffer
    let destination = destinationBuffer as! SoftBuffer
    guard check(source, sourceOffset..<(sourceOffset + size)),
      check(destination, destinationOffset..<(destinationOffset + size))
    else { return }
    append(
      .work {
        memmove(destination.address + destinationOffset, source.address + sourceOffset, size)
      })
  }
}
