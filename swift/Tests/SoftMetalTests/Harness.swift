import Foundation

@testable import Metal

/// A device with its own configuration, and a short way to run a kernel.
struct Harness {
  let device: SoftDevice
  let queue: any MTLCommandQueue

  init(_ change: (inout Configuration) -> Void = { _ in }) {
    // The tests choose their own settings.
    let environment = ProcessInfo.processInfo.environment
    var configuration = Configuration(
      environment: environment.filter { name, _ in
        !name.hasPrefix("SOFTMETAL_") && name != "MTL_SHADER_VALIDATION"
          || name == "SOFTMETAL_CLANG" || name == "SOFTMETAL_CACHE"
      })
    change(&configuration)
    device = SoftDevice(configuration: configuration)
    queue = device.makeCommandQueue()!
  }
  /// Checks without declared extents.
  static let checked = Harness {
    $0.checks = true
    $0.allowsUndeclared = true
  }

  func buffer<T>(_ values: [T]) -> any MTLBuffer {
    values.withUnsafeBytes { device.makeBuffer(bytes: $0.baseAddress!, length: $0.count)! }
  }
  func buffer<T>(of type: T.Type, count: Int) -> any MTLBuffer {
    device.makeBuffer(length: count * MemoryLayout<T>.stride)!
  }

  /// The kernel `test` of a source, which starts at line 3.
  func pipeline(
    _ source: String, constants: MTLFunctionConstantValues = MTLFunctionConstantValues()
  ) throws -> any MTLComputePipelineState {
    let library = try device.makeLibrary(
      source: "#include <metal_stdlib>\nusing namespace metal;\n" + source, options: nil)
    return try device.makeComputePipelineState(
      function: library.makeFunction(name: "test", constantValues: constants))
  }

  /// Encodes with `body`, runs, and throws the error of the command buffer.
  func encode(
    dispatchType: MTLDispatchType = .serial, _ body: (any MTLComputeCommandEncoder) -> Void
  ) throws {
    let commands = queue.makeCommandBuffer()!
    let encoder = commands.makeComputeCommandEncoder(dispatchType: dispatchType)!
    body(encoder)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    if let error = commands.error { throw error }
  }

  func run(
    _ source: String, _ buffers: [any MTLBuffer], groups: Int = 1, threads: Int = 1,
    threadgroupMemory: [Int] = [],
    constants: MTLFunctionConstantValues = MTLFunctionConstantValues()
  ) throws {
    let pipeline = try pipeline(source, constants: constants)
    try encode { encoder in
      encoder.setComputePipelineState(pipeline)
      for (i, buffer) in buffers.enumerated() { encoder.setBuffer(buffer, offset: 0, index: i) }
      for (i, length) in threadgroupMemory.enumerated() {
        encoder.setThreadgroupMemoryLength(length, index: i)
      }
      encoder.dispatchThreadgroups(
        MTLSize(width: groups, height: 1, depth: 1),
        threadsPerThreadgroup: MTLSize(width: threads, height: 1, depth: 1))
    }
  }

  /// Runs a kernel body that writes to `out`, once, and returns what it wrote.
  func evaluate<T>(
    _ type: T.Type, _ metalType: String, count: Int, _ body: String, prelude: String = ""
  ) throws -> [T] {
    let out = buffer(of: type, count: count)
    try run(prelude + "kernel void test(device \(metalType) *out [[buffer(0)]]) { \(body) }", [out])
    return out.array(type, count)
  }
}

extension MTLBuffer {
  func array<T>(_ type: T.Type, _ count: Int) -> [T] {
    Array(UnsafeBufferPointer(start: contents().assumingMemoryBound(to: type), count: count))
  }
}

/// The message of the error that `body` throws.
func failure(_ body: () throws -> Void) -> String {
  do { try body() } catch { return String(describing: error) }
  return "no error"
}
