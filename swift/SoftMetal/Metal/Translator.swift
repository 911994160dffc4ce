import Foundation

/// Turns preprocessed Metal source into C++ that the compiled `msl.h` understands.
///
/// Metal is C++ with a few additions. Most of them are handled by `msl.h` alone; this translator rewrites the rest
/// and leaves everything else, including line numbers, as it is:
///
///   * `threadgroup T name[N];` in a kernel becomes a reference to memory that the threadgroup shares;
///   * `float4(a, b)`, `T(x)` and `(float4)x` become conversions that know vectors;
///   * `constant T name [[function_constant(n)]];` gets its value;
///   * for each kernel an entry point is added that fetches its arguments by their attributes.
///
/// It works on tokens, not on a syntax tree, and relies on the order in which Metal code is ordinarily written. What
/// it does not understand it reports, or leaves for the C++ compiler to reject.
struct Translation {
    struct Kernel {
        var name: String
        var entryPoint: String
        var requiredBuffers: [Int] = []
        var requiredThreadgroupMemory: [Int] = []
        var maxTotalThreads: Int?
        var usesConstants = false  // function constants, so that it has to be specialized
    }
    var text = ""
    var kernels: [Kernel] = []
    /// Names and indices of the function constants that the source declares.
    var constants: [(name: String, index: Int)] = []
}

struct TranslationError: Error {
    var line: Int
    var message: String
}

/// The value of a function constant as C++ source, by name or index.
struct ConstantLiterals {
    var byName: [String: String] = [:]
    var byIndex: [Int: String] = [:]
    func literal(name: String, index: Int) -> String? { byName[name] ?? byIndex[index] }
}

struct Token {
    enum Kind { case identifier, number, literal, punctuation }
    var kind: Kind
    var text: Substring
    var line: Int
}

extension Translation {
    init(source: String, constants literals: ConstantLiterals = ConstantLiterals()) throws {
        var translator = Translator(source: source, literals: literals)
        self = try translator.translate()
    }
}

private struct KernelDeclaration {
    struct Parameter {
        var source: String  // a type of namespace msl
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

private let elementTypes = [
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "bfloat", "float",
]
private let vectorTypes = Set(
    elementTypes.flatMap { type in (2...4).flatMap { ["\(type)\($0)", "packed_\(type)\($0)"] } })
private let addressSpaces: Set<Substring> = ["device", "constant", "threadgroup", "thread", "ray_data", "object_data"]

/// C++ that Apple's compiler refuses in kernels, but Clang would take.
private let forbidden: [Substring: String] = [
    "double": "there is no double in Metal", "goto": "there is no goto in Metal", "new": "kernels cannot allocate",
    "delete": "kernels cannot allocate", "throw": "there are no exceptions in Metal",
    "try": "there are no exceptions in Metal", "catch": "there are no exceptions in Metal",
    "virtual": "there are no virtual functions in Metal", "dynamic_cast": "there is no dynamic_cast in Metal",
    "typeid": "there is no typeid in Metal", "thread_local": "there is no thread_local in Metal",
    "asm": "there is no assembly in Metal", "std": "the C++ standard library is not available in Metal",
]

private let builtins: Set<Substring> = [
    "thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid",
    "threads_per_threadgroup", "dispatch_threads_per_threadgroup", "threadgroups_per_grid", "threads_per_grid",
    "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
    "thread_index_in_quadgroup", "quadgroup_index_in_threadgroup", "threads_per_simdgroup", "thread_execution_width",
    "simdgroups_per_threadgroup", "dispatch_simdgroups_per_threadgroup",
]

private struct Translator {
    let source: String
    let literals: ConstantLiterals
    var tokens: [Token] = []
    var partner: [Int] = []  // the matching bracket of each ( [ { ) ] }
    var edits: [(range: Range<String.Index>, text: String)] = []
    var result = Translation()
    var entryPoints = ""
    var kernelDeclarations: [KernelDeclaration] = []
    var dependentNames: Set<Substring> = []

    init(source: String, literals: ConstantLiterals) {
        self.source = source
        self.literals = literals
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
    func isIdentifier(_ i: Int) -> Bool { tokens.indices.contains(i) && tokens[i].kind == .identifier }

    func error(_ message: String, at i: Int) -> TranslationError {
        TranslationError(line: tokens.indices.contains(i) ? tokens[i].line : 0, message: message)
    }

    mutating func matchBrackets() throws {
        partner = Array(repeating: -1, count: tokens.count)
        var open: [Int] = []
        let closing: [Substring: Substring] = [")": "(", "]": "[", "}": "{"]
        for i in tokens.indices where tokens[i].kind == .punctuation {
            if ["(", "[", "{"].contains(text(i)) {
                open.append(i)
            } else if let opening = closing[text(i)] {
                guard let j = open.popLast(), text(j) == opening else { throw error("unmatched '\(text(i))'", at: i) }
                (partner[i], partner[j]) = (j, i)
            }
        }
        if let i = open.last { throw error("'\(text(i))' is never closed", at: i) }
    }

    /// The index after a `<...>` that starts at `i`.
    func skipAngles(_ i: Int) -> Int {
        var depth = 0, j = i
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
        var parts: [Range<Int>] = [], start = range.lowerBound, i = start
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

    func isAttribute(_ i: Int) -> Bool { text(i) == "[" && text(i + 1) == "[" && partner[i] == partner[i + 1] + 1 }

    /// `name(argument)` pairs in the attribute that starts at `i`.
    func attributes(_ i: Int) -> [(name: Substring, argument: String?, token: Int)] {
        split((i + 2)..<partner[i + 1]).map { part in
            let open = part.lowerBound + 1
            let argument = text(open) == "(" ? ((open + 1)..<partner[open]).map { String(text($0)) }.joined() : nil
            return (text(part.lowerBound), argument, part.lowerBound)
        }
    }

    func spelling(_ range: Range<Int>) -> String { range.map { String(text($0)) }.joined(separator: " ") }

    // MARK: Edits

    mutating func replace(_ range: Range<Int>, with replacement: String) {
        let start = tokens[range.lowerBound].text.startIndex, end = tokens[range.upperBound - 1].text.endIndex
        let newlines = source[start..<end].filter { $0 == "\n" }.count - replacement.filter { $0 == "\n" }.count
        edits.append((start..<end, replacement + String(repeating: "\n", count: max(0, newlines))))
    }

    mutating func insert(_ text: String, before i: Int) {
        let start = tokens[i].text.startIndex
        edits.append((start..<start, text))
    }

    func applyEdits() -> String {
        var output = "", position = source.startIndex
        for edit in edits.sorted(by: { $0.range.lowerBound < $1.range.lowerBound })
        where edit.range.lowerBound >= position {  // edits inside a replaced range are void
            output += source[position..<edit.range.lowerBound]
            output += edit.text
            position = edit.range.upperBound
        }
        return output + source[position...]
    }

    // MARK: Checks

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
        var functions: [(name: Substring, parameters: Range<Int>, body: Range<Int>)] = [], i = 0
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
            if words.contains("*") || words.contains("&"), !words.contains(where: { addressSpaces.contains($0) }) {
                throw error("a pointer or reference needs an address space (device, constant, threadgroup or thread): "
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
            if type == i - 1, elementTypes.contains(String(text(type))) || vectorTypes.contains(String(text(type))),
                isIdentifier(i + 1), ["=", ";"].contains(text(i + 2))
            {
                try check(start..<(i + 2))
            }
        }
    }

    // MARK: Function constants

    mutating func functionConstants() throws {
        for i in tokens.indices where text(i) == "function_constant" && isAttribute(i - 2) {
            guard let index = Int(text(i + 2)) else { continue }  // the attribute of a parameter names a constant
            let name = String(text(i - 3))
            result.constants.append((name, index))
            replace((i - 2)..<(partner[i - 2] + 1), with: "= \(literals.literal(name: name, index: index) ?? "{}")")
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
            if let end = (i..<tokens.count).first(where: { [";", "{", "("].contains(text($0)) || text($0) == "=" }),
                text(end) == "=", isIdentifier(end - 1)
            {
                uses.append((text(end - 1), end..<((end..<tokens.count).first { text($0) == ";" } ?? end)))
            }
        }
        var dependent = Set(result.constants.map { Substring($0.name) }), count = 0
        while count < dependent.count {
            count = dependent.count
            for use in uses where !dependent.contains(use.name) {
                if use.tokens.contains(where: { dependent.contains(text($0)) }) { dependent.insert(use.name) }
            }
        }
        return dependent
    }

    // MARK: Kernels

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
        guard open < tokens.count else { throw error("cannot find the parameters of this kernel", at: keyword) }
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
        var found: KernelDeclaration.Parameter?, isOptional = false
        var i = range.lowerBound
        while i < range.upperBound {
            guard isAttribute(i) else { i += 1; continue }
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
        return found
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
        return .init(source: "buffer<\(index)>", buffer: index)
    }

    /// `template [[host_name("x")]] kernel void f<float>(...);` and the variants with decltype.
    mutating func explicitInstantiation(start: Int, keyword: Int) throws {
        var hostName: String?, function: Range<Int>?, i = start
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
                requiredThreadgroupMemory: kernel.parameters.filter { !$0.isOptional }.compactMap(\.threadgroupMemory),
                maxTotalThreads: kernel.maxTotalThreads,
                usesConstants: dependentNames.contains(Substring(kernel.name))))
    }

    // MARK: Threadgroup variables

    mutating func threadgroupVariables() throws {
        var count = 0, kernel = 0  // variables are numbered within their kernel
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

    /// The declarators (name and dimensions) of `threadgroup T a[4], b`, or nil if this declares something else.
    func variables(declaredAfter keyword: Int) -> [Range<Int>]? {
        var i = keyword + 1
        while isIdentifier(i) || text(i) == "<" || text(i) == ":" {
            if text(i) == "<" { i = skipAngles(i); continue }
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

    // MARK: Conversions

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
        for i in tokens.indices where tokens[i].kind == .number && text(i).lowercased().hasSuffix("bf") {
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
            guard end > i else { i += 1; continue }
            let type = spelling(i..<end)
            let start = text(i - 1) == ":" && text(i - 2) == ":" && text(i - 3) == "metal" ? i - 3 : i
            let before = text(start - 1)

            if text(end) == "(" {
                let declares = (addressSpaces.contains(before) || before == "const" || before == "operator")
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

/// Splits preprocessed source into tokens. Lines come from the preprocessor's `# line "file"` markers.
private func tokenize(_ source: String) -> [Token] {
    var tokens: [Token] = []
    let bytes = source.utf8
    var i = bytes.startIndex, line = 1, atLineStart = true

    func isWordByte(_ c: UInt8) -> Bool {
        (c >= 0x30 && c <= 0x39) || (c >= 0x41 && c <= 0x5A) || (c >= 0x61 && c <= 0x7A) || c == 0x5F || c >= 0x80
    }
    func byte(_ i: String.Index) -> UInt8 { i < bytes.endIndex ? bytes[i] : 0 }

    while i < bytes.endIndex {
        let c = bytes[i], start = i
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
            if words.count > 1, words[0] == "#", let number = Int(words[1]) { line = number - 1 }
            continue
        case UInt8(ascii: "\""), UInt8(ascii: "'"):
            i = bytes.index(after: i)
            while i < bytes.endIndex, bytes[i] != c {
                if bytes[i] == UInt8(ascii: "\\") { i = bytes.index(after: i) }
                i = bytes.index(after: i)
            }
            i = i < bytes.endIndex ? bytes.index(after: i) : i
            tokens.append(Token(kind: .literal, text: source[start..<i], line: line))
        case _ where isWordByte(c):
            let isNumber = c >= 0x30 && c <= 0x39
            while i < bytes.endIndex {
                let d = bytes[i]
                if isWordByte(d) || (isNumber && d == UInt8(ascii: ".")) {
                    i = bytes.index(after: i)
                } else if isNumber, d == UInt8(ascii: "+") || d == UInt8(ascii: "-"),
                    "eEpP".utf8.contains(bytes[bytes.index(before: i)]), !source[start..<i].hasPrefix("0x")
                        || "pP".utf8.contains(bytes[bytes.index(before: i)])
                {
                    i = bytes.index(after: i)
                } else {
                    break
                }
            }
            tokens.append(Token(kind: isNumber ? .number : .identifier, text: source[start..<i], line: line))
        default:
            i = bytes.index(after: i)
            tokens.append(Token(kind: .punctuation, text: source[start..<i], line: line))
        }
        atLineStart = false
    }
    return tokens
}
