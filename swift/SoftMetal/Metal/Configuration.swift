import CSoftMetal
import Foundation

/// Settings of the software device, read from the environment once. README.md says what they mean.
struct Configuration: Sendable {
  /// SOFTMETAL_WORKERS: threadgroups that run at the same time. Checked runs take one.
  var workers: Int
  /// SOFTMETAL_ORDER = forward | reverse | shuffle | shuffle:<seed>: which thread goes first when
  /// several can.
  var order: softmetal_order
  var seed: UInt32
  /// MTL_SHADER_VALIDATION: check every access of kernels. Apple's variable of the same meaning.
  var checks: Bool
  /// SOFTMETAL_UNDECLARED: let a checked dispatch bind buffers of which it declares no extent.
  var allowsUndeclared: Bool
  /// SOFTMETAL_FRESH: reading memory that nobody has written is an error. On in checked runs.
  var tracksFresh: Bool
  /// SOFTMETAL_LINT: compile a second time with real address spaces and reject what only works
  /// here. On in checked runs.
  var lints: Bool
  /// SOFTMETAL_DIVERGENT_SIMD: let lanes that wait at different SIMD operations go on.
  var allowsDivergentSIMD: Bool
  /// SOFTMETAL_EVENT_TIMEOUT: milliseconds after which a command buffer gives up waiting.
  var eventTimeout: UInt64
  /// SOFTMETAL_KERNEL_TIMEOUT: seconds after which a kernel that still runs ends the process; 0:
  /// never.
  var kernelTimeout: Int
  /// SOFTMETAL_CLANG: the compiler.
  var clang: String
  /// SOFTMETAL_CACHE: where compiled sources are kept.
  var cacheDirectory: String
  /// SOFTMETAL_FAIL: failures to inject.
  var injection: Injection
  /// SOFTMETAL_FAULT: the file of a fault to plant in shaders.
  var fault: Fault?

  static let current = Configuration(environment: ProcessInfo.processInfo.environment)

  init(environment: [String: String]) {
    func flag(_ name: String, default value: Bool = false) -> Bool {
      environment[name].map { $0 != "" && $0 != "0" } ?? value
    }
    func number(_ name: String) -> Int? { environment[name].flatMap { Int($0) } }
    checks = flag("MTL_SHADER_VALIDATION")
    workers = number("SOFTMETAL_WORKERS") ?? ProcessInfo.processInfo.activeProcessorCount
    (order, seed) = Self.order(environment["SOFTMETAL_ORDER"] ?? (checks ? "shuffle" : "forward"))
    allowsUndeclared = flag("SOFTMETAL_UNDECLARED")
    tracksFresh = flag("SOFTMETAL_FRESH", default: checks)
    lints = flag("SOFTMETAL_LINT", default: checks)
    allowsDivergentSIMD = flag("SOFTMETAL_DIVERGENT_SIMD")
    eventTimeout = number("SOFTMETAL_EVENT_TIMEOUT").map { UInt64(max(0, $0)) } ?? 120_000
    kernelTimeout = number("SOFTMETAL_KERNEL_TIMEOUT") ?? 120
    let candidates = ["/usr/libexec/swift/bin/clang", "/usr/bin/clang", "/usr/bin/clang-17"]
    clang =
      environment["SOFTMETAL_CLANG"]
      ?? candidates.first { FileManager.default.isExecutableFile(atPath: $0) } ?? "clang"
    cacheDirectory =
      environment["SOFTMETAL_CACHE"]
      ?? environment["XDG_CACHE_HOME"].map { $0 + "/softmetal" }
      ?? environment["HOME"].map { $0 + "/.cache/softmetal" }
      ?? "/tmp/softmetal-\(getuid())"
    do {
      injection = try Injection(environment["SOFTMETAL_FAIL"] ?? "")
      fault = try environment["SOFTMETAL_FAULT"].map {
        try Fault(String(contentsOfFile: $0, encoding: .utf8))
      }
    } catch {
      fatalError("\(error)")
    }
  }

  private static func order(_ text: String) -> (softmetal_order, UInt32) {
    let parts = text.split(separator: ":")
    let seed = parts.count > 1 ? UInt32(parts[1]) ?? 1 : 1
    switch parts.first {
    case "forward": return (SOFTMETAL_ORDER_FORWARD, seed)
    case "reverse": return (SOFTMETAL_ORDER_REVERSE, seed)
    case "shuffle": return (SOFTMETAL_ORDER_SHUFFLE, seed)
    default:
      fatalError("SOFTMETAL_ORDER is forward, reverse, shuffle or shuffle:<seed>, not '\(text)'")
    }
  }
}
