// Vector constructors and casts become conversions that know vectors.

extension Translator {
  /// Names of types that may be vectors: the built-in ones, template parameters and aliases.
  func constructibleTypes() -> Set<Substring> {
    var names = Set(vectorTypes.map { Substring($0) })
    for i in tokens.indices {
      switch text(i) {
      case "typename", "class":
        if isIdentifier(i + 1), [",", ">", "="].contains(text(i + 2)) { names.insert(text(i + 1)) }
      case "using":
        if isIdentifier(i + 1), text(i + 2) == "=" { names.insert(text(i + 1)) }
      case "typedef":
        if let end = (i..<tokens.count).first(where: { text($0) == ";" }), isIdentifier(end - 1) {
          names.insert(text(end - 1))
        }
      default: break
      }
    }
    return names
  }

  mutating func conversions() {
    let types = constructibleTypes()
    let bodies = functionBodies()
    for i in tokens.indices where tokens[i].kind == .number && text(i).lowercased().hasSuffix("bf")
    {
      replace(i..<(i + 1), with: "bfloat(\(text(i).dropLast(2))f)")
    }
    var i = 0
    while i < tokens.count {
      // The type that starts here: a name, or vec<T, n>.
      var end = i
      if isIdentifier(i), types.contains(text(i)) {
        end = i + 1
      } else if text(i) == "vec", text(i + 1) == "<" {
        end = skipAngles(i + 1)
      }
      guard end > i else {
        i += 1
        continue
      }
      let type = spelling(i..<end)
      let start = text(i - 1) == ":" && text(i - 2) == ":" && text(i - 3) == "metal" ? i - 3 : i
      let before = text(start - 1)

      if text(end) == "(" {
        let declares =
          (addressSpaces.contains(before) || before == "const" || before == "operator")
          || text(end + 1) == "&"
        if !declares { replace(start..<end, with: "msl::make<\(type)>") }
      } else if isIdentifier(end), text(end + 1) == "(", partner[end + 1] > end + 2,
        bodies.contains(where: { $0.contains(i) })
      {
        insert(" = msl::make<\(type)>", before: end + 1)  // T name(...)
      } else if before == "<", text(start - 2) == "static_cast", text(end) == ">" {
        replace((start - 2)..<(end + 1), with: "msl::make<\(type)>")
      } else if before == "(", text(end) == ")", startsOperand(end + 1), !isCall(start - 1) {
        replace((start - 1)..<(end + 1), with: "msl::cast<\(type)>{} ->* ")
      }
      i = end
    }
  }

  func startsOperand(_ i: Int) -> Bool {
    guard tokens.indices.contains(i) else { return false }
    return tokens[i].kind != .punctuation || ["(", "-", "+", "!", "~", "*", "&"].contains(text(i))
  }

  /// Whether the parenthesis belongs to a call or declaration, not to an expression.
  func isCall(_ open: Int) -> Bool {
    if isIdentifier(open - 1) { return text(open - 1) != "return" }
    return text(open - 1) == ")"
  }

  func functionBodies() -> [Range<Int>] {
    tokens.indices.filter { text($0) == "{" && (text($0 - 1) == ")" || text($0 - 1) == "const") }
      .map { $0..<partner[$0] }
  }
}
