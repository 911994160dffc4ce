import Foundation

/// A fault planted in a shader source before it is compiled: proof that the checks, or the tests
/// that run on them, notice it. SOFTMETAL_FAULT names a file of two or three texts with lines `=>`
/// between them: an optional place after which to look, what is there, and what to put in its
/// stead.
struct Fault: Sendable {
  private let anchor: String?
  private let original: String
  private let replacement: String

  struct Mistake: Error, CustomStringConvertible { let description: String }

  init(_ text: String) throws {
    let parts = text.components(separatedBy: "\n=>\n")
    guard parts.count == 2 || parts.count == 3, !parts[parts.count - 2].isEmpty else {
      throw Mistake(description: "a fault is two or three texts with lines `=>` between them")
    }
    anchor = parts.count == 3 ? parts[0] : nil
    original = parts[parts.count - 2]
    replacement = parts[parts.count - 1].trimmingCharacters(in: .newlines)
  }

  /// A fault that no longer fits the source is an error: it would prove nothing.
  func plant(in source: String) throws -> String {
    var rest = source.startIndex..<source.endIndex
    if let anchor {
      guard let found = source.range(of: anchor) else { throw missing(anchor) }
      rest = found.upperBound..<source.endIndex
    }
    guard let place = source.range(of: original, range: rest) else { throw missing(original) }
    if anchor == nil, source.range(of: original, range: place.upperBound..<source.endIndex) != nil {
      throw Mistake(description: "the text of the fault occurs more than once: \(original)")
    }
    return source.replacingCharacters(in: place, with: replacement)
  }

  private func missing(_ text: String) -> Mistake {
    Mistake(description: "the source has no such text for the fault: \(text)")
  }
}
