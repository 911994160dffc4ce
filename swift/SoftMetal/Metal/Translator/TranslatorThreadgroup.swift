// Threadgroup variables become references to memory that the threadgroup shares.

extension Translator {
  mutating func threadgroupVariables() throws {
    var count = 0
    var kernel = 0  // variables are numbered within their kernel
    for i in tokens.indices where text(i) == "threadgroup" {
      guard let declarators = variables(declaredAfter: i) else { continue }  // a pointer, reference or attribute
      let end = declarators.last!.upperBound
      guard [";", "{", "}"].contains(text(i - 1)), text(end) == ";" else {
        throw error("write threadgroup variables as `threadgroup T name[N];`", at: i)
      }
      guard let body = kernelDeclarations.first(where: { $0.body.contains(i) })?.body else {
        throw error("threadgroup variables can only be declared in a kernel", at: i)
      }
      if kernel != body.lowerBound { (count, kernel) = (0, body.lowerBound) }
      let type = spelling((i + 1)..<declarators[0].lowerBound)
      var text = ""
      for declarator in declarators {
        let name = self.text(declarator.lowerBound)
        let dimensions = spelling((declarator.lowerBound + 1)..<declarator.upperBound)
        if dimensions.hasPrefix("=") || dimensions.contains("] =") {
          throw error("a threadgroup variable cannot be initialized", at: i)
        }
        text += "typedef \(type) \(name)_type \(dimensions); threadgroup \(name)_type &\(name) = "
        text += "msl::threadgroup_variable<threadgroup \(name)_type>(\(count), \"\(name)\"); "
        count += 1
      }
      replace(i..<(end + 1), with: text)
    }
  }

  /// The declarators (name and dimensions) of `threadgroup T a[4], b`, or nil if this declares
  /// something else.
  func variables(declaredAfter keyword: Int) -> [Range<Int>]? {
    var i = keyword + 1
    while isIdentifier(i) || text(i) == "<" || text(i) == ":" {
      if text(i) == "<" {
        i = skipAngles(i)
        continue
      }
      if ["[", ",", "=", ";"].contains(text(i + 1)), i > keyword + 1 {
        var end = i + 1
        while end < tokens.count, text(end) != ";", text(end) != ")" {
          end = ["(", "[", "{"].contains(text(end)) ? partner[end] + 1 : end + 1
        }
        return split(i..<end)
      }
      i += 1
    }
    return nil
  }
}
