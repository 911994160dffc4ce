// Function constants get their values in the text: each set of values is compiled on its own.

extension Translator {
  mutating func functionConstants() throws {
    for i in tokens.indices where text(i) == "function_constant" && isAttribute(i - 2) {
      guard let index = Int(text(i + 2)) else { continue }  // the attribute of a parameter names a constant
      let name = String(text(i - 3))
      result.constants.append((name, index))
      replace(
        (i - 2)..<(partner[i - 2] + 1),
        with: "= \(literals.literal(name: name, index: index) ?? "{}")")
    }
    for i in tokens.indices where text(i) == "is_function_constant_defined" && text(i + 1) == "(" {
      let name = String(text(i + 2))
      let isDefined = result.constants.contains {
        $0.name == name && literals.literal(name: name, index: $0.index) != nil
      }
      replace(i..<(partner[i + 1] + 1), with: "\(isDefined)")
    }
  }

  /// Which functions and constants mention a function constant, directly or through others.
  func namesThatDependOnConstants() -> Set<Substring> {
    var uses: [(name: Substring, tokens: Range<Int>)] = functions().map { ($0.name, $0.body) }
    for i in tokens.indices where text(i) == "constant" && startOfDeclaration(i) == i {
      if let end = (i..<tokens.count).first(where: {
        [";", "{", "("].contains(text($0)) || text($0) == "="
      }),
        text(end) == "=", isIdentifier(end - 1)
      {
        uses.append((text(end - 1), end..<((end..<tokens.count).first { text($0) == ";" } ?? end)))
      }
    }
    var dependent = Set(result.constants.map { Substring($0.name) })
    var count = 0
    while count < dependent.count {
      count = dependent.count
      for use in uses where !dependent.contains(use.name) {
        if use.tokens.contains(where: { dependent.contains(text($0)) }) {
          dependent.insert(use.name)
        }
      }
    }
    return dependent
  }
}
