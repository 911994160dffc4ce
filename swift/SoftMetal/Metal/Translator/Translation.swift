import Foundation

/// Turns preprocessed Metal source into C++ that the compiled `msl.h` understands.
///
/// Metal is C++ with a few additions. Most of them are handled by `msl.h` alone; this translator
/// rewrites the rest and leaves everything else, including line numbers, as it is:
///
///   * `threadgroup T name[N];` in a kernel becomes a reference to memory that the threadgroup
///   shares;
///   * `float4(a, b)`, `T(x)` and `(float4)x` become conversions that know vectors;
///   * `constant T name [[function_constant(n)]];` gets its value;
///   * for each kernel an entry point is added that fetches its arguments by their attributes.
///
/// It works on tokens, not on a syntax tree, and relies on the order in which Metal code is
/// ordinarily written. What it does not understand it reports, or leaves for the C++ compiler to
/// reject.
struct Translation {
  struct Kernel {
    var name: String
    var entryPoint: String
    var requiredBuffers: [Int] = []
    var bufferNames: [Int: String] = [:]
    var requiredThreadgroupMemory: [Int] = []
    var maxTotalThreads: Int?
    var usesConstants = false  // function constants, so that it has to be specialized
  }
  /// The symbol of the entry point when only one kernel gets one.
  static let onlyEntryPoint = "softmetal_kernel_0"

  var text = ""
  var kernels: [Kernel] = []
  /// Names and indices of the function constants that the source declares.
  var constants: [(name: String, index: Int)] = []
}

/// What cannot be translated, with its place as Clang writes it.
struct TranslationError: Error {
  var message: String
}

/// The values of function constants as C++ source, looked up by index first, then by name.
struct ConstantLiterals {
  var byName: [String: String] = [:]
  var byIndex: [Int: String] = [:]
  func literal(name: String, index: Int) -> String? { byIndex[index] ?? byName[name] }
}

extension Translation {
  init(
    source: String, constants literals: ConstantLiterals = ConstantLiterals(), only: String? = nil
  ) throws {
    var translator = Translator(source: source, literals: literals, only: only)
    self = try translator.translate()
  }
}
