// What Apple's compiler refuses and Clang would take.

extension Translator {
  func rejectForbidden() throws {
    for i in tokens.indices where tokens[i].kind == .identifier {
      if let message = forbidden[text(i)], text(i - 1) != "." { throw error(message, at: i) }
    }
    for i in tokens.indices where text(i) == "[" && !isAttribute(i) {
      if ["(", "=", ",", "return"].contains(text(i - 1)) {
        throw error("there are no lambda expressions before Metal 4", at: i)
      }
    }
  }

  /// Functions with their parameter lists and bodies: `name(...) {` outside of any function body.
  func functions() -> [(name: Substring, parameters: Range<Int>, body: Range<Int>)] {
    var functions: [(name: Substring, parameters: Range<Int>, body: Range<Int>)] = []
    var i = 0
    while i < tokens.count {
      let initializesMember = text(i - 2) == "," || (text(i - 2) == ":" && text(i - 3) != ":")
      if text(i) == "(", isIdentifier(i - 1), !initializesMember,
        !["if", "for", "while", "switch"].contains(text(i - 1))
      {
        let close = partner[i]
        var next = close + 1
        while text(next) == "const" || isAttribute(next) {
          next = isAttribute(next) ? partner[next] + 1 : next + 1
        }
        if text(next) == "{" {
          functions.append((text(i - 1), (i + 1)..<close, (next + 1)..<partner[next]))
          i = partner[next]
        }
      }
      i += 1
    }
    return functions
  }

  /// Apple's compiler wants an address space on every pointer and reference.
  func pointersWithoutAddressSpace() throws {
    func check(_ range: Range<Int>) throws {
      let words = range.map { text($0) }
      if words.contains("*") || words.contains("&"),
        !words.contains(where: { addressSpaces.contains($0) })
      {
        throw error(
          "a pointer or reference needs an address space (device, constant, threadgroup or thread): "
            + spelling(range), at: range.lowerBound)
      }
    }
    for function in functions() {
      for parameter in split(function.parameters) { try check(parameter) }
    }
    // Local variables of built-in types: `[const] float4 *name =`, `half &name =`.
    for i in tokens.indices where text(i) == "*" || text(i) == "&" {
      let start = startOfDeclaration(i)
      let type = text(start) == "const" ? start + 1 : start
      if type == i - 1,
        elementTypes.contains(String(text(type))) || vectorTypes.contains(String(text(type))),
        isIdentifier(i + 1), ["=", ";"].contains(text(i + 2))
      {
        try check(start..<(i + 2))
      }
    }
  }
}
