struct Token {
  enum Kind { case identifier, number, literal, punctuation }
  var kind: Kind
  var text: Substring
  var file: Substring
  var line: Int
}

/// Splits preprocessed source into tokens. Files and lines come from the preprocessor's `# line "file"`
/// markers.
func tokenize(_ source: String) -> [Token] {
  var tokens: [Token] = []
  let bytes = source.utf8
  var i = bytes.startIndex
  var line = 1
  var file: Substring = "program_source"
  var atLineStart = true

  func isWordByte(_ c: UInt8) -> Bool {
    (c >= 0x30 && c <= 0x39) || (c >= 0x41 && c <= 0x5A) || (c >= 0x61 && c <= 0x7A) || c == 0x5F
      || c >= 0x80
  }
  func byte(_ i: String.Index) -> UInt8 { i < bytes.endIndex ? bytes[i] : 0 }

  while i < bytes.endIndex {
    let c = bytes[i]
    let start = i
    switch c {
    case UInt8(ascii: "\n"):
      line += 1
      atLineStart = true
      i = bytes.index(after: i)
      continue
    case UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\r"):
      i = bytes.index(after: i)
      continue
    case UInt8(ascii: "#") where atLineStart:
      while i < bytes.endIndex, bytes[i] != UInt8(ascii: "\n") { i = bytes.index(after: i) }
      let words = source[start..<i].split(separator: " ")
      if words.count > 1, words[0] == "#", let number = Int(words[1]) {
        line = number - 1
        if words.count > 2 { file = words[2].filter { $0 != "\"" }[...] }
      }
      continue
    case UInt8(ascii: "\""), UInt8(ascii: "'"):
      i = bytes.index(after: i)
      while i < bytes.endIndex, bytes[i] != c {
        if bytes[i] == UInt8(ascii: "\\") { i = bytes.index(after: i) }
        i = bytes.index(after: i)
      }
      i = i < bytes.endIndex ? bytes.index(after: i) : i
      tokens.append(Token(kind: .literal, text: source[start..<i], file: file, line: line))
    case _ where isWordByte(c):
      let isNumber = c >= 0x30 && c <= 0x39
      while i < bytes.endIndex {
        let d = bytes[i]
        if isWordByte(d) || (isNumber && d == UInt8(ascii: ".")) {
          i = bytes.index(after: i)
        } else if isNumber, d == UInt8(ascii: "+") || d == UInt8(ascii: "-"),
          "eEpP".utf8.contains(bytes[bytes.index(before: i)]),
          !source[start..<i].hasPrefix("0x")
            || "pP".utf8.contains(bytes[bytes.index(before: i)])
        {
          i = bytes.index(after: i)
        } else {
          break
        }
      }
      tokens.append(
        Token(
          kind: isNumber ? .number : .identifier, text: source[start..<i], file: file, line: line))
    default:
      i = bytes.index(after: i)
      tokens.append(Token(kind: .punctuation, text: source[start..<i], file: file, line: line))
    }
    atLineStart = false
  }
  return tokens
}
