import Foundation

/// Failures that the program under test must survive, from SOFTMETAL_FAIL: a list of places with
/// commas between them, each with the number of the call that fails, or all of them.
///
///     SOFTMETAL_FAIL=queue             no command queue can be had
///     SOFTMETAL_FAIL=buffer:3,commands:1
final class Injection: @unchecked Sendable {
  enum Place: String, CaseIterable {
    /// MTLCreateSystemDefaultDevice gives nil.
    case device
    /// supportsFamily says no.
    case family
    /// makeCommandQueue gives nil.
    case queue
    /// makeBuffer gives nil, whatever its arguments.
    case buffer
    /// makeSharedEvent and makeEvent give nil.
    case event
    /// makeLibrary throws a compile error.
    case library
    /// makeFunction with constant values throws.
    case function
    /// makeComputePipelineState throws.
    case pipeline
    /// Pipelines say that SIMD-groups have half as many lanes.
    case width
    /// makeCommandBuffer gives nil.
    case commandBuffer = "command-buffer"
    /// makeComputeCommandEncoder and makeBlitCommandEncoder give nil.
    case encoder
    /// A committed command buffer ends with an error, and none of its commands takes place.
    case commands
  }

  struct Mistake: Error, CustomStringConvertible { let description: String }

  private let lock = NSLock()
  /// Which call fails, from 1 on; nil for each.
  private let failing: [Place: Int?]
  private var calls: [Place: Int] = [:]

  init(_ text: String = "") throws {
    var failing: [Place: Int?] = [:]
    for word in text.split(separator: ",") {
      let parts = word.split(separator: ":", maxSplits: 1)
      let number = parts.count > 1 ? Int(parts[1]) : nil
      guard let place = Place(rawValue: String(parts[0])), parts.count == 1 || (number ?? 0) > 0
      else {
        let places = Place.allCases.map(\.rawValue).joined(separator: ", ")
        throw Mistake(
          description: "SOFTMETAL_FAIL: '\(word)' is none of \(places), or no number from 1 on")
      }
      failing[place] = .some(number)
    }
    self.failing = failing
  }

  /// Whether this call, which counts, is to fail.
  func fails(_ place: Place) -> Bool {
    guard let number = failing[place] else { return false }
    return lock.withLock {
      calls[place, default: 0] += 1
      return number == nil || number == calls[place]
    }
  }
}
