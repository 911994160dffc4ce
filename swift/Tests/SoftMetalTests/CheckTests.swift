import CSoftMetal
import Foundation
import Testing

@testable import Metal

/// Faults of kernels that a GPU passes over in silence. Each is planted here, and must be found in
/// a checked run with the line of the source and the name of the buffer.

private let strict = Harness { $0.checks = true }
private let tracking = Harness {
  $0.checks = true
  $0.tracksFresh = true
}

/// A kernel with an input, an output and a threadgroup's worth of positions. The body is at line 7.
private func kernel(_ body: String) -> String {
  """
  kernel void test(
    device float *x [[buffer(0)]], device float *y [[buffer(1)]],
    ushort i [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
  \(body)
  }
  """
}

@Suite struct CheckTests {
  /// Runs a body on x and y, two neighbours of 64 floats in one buffer.
  func message(
    _ body: String, groups: Int = 1, x: String = "read", y: String = "update",
    on harness: Harness = strict
  ) -> String {
    let both = harness.buffer((0..<128).map { Float($0) })
    return failure {
      let pipeline = try harness.pipeline(kernel(body))
      try harness.encode { encoder in
        encoder.pushDebugGroup("test 0:\(x):256 1:\(y):256")
        encoder.setComputePipelineState(pipeline)
        encoder.setBuffer(both, offset: 0, index: 0)
        encoder.setBuffer(both, offset: 256, index: 1)
        encoder.dispatchThreadgroups(
          MTLSizeMake(groups, 1, 1), threadsPerThreadgroup: MTLSizeMake(64, 1, 1))
        encoder.popDebugGroup()
      }
    }
  }

  @Test func neighboursAreOutOfBounds() {
    #expect(message("y[i] = x[i];") == "no error")
    let overrun = message("y[i] = x[i + 1];")
    #expect(overrun.contains("thread (63, 0, 0) reads 4 bytes outside every buffer"))
    #expect(overrun.contains("the closest is 'x' (buffer 0), at byte 256 of 256"))
    #expect(overrun.contains("program_source:6"))
    #expect(message("y[int(i) - 1] = 0.0f;").contains("'y' (buffer 1), at byte -4 of 256"))
    // Far away, in what would be the neighbour's neighbour.
    #expect(message("y[i] = x[i + 4096];").contains("'x' (buffer 0), at byte"))
  }

  @Test func whatIsOnlyRead() {
    let text = message("x[i] = 1.0f;")
    #expect(text.contains("writes 4 bytes of 'x' (buffer 0)"))
    #expect(text.contains("declares to be only read") && text.contains("program_source:6"))
  }

  @Test func whatIsOnlyWritten() {
    let text = message("y[i] += x[i];", y: "write")
    #expect(text.contains("reads 4 bytes of 'y' (buffer 1)"))
    #expect(text.contains("which nothing has written yet") && text.contains("program_source:6"))
    #expect(message("y[i] = x[i]; y[i] += 1.0f;", y: "write") == "no error")
    #expect(message("y[i] += x[i];", y: "update") == "no error")
  }

  @Test func rowsThatAreNotWrittenStay() throws {
    let both = strict.buffer((0..<8).map { Float($0) })
    let pipeline = try strict.pipeline(kernel("if (i % 2 == 0) y[i] = x[i] + 100.0f;"))
    try strict.encode { encoder in
      encoder.pushDebugGroup("0:read:16 1:write:16")
      encoder.setComputePipelineState(pipeline)
      encoder.setBuffer(both, offset: 0, index: 0)
      encoder.setBuffer(both, offset: 16, index: 1)
      encoder.dispatchThreads(
        MTLSizeMake(4, 1, 1), threadsPerThreadgroup: MTLSizeMake(4, 1, 1))
    }
    #expect(both.array(Float.self, 8) == [0, 1, 2, 3, 100, 5, 102, 7])
  }

  @Test func racesOnDeviceMemoryInAThreadgroup() {
    let text = message("y[i] = x[i]; y[i] += y[63 - i];")
    #expect(text.contains("data race on 'y' (buffer 1)"))
    #expect(
      text.contains("without a barrier for device memory") && text.contains("program_source:6"))
    let after = { (barrier: String) in
      message("y[i] = x[i]; \(barrier) float v = y[63 - i]; \(barrier) y[i] = v;")
    }
    #expect(after("threadgroup_barrier(mem_flags::mem_device);") == "no error")
    #expect(after("threadgroup_barrier(mem_flags::mem_threadgroup);").contains("data race on 'y'"))
    #expect(after("simdgroup_barrier(mem_flags::mem_device);").contains("data race on 'y'"))
  }

  @Test func racesBetweenThreadgroups() {
    let both = message("y[i] = float(group);", groups: 2)
    #expect(both.contains("data race on 'y' (buffer 1)"))
    #expect(both.contains("written by another threadgroup, and nothing orders the threadgroups"))
    #expect(both.contains("program_source:6"))
    #expect(
      message("if (group == 0) y[i] = 1.0f; else y[i + 32] = y[i];", groups: 2)
        .contains("another threadgroup"))
    #expect(message("if (i < 32) y[group * 32 + i] = x[i];", groups: 2) == "no error")
  }

  @Test func plainAccessesBesideAtomics() {
    let atomic = "device atomic_uint *n = (device atomic_uint *)y;\n"
    let add = "atomic_fetch_add_explicit(n, 1u, memory_order_relaxed);"
    #expect(message(atomic + add, groups: 2) == "no error")
    #expect(message(atomic + add + " x[i] = y[0];", x: "update").contains("data race on 'y'"))
    #expect(
      message(atomic + "if (i == 0) atomic_store_explicit(n, 1u, memory_order_relaxed); " + add)
        == "no error")
  }

  @Test func threadgroupMemory() {
    let declare = "threadgroup float t[64];\nthreadgroup float u[64];\n"
    let missing = message(declare + "t[i] = x[i]; y[i] = t[i ^ 1];")
    #expect(missing.contains("'t' at byte") && missing.contains("program_source:8"))
    #expect(
      message(declare + "t[i] = x[i]; u[i] = t[i]; t[63 - i] = 0.0f;").contains("data race on 't'"))
    #expect(
      message(declare + "t[i] = x[i]; y[i] = u[i];").contains(
        "reads 4 bytes of 'u' at byte"))
    #expect(
      message(declare + "t[i] = x[i]; device float *p = (device float *)t; y[i] = p[64 + i];")
        .contains("outside 't', at byte 256 of 256"))
  }

  /// Copies 64 floats; both buffers from byte 0 on.
  private func copy(
    _ from: any MTLBuffer, to: any MTLBuffer, from offset: Int = 0, bytes: Int = 256
  ) -> String {
    failure {
      let pipeline = try tracking.pipeline(kernel("y[i] = x[i];"))
      try tracking.encode { encoder in
        encoder.pushDebugGroup("0:read:\(bytes) 1:update:\(bytes)")
        encoder.setComputePipelineState(pipeline)
        encoder.setBuffer(from, offset: offset, index: 0)
        encoder.setBuffer(to, offset: 0, index: 1)
        encoder.dispatchThreadgroups(
          MTLSizeMake(1, 1, 1), threadsPerThreadgroup: MTLSizeMake(bytes / 4, 1, 1))
      }
    }
  }

  @Test func freshMemory() throws {
    let written = tracking.buffer([Float](repeating: 1, count: 64))
    let fresh = tracking.device.makeBuffer(length: 256)!
    let out = tracking.device.makeBuffer(length: 256)!
    let text = copy(fresh, to: out)
    #expect(
      text.contains("reads 4 bytes of 'x' (buffer 0)") && text.contains("nothing has written"))
    #expect(copy(written, to: out) == "no error")
    #expect(out.array(Float.self, 64) == written.array(Float.self, 64))
    #expect(fresh.array(Float.self, 64) == [Float](repeating: 0, count: 64))
  }

  @Test func rowsOfFreshMemory() throws {
    let memory = mmap(nil, 32768, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)!
    let aligned = UnsafeMutableRawPointer(
      bitPattern: (Int(bitPattern: memory) + 16383) / 16384 * 16384)!
    let rows = tracking.device.makeBuffer(bytesNoCopy: aligned, length: 16384)!
    let one = tracking.buffer([Float](repeating: 1, count: 64))
    let out = tracking.device.makeBuffer(length: 256)!
    #expect(copy(one, to: rows) == "no error")
    #expect(copy(rows, to: out) == "no error")
    #expect(
      copy(rows, to: out, from: 4).contains("'x' (buffer 0) at byte 252 of 256, which nothing"))
    (rows.contents() + 256).storeBytes(of: 2, as: Float.self)
    #expect(copy(rows, to: out, from: 4) == "no error")
    #expect(copy(rows, to: out, from: 8192).contains("nothing has written"))
    memset(rows.contents() + 8192, 0, 256)
    #expect(copy(rows, to: out, from: 8192) == "no error")
  }

  @Test func inPlace() throws {
    func run(_ body: String) -> (String, [Float]) {
      let x = strict.buffer((0..<64).map { Float($0) })
      let text = failure {
        let pipeline = try strict.pipeline(kernel(body))
        try strict.encode { encoder in
          encoder.pushDebugGroup("0:read:256 1:write:256")
          encoder.setComputePipelineState(pipeline)
          for index in 0..<2 { encoder.setBuffer(x, offset: 0, index: index) }
          encoder.dispatchThreadgroups(
            MTLSizeMake(1, 1, 1), threadsPerThreadgroup: MTLSizeMake(64, 1, 1))
        }
      }
      return (text, x.array(Float.self, 64))
    }
    let (text, values) = run("y[i] = 2.0f * x[i];")
    #expect(text == "no error" && values == (0..<64).map { Float(2 * $0) })
    #expect(run("y[i] = x[63 - i];").0.contains("data race on"))
  }

  @Test func declarations() throws {
    let buffer = strict.buffer(of: Float.self, count: 64)
    func run(_ group: String?) -> String {
      failure {
        let pipeline = try strict.pipeline(kernel("y[i] = 0.0f;"))
        try strict.encode { encoder in
          if let group { encoder.pushDebugGroup(group) }
          encoder.setComputePipelineState(pipeline)
          encoder.setBuffer(buffer, offset: 0, index: 0)
          encoder.setBuffer(buffer, offset: 0, index: 1)
          encoder.dispatchThreadgroups(
            MTLSizeMake(1, 1, 1), threadsPerThreadgroup: MTLSizeMake(64, 1, 1))
          if group != nil { encoder.popDebugGroup() }
        }
      }
    }
    #expect(
      run(nil).contains("push a debug group with the word '0:<read|write|update>:<bytes>' for 'x'"))
    #expect(run("test 0:read:256").contains("for 'y'"))
    #expect(
      run("test 0:read:256 1:write:260").contains(
        "'y' (buffer 1) is declared to have 260 bytes, but only 256"))
    #expect(run("test 0:read:0 1:write:256") == "no error")
  }

  @Test func dispatchesOfAConcurrentEncoder() throws {
    let copy = try strict.pipeline(kernel("y[i] = x[i];"))
    func run(barrier: Bool, second: (Int, Int)) -> String {
      let memory = strict.buffer(of: Float.self, count: 256)
      return failure {
        try strict.encode(dispatchType: .concurrent) { encoder in
          encoder.setComputePipelineState(copy)
          encoder.pushDebugGroup("copy 0:read:256 1:write:256")
          for (from, to) in [(0, 256), second] {
            encoder.setBuffer(memory, offset: from, index: 0)
            encoder.setBuffer(memory, offset: to, index: 1)
            encoder.dispatchThreadgroups(
              MTLSizeMake(1, 1, 1), threadsPerThreadgroup: MTLSizeMake(64, 1, 1))
            if barrier { encoder.memoryBarrier(scope: .buffers) }
          }
          encoder.popDebugGroup()
        }
      }
    }
    let text = run(barrier: false, second: (256, 512))
    #expect(text.contains("no memoryBarrier between two dispatches"))
    #expect(
      text.contains("test writes 'y' (buffer 1)") && text.contains("test reads 'x' (buffer 0)"))
    #expect(run(barrier: true, second: (256, 512)) == "no error")
    #expect(run(barrier: false, second: (0, 512)) == "no error")
    #expect(run(barrier: false, second: (0, 256)).contains("writes 'y' (buffer 1), test writes"))
  }

  @Test func undefinedArithmetic() {
    #expect(
      message("int n = int(x[0]); y[i] = float(7 / n);").contains(
        "divided by zero (program_source:6)"))
    #expect(
      message("uint n = 32 + uint(x[0]); y[i] = float(1u << n);").contains("a shift is as wide"))
    #expect(
      message("float a[4]; for (uint k = 0; k <= 4; k++) a[k] = x[k]; y[i] = a[i % 4];")
        .contains("an index is outside its array (program_source:6)"))
    #expect(
      message(
        "float a[4]; a[i % 2] = x[i]; y[0] = 1.0f; y[i] = a[2 + i % 2] > 0.0f ? 1.0f : y[1000];")
        != "no error")
    #expect(message("float a; y[i] = a;").contains("uninitialized"))
  }

  @Test func alignmentNamesTheBuffer() {
    let text = message("y[i] = float(*(device const uint *)((device const uchar *)x + 2));")
    #expect(text.contains("'x' (buffer 0) at byte 2 of 256"))
    #expect(text.contains("aligned to 4") && text.contains("program_source:6"))
  }
}
