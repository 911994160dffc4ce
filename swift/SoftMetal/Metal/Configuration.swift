import CSoftMetal
import Foundation

/// Settings of the software GPU, read from the environment once.
struct Configuration: Sendable {
    /// SOFTMETAL_WORKERS: threadgroups that run at the same time. 1 makes the order of threadgroups, and with it
    /// the result of float atomics, reproducible.
    var workers: Int
    /// SOFTMETAL_ORDER = forward | reverse | shuffle | shuffle:<seed>: which thread goes first when several can.
    /// A missing barrier gives different results for different orders.
    var order: softmetal_order
    var seed: UInt32
    /// MTL_SHADER_VALIDATION=1: check every memory access of kernels for bounds and for races on threadgroup memory.
    var checksMemory: Bool
    /// SOFTMETAL_LINT=1: compile a second time with real address spaces and reject what only works here.
    var lints: Bool
    /// SOFTMETAL_DIVERGENT_SIMD=1: let lanes that wait at different SIMD operations go on, instead of failing.
    var allowsDivergentSIMD: Bool
    /// SOFTMETAL_EVENT_TIMEOUT: milliseconds after which a command buffer gives up waiting for an event.
    var eventTimeout: UInt64
    /// SOFTMETAL_KERNEL_TIMEOUT: seconds after which a kernel that still runs ends the process; 0 means never.
    var kernelTimeout: Int
    /// SOFTMETAL_CLANG: the compiler.
    var clang: String
    /// SOFTMETAL_CACHE: where compiled libraries are kept.
    var cacheDirectory: String

    static let current = Configuration(environment: ProcessInfo.processInfo.environment)

    init(environment: [String: String]) {
        func flag(_ name: String) -> Bool { environment[name].map { $0 != "" && $0 != "0" } ?? false }
        workers = environment["SOFTMETAL_WORKERS"].flatMap { Int($0) } ?? ProcessInfo.processInfo.activeProcessorCount
        let order = (environment["SOFTMETAL_ORDER"] ?? "forward").split(separator: ":")
        switch order.first {
        case "reverse": self.order = SOFTMETAL_ORDER_REVERSE
        case "shuffle": self.order = SOFTMETAL_ORDER_SHUFFLE
        default: self.order = SOFTMETAL_ORDER_FORWARD
        }
        seed = order.count > 1 ? UInt32(order[1]) ?? 1 : 1
        checksMemory = flag("MTL_SHADER_VALIDATION")
        lints = flag("SOFTMETAL_LINT")
        allowsDivergentSIMD = flag("SOFTMETAL_DIVERGENT_SIMD")
        eventTimeout = environment["SOFTMETAL_EVENT_TIMEOUT"].flatMap { UInt64($0) } ?? 30_000
        kernelTimeout = environment["SOFTMETAL_KERNEL_TIMEOUT"].flatMap { Int($0) } ?? 120
        let candidates = ["/usr/libexec/swift/bin/clang", "/usr/bin/clang", "/usr/bin/clang-17"]
        clang = environment["SOFTMETAL_CLANG"]
            ?? candidates.first { FileManager.default.isExecutableFile(atPath: $0) } ?? "clang"
        cacheDirectory = environment["SOFTMETAL_CACHE"]
            ?? environment["XDG_CACHE_HOME"].map { $0 + "/softmetal" }
            ?? environment["HOME"].map { $0 + "/.cache/softmetal" }
            ?? "/tmp/softmetal-\(getuid())"
    }
}
