// Kernels and their arguments. For each kernel an entry point is added that fetches the arguments.

struct KernelDeclaration {
  struct Parameter {
    var source: String  // a type of namespace msl
    var name = ""
    var buffer: Int?
    var threadgroupMemory: Int?
    var isOptional = false
  }
  var name: String
  var parameters: [Parameter]
  var maxTotalThreads: Int?
  var isTemplate: Bool
  var body: Range<Int>
}

extension Translator {
  mutating func kernels() throws {
    dependentNames = namesThatDependOnConstants()
    for i in tokens.indices where text(i) == "kernel" {
      let start = startOfDeclaration(i)
      if text(start) == "template", text(start + 1) != "<" {
        try explicitInstantiation(start: start, keyword: i)
      } else {
        try kernelDefinition(start: start, keyword: i)
      }
    }
    for kernel in kernelDeclarations where !kernel.isTemplate {
      addEntryPoint(kernel, name: kernel.name, function: kernel.name)
    }
  }

  mutating func kernelDefinition(start: Int, keyword: Int) throws {
    var open = text(start) == "template" ? skipAngles(start + 1) : start
    while open < tokens.count, !(text(open) == "(" && isIdentifier(open - 1)) {
      open = isAttribute(open) ? partner[open] + 1 : open + 1
    }
    guard open < tokens.count else {
      throw error("cannot find the parameters of this kernel", at: keyword)
    }
    var next = partner[open] + 1
    while isAttribute(next) { next = partner[next] + 1 }
    guard text(next) == "{" else { return }  // a declaration
    if kernelDeclarations.last?.body.lowerBound == next + 1 { return }  // `[[kernel]] kernel void ...`

    var kernel = KernelDeclaration(
      name: String(text(open - 1)), parameters: [], isTemplate: text(start) == "template",
      body: (next + 1)..<partner[next])
    for i in start..<next where isAttribute(i) {
      for attribute in attributes(i) where attribute.name == "max_total_threads_per_threadgroup" {
        kernel.maxTotalThreads = attribute.argument.flatMap { Int($0) }
      }
    }
    let parameters = split((open + 1)..<partner[open])
    kernel.parameters = try parameters.compactMap(parameterWithAttribute)
    for (position, range) in parameters.enumerated() where !range.contains(where: isAttribute) {
      kernel.parameters.insert(
        try parameterWithoutAttribute(range, others: kernel.parameters), at: position)
    }
    kernelDeclarations.append(kernel)
    // The attributes have served; besides, `threadgroup` is a macro in C++.
    for i in start..<next where isAttribute(i) { replace(i..<(partner[i] + 1), with: "") }
  }

  func parameterWithAttribute(_ range: Range<Int>) throws -> KernelDeclaration.Parameter? {
    var found: KernelDeclaration.Parameter?
    var isOptional = false
    var i = range.lowerBound
    while i < range.upperBound {
      guard isAttribute(i) else {
        i += 1
        continue
      }
      for attribute in attributes(i) {
        let number = attribute.argument.flatMap { Int($0) }
        switch attribute.name {
        case "buffer":
          guard let number else { throw error("buffer needs a number", at: attribute.token) }
          found = .init(source: "buffer<\(number)>", buffer: number)
        case "threadgroup":
          guard let number else { throw error("threadgroup needs a number", at: attribute.token) }
          found = .init(source: "threadgroup_argument<\(number)>", threadgroupMemory: number)
        case "function_constant":
          isOptional = true
        case let name where builtins.contains(name):
          found = .init(source: String(name))
        default:
          throw error("unsupported attribute '\(attribute.name)'", at: attribute.token)
        }
      }
      i = partner[i] + 1
    }
    found?.isOptional = isOptional
    found?.name = parameterName(range)
    return found
  }

  /// The last word before the attributes and dimensions.
  func parameterName(_ range: Range<Int>) -> String {
    let end = range.first { text($0) == "[" } ?? range.upperBound
    return (range.lowerBound..<end).last { isIdentifier($0) }.map { String(text($0)) } ?? ""
  }

  /// A pointer or reference without index gets the lowest one that is free.
  func parameterWithoutAttribute(
    _ range: Range<Int>, others: [KernelDeclaration.Parameter]
  ) throws -> KernelDeclaration.Parameter {
    let words = range.map { text($0) }
    guard words.contains("*") || words.contains("&") || words.contains("[") else {
      throw error("kernel parameter without attribute: \(spelling(range))", at: range.lowerBound)
    }
    if words.contains("threadgroup") {
      let index = (0...).first { index in !others.contains { $0.threadgroupMemory == index } }!
      return .init(source: "threadgroup_argument<\(index)>", threadgroupMemory: index)
    }
    let index = (0...).first { index in !others.contains { $0.buffer == index } }!
    return .init(source: "buffer<\(index)>", name: parameterName(range), buffer: index)
  }

  /// `template [[host_name("x")]] kernel void f<float>(...);` and the variants with decltype.
  mutating func explicitInstantiation(start: Int, keyword: Int) throws {
    var hostName: String?
    var function: Range<Int>?
    var i = start
    while i < tokens.count, text(i) != ";" {
      if isAttribute(i) {
        for attribute in attributes(i) where attribute.name == "host_name" {
          hostName = attribute.argument?.replacingOccurrences(of: "\"", with: "")
        }
        i = partner[i]
      } else if text(i) == "(" {
        i = partner[i]
      } else if text(i + 1) == "<", kernelDeclarations.contains(where: { $0.name == text(i) }) {
        function = i..<skipAngles(i + 1)
        i = function!.upperBound - 1
      }
      i += 1
    }
    guard let hostName, let function,
      let kernel = kernelDeclarations.first(where: { $0.name == text(function.lowerBound) })
    else { throw error("cannot understand this template instantiation", at: start) }
    replace(start..<(i + 1), with: "")
    addEntryPoint(kernel, name: hostName, function: spelling(function))
  }

  mutating func addEntryPoint(_ kernel: KernelDeclaration, name: String, function: String) {
    if let only, only != name { return }
    let symbol = "softmetal_kernel_\(result.kernels.count)"
    let sources = kernel.parameters.map { ", msl::\($0.source){}" }.joined()
    entryPoints += """
      extern "C" __attribute__((visibility("default"))) void \(symbol)(const softmetal_thread *softmetal_self) {
          msl::call(&\(function), *softmetal_self\(sources));
      }

      """
    result.kernels.append(
      Translation.Kernel(
        name: name, entryPoint: symbol,
        requiredBuffers: kernel.parameters.filter { !$0.isOptional }.compactMap(\.buffer),
        bufferNames: Dictionary(
          kernel.parameters.compactMap { parameter in parameter.buffer.map { ($0, parameter.name) }
          },
          uniquingKeysWith: { first, _ in first }),
        requiredThreadgroupMemory: kernel.parameters.filter { !$0.isOptional }.compactMap(
          \.threadgroupMemory),
        maxTotalThreads: kernel.maxTotalThreads,
        usesConstants: dependentNames.contains(Substring(kernel.name))))
  }
}
