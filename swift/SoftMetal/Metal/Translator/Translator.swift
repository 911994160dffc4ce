let elementTypes = [
  "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "bfloat",
  "float",
]
let vectorTypes = Set(
  elementTypes.flatMap { type in (2...4).flatMap { ["\(type)\($0)", "packed_\(type)\($0)"] } })
let addressSpaces: Set<Substring> = [
  "device", "constant", "threadgroup", "thread", "ray_data", "object_data",
]

/// C++ that Apple's compiler refuses in kernels, but Clang would take.
let forbidden: [Substring: String] = [
  "double": "there is no double in Metal", "goto": "there is no goto in Metal",
  "new": "kernels cannot allocate",
  "delete": "kernels cannot allocate", "throw": "there are no exceptions in Metal",
  "try": "there are no exceptions in Metal", "catch": "there are no exceptions in Metal",
  "virtual": "there are no virtual functions in Metal",
  "dynamic_cast": "there is no dynamic_cast in Metal",
  "typeid": "there is no typeid in Metal", "thread_local": "there is no thread_local in Metal",
  "asm": "there is no assembly in Metal",
  "std": "the C++ standard library is not available in Metal",
]

let builtins: Set<Substring> = [
  "thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid",
  "threads_per_threadgroup", "dispatch_threads_per_threadgroup", "threadgroups_per_grid",
  "threads_per_grid",
  "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
  "thread_index_in_quadgroup", "quadgroup_index_in_threadgroup", "threads_per_simdgroup",
  "thread_execution_width",
  "simdgroups_per_threadgroup", "dispatch_simdgroups_per_threadgroup",
]

struct Translator {
  let source: String
  let literals: ConstantLiterals
  /// The kernel that gets an entry point, if not all do.
  let only: String?
  var tokens: [Token] = []
  var partner: [Int] = []  // the matching bracket of each ( [ { ) ] }
  var edits: [(range: Range<String.Index>, text: String)] = []
  var result = Translation()
  var entryPoints = ""
  var kernelDeclarations: [KernelDeclaration] = []
  var dependentNames: Set<Substring> = []

  init(source: String, literals: ConstantLiterals, only: String?) {
    self.source = source
    self.literals = literals
    self.only = only
  }

  mutating func translate() throws -> Translation {
    tokens = tokenize(source)
    try matchBrackets()
    try rejectForbidden()
    try functionConstants()
    try kernels()
    try threadgroupVariables()
    try pointersWithoutAddressSpace()
    conversions()
    result.text = applyEdits() + "\n# 1 \"entry points\"\n" + entryPoints
    return result
  }

  // MARK: Tokens

  func text(_ i: Int) -> Substring { tokens.indices.contains(i) ? tokens[i].text : "" }
  func isIdentifier(_ i: Int) -> Bool {
    tokens.indices.contains(i) && tokens[i].kind == .identifier
  }

  func error(_ message: String, at i: Int) -> TranslationError {
    guard tokens.indices.contains(i) else { return TranslationError(message: message) }
    return TranslationError(message: "\(tokens[i].file):\(tokens[i].line): error: \(message)")
  }

  mutating func matchBrackets() throws {
    partner = Array(repeating: -1, count: tokens.count)
    var open: [Int] = []
    let closing: [Substring: Substring] = [")": "(", "]": "[", "}": "{"]
    for i in tokens.indices where tokens[i].kind == .punctuation {
      if ["(", "[", "{"].contains(text(i)) {
        open.append(i)
      } else if let opening = closing[text(i)] {
        guard let j = open.popLast(), text(j) == opening else {
          throw error("unmatched '\(text(i))'", at: i)
        }
        (partner[i], partner[j]) = (j, i)
      }
    }
    if let i = open.last { throw error("'\(text(i))' is never closed", at: i) }
  }

  /// The index after a `<...>` that starts at `i`.
  func skipAngles(_ i: Int) -> Int {
    var depth = 0
    var j = i
    while j < tokens.count {
      switch text(j) {
      case "<": depth += 1
      case ">":
        depth -= 1
        if depth == 0 { return j + 1 }
      case "(", "[", "{": j = partner[j]
      case ";": return j
      default: break
      }
      j += 1
    }
    return j
  }

  /// The comma-separated parts of a token range.
  func split(_ range: Range<Int>) -> [Range<Int>] {
    var parts: [Range<Int>] = []
    var start = range.lowerBound
    var i = start
    while i < range.upperBound {
      switch text(i) {
      case "(", "[", "{": i = partner[i]
      case "<" where isIdentifier(i - 1): i = skipAngles(i) - 1
      case ",":
        parts.append(start..<i)
        start = i + 1
      default: break
      }
      i += 1
    }
    if start < range.upperBound { parts.append(start..<range.upperBound) }
    return parts
  }

  /// The first token of the declaration or statement that token `i` belongs to.
  func startOfDeclaration(_ i: Int) -> Int {
    var j = i
    while j > 0 {
      switch text(j - 1) {
      case ";", "{", "}": return j
      case ")", "]": j = partner[j - 1]
      default: j -= 1
      }
    }
    return 0
  }

  func isAttribute(_ i: Int) -> Bool {
    text(i) == "[" && text(i + 1) == "[" && partner[i] == partner[i + 1] + 1
  }

  /// `name(argument)` pairs in the attribute that starts at `i`.
  func attributes(_ i: Int) -> [(name: Substring, argument: String?, token: Int)] {
    split((i + 2)..<partner[i + 1]).map { part in
      let open = part.lowerBound + 1
      let argument =
        text(open) == "(" ? ((open + 1)..<partner[open]).map { String(text($0)) }.joined() : nil
      return (text(part.lowerBound), argument, part.lowerBound)
    }
  }

  func spelling(_ range: Range<Int>) -> String {
    range.map { String(text($0)) }.joined(separator: " ")
  }

  // MARK: Edits

  mutating func replace(_ range: Range<Int>, with replacement: String) {
    let start = tokens[range.lowerBound].text.startIndex
    let end = tokens[range.upperBound - 1].text.endIndex
    let newlines =
      source[start..<end].filter { $0 == "\n" }.count - replacement.filter { $0 == "\n" }.count
    edits.append((start..<end, replacement + String(repeating: "\n", count: max(0, newlines))))
  }

  mutating func insert(_ text: String, before i: Int) {
    let start = tokens[i].text.startIndex
    edits.append((start..<start, text))
  }

  func applyEdits() -> String {
    var output = ""
    var position = source.startIndex
    for edit in edits.sorted(by: { $0.range.lowerBound < $1.range.lowerBound })
    where edit.range.lowerBound >= position {  // edits inside a replaced range are void
      output += source[position..<edit.range.lowerBound]
      output += edit.text
      position = edit.range.upperBound
    }
    return output + source[position...]
  }
}
