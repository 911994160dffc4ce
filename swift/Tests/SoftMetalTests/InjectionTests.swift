import Foundation
import Testing

@testable import Metal

/// Failures on demand: what the program under test must survive.
@Suite struct InjectionTests {
  private func harness(_ failures: String) throws -> SoftDevice {
    var configuration = Configuration(environment: [:])
    configuration.cacheDirectory = Configuration.current.cacheDirectory
    configuration.injection = try Injection(failures)
    return SoftDevice(configuration: configuration)
  }
  private let source = """
    constant uint n [[function_constant(0)]];
    kernel void test(device uint *x [[buffer(0)]]) { x[0] = n; }
    """

  @Test func objectsThatCannotBeHad() throws {
    #expect(try harness("queue").makeCommandQueue() == nil)
    #expect(try harness("event").makeSharedEvent() == nil)
    let second = try harness("buffer:2")
    let lengths = (0..<3).map { _ in second.makeBuffer(length: 16)?.length }
    #expect(lengths == [16, nil, 16])
    let memory = aligned_alloc(16384, 16384)!
    defer { free(memory) }
    #expect(try harness("buffer").makeBuffer(bytesNoCopy: memory, length: 16384) == nil)
    #expect(try harness("buffer").makeBuffer(bytes: memory, length: 16) == nil)
    #expect(try harness("command-buffer").makeCommandQueue()!.makeCommandBuffer() == nil)
    let commands = try harness("encoder:2").makeCommandQueue()!.makeCommandBuffer()!
    commands.makeComputeCommandEncoder()!.endEncoding()
    #expect(commands.makeBlitCommandEncoder() == nil)
  }

  @Test func compilation() throws {
    let text = source
    #expect(throws: MTLLibraryError.self) {
      try harness("library").makeLibrary(source: text, options: nil)
    }
    var seven: UInt32 = 7
    let values = MTLFunctionConstantValues()
    values.setConstantValue(&seven, type: .uint, index: 0)
    let noFunction = try harness("function").makeLibrary(source: text, options: nil)
    #expect(throws: MTLLibraryError.self) {
      try noFunction.makeFunction(name: "test", constantValues: values)
    }
    let device = try harness("pipeline:1")
    let function = try device.makeLibrary(source: text, options: nil)
      .makeFunction(name: "test", constantValues: values)
    #expect(throws: MTLLibraryError.self) {
      try device.makeComputePipelineState(function: function)
    }
    #expect(throws: Never.self) { try device.makeComputePipelineState(function: function) }
  }

  @Test func aCommandBufferThatFails() throws {
    let device = try harness("commands:2")
    let queue = device.makeCommandQueue()!
    let event = device.makeSharedEvent()!
    let lists = (1...3).map { value in
      let commands = queue.makeCommandBuffer()!
      commands.encodeSignalEvent(event, value: UInt64(value))
      commands.commit()
      commands.waitUntilCompleted()
      return (commands.status, event.signaledValue)
    }
    #expect(lists.map(\.0) == [.completed, .error, .completed])
    #expect(lists.map(\.1) == [1, 1, 3])
  }

  @Test func misspelledPlacesAreRefused() {
    #expect(throws: Injection.Mistake.self) { try Injection("bufer") }
    #expect(throws: Injection.Mistake.self) { try Injection("buffer:0") }
  }

  @Test func faultsInShaders() throws {
    #expect(try Fault("a\n=>\nb\n").plant(in: "xay") == "xby")
    #expect(try Fault("f(\n=>\na\n=>\n").plant(in: "a f(a a)") == "a f( a)")
    #expect(throws: Fault.Mistake.self) { try Fault("a\n=>\nb").plant(in: "aa") }
    #expect(throws: Fault.Mistake.self) { try Fault("a\n=>\nb").plant(in: "x") }
    #expect(throws: Fault.Mistake.self) { try Fault("b") }
    let faulty = Harness { $0.fault = try? Fault("x[0] = n\n=>\nx[0] = n +") }
    #expect(
      failure { _ = try faulty.device.makeLibrary(source: source, options: nil) }.contains(
        "expected expression"))
  }
}
