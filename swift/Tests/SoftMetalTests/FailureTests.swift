import CSoftMetal
import Foundation
import Testing

@testable import Metal

// What goes wrong on a GPU silently, or hangs it, is an error with a message here.

private let harness = Harness()
private let checked = Harness.checked

private func kernel(_ body: String) -> String {
  """
  kernel void test(device float *out [[buffer(0)]], ushort i [[thread_index_in_threadgroup]],
                   ushort lane [[thread_index_in_simdgroup]], ushort s [[simdgroup_index_in_threadgroup]]) {
  \(body)
  }
  """
}

@Suite struct FailureTests {
  /// The error of running this body, which starts at line 5, with 64 threads and 256 floats of
  /// output.
  func message(_ body: String, on harness: Harness = harness) -> String {
    failure {
      try harness.run(kernel(body), [harness.buffer(of: Float.self, count: 256)], threads: 64)
    }
  }

  @Test func barriers() {
    #expect(
      message("if (i < 32) threadgroup_barrier(mem_flags::mem_none);")
        .contains("only 32 of 64 threads reached the threadgroup_barrier of line 5"))
    #expect(
      message(
        "if (i < 32) threadgroup_barrier(mem_flags::mem_none);\n"
          + "else threadgroup_barrier(mem_flags::mem_none);"
      ).contains("divergent barriers"))
    #expect(
      message("if (lane < 7) out[i] = simd_sum(1.0f);\nelse out[i] = simd_sum(2.0f);")
        .contains(
          "diverged: lanes 0000007f wait at the SIMD operation of line 5, lane 7 at that of line 6")
    )
    #expect(
      message("if (lane < 7) out[i] = simd_shuffle(1.0f, 9);").contains(
        "reads from an inactive lane"))
  }

  @Test func threadgroupMemoryIsLimitedAndNotZero() throws {
    #expect(
      message("threadgroup float big[8193]; big[i] = 0.0f; out[i] = big[i];").contains(
        "the limit is 32768"))
    let out = harness.buffer(of: Float.self, count: 1)
    try harness.run(kernel("threadgroup float x[4]; if (i == 0) out[0] = x[3];"), [out])
    #expect(out.array(Float.self, 1)[0].isNaN)
  }

  @Test func bounds() {
    #expect(
      message("out[i * 5] = 1.0f;", on: checked).contains(
        "thread (52, 0, 0) writes 4 bytes outside every buffer; the closest is 'out' (buffer 0), at byte 1040 of 1024"
      ))
    #expect(
      message("out[0] = out[i - 1];", on: checked).contains("reads 4 bytes outside every buffer"))
    #expect(
      message("threadgroup float x[60]; x[i] = 0.0f; out[i] = x[i];", on: checked)
        .contains("thread 60: an index is outside its array (program_source:5)"))
    #expect(message("out[i] = 1.0f;", on: checked) == "no error")
    #expect(message("\nout[i * 5] = 1.0f;", on: checked).contains("program_source:6"))
  }

  @Test func alignment() {
    let read = "device const uchar *bytes = (device const uchar *)out + 2; out[i] = "
    #expect(
      message(read + "float(((device const uint *)bytes)[1]);", on: checked).contains(
        "thread 0 accesses 'out' (buffer 0) at byte 6 of 1024 through a pointer to a type that must be aligned to 4"
      ))
    #expect(
      message(read + "float(((device const half4 *)bytes)[1].x);", on: checked).contains(
        "not a multiple of 8"))
    #expect(
      message(
        "device const uchar *bytes = (device const uchar *)out + 514; "
          + "out[i] = float(((device const packed_half4 *)bytes)[1].x);", on: checked) == "no error"
    )
  }

  @Test func races() {
    let declare = "threadgroup float x[64]; x[i] = 1.0f;\n"
    #expect(
      message(declare + "out[i] = x[63 - i];", on: checked).contains(
        "'x' at byte 252 of 256, which nothing"))
    #expect(
      message(declare + "out[i] = x[i]; x[63 - i] = 0.0f;", on: checked).contains(
        "data race on 'x'"))
    #expect(
      message(declare + "threadgroup_barrier(mem_flags::mem_device); out[i] = x[0];", on: checked)
        .contains("data race"))
    #expect(
      message(
        declare + "threadgroup_barrier(mem_flags::mem_threadgroup); out[i] = x[63 - i];",
        on: checked)
        == "no error")
    #expect(
      message(
        declare + "simdgroup_barrier(mem_flags::mem_threadgroup); out[i] = x[i ^ 1];", on: checked)
        == "no error")
    #expect(
      message(
        declare + "simdgroup_barrier(mem_flags::mem_threadgroup); out[i] = x[i & 31];", on: checked
      )
      .contains("data race"))
    #expect(
      message("threadgroup float x; x = float(i); out[i] = 0.0f;", on: checked).contains(
        "data race"))
    // A barrier at the end of the loop is forgotten: the next round overwrites what others still
    // read.
    #expect(
      message(
        """
        threadgroup float x[64];
        for (int round = 0; round < 2; round++) {
            x[i] = float(round);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            out[i] += x[63 - i];
        }
        """, on: checked
      ).contains("data race"))
  }

  @Test func missingBarriersShowInReverseOrder() throws {
    let source = kernel("threadgroup float x; if (i == 0) x = 5.0f; out[i] = x;")
    for (order, correct) in [(SOFTMETAL_ORDER_FORWARD, true), (SOFTMETAL_ORDER_REVERSE, false)] {
      let harness = Harness { $0.order = order }
      let out = harness.buffer(of: Float.self, count: 64)
      try harness.run(source, [out], threads: 64)
      #expect((out.array(Float.self, 64)[63] == 5) == correct)
    }
  }

  @Test func checkedKernelsGiveTheSameResults() throws {
    let source = """
      struct P { uint n; float4 scale; };
      constant float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};
      kernel void test(device const P *p [[buffer(0)]], device half4 *v [[buffer(1)]],
                       device atomic_uint *count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
          P local = *p;
          threadgroup half4 line[64];
          line[i] = v[i];
          threadgroup_barrier(mem_flags::mem_threadgroup);
          float private_array[8];
          for (uint k = 0; k < 8; k++) private_array[k] = table[(i + k) % 4];
          v[i] = half4(float4(line[63 - i]) * local.scale * private_array[i % 8]);
          atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
      }
      """
    let results = try [harness, checked].map { harness in
      let p = harness.buffer([Float(0), 0, 0, 0, 1, 2, 3, 4])
      let v = harness.buffer((0..<256).map { Float16($0) })
      let count = harness.buffer([UInt32(0)])
      try harness.run(source, [p, v, count], threads: 64)
      #expect(count.array(UInt32.self, 1) == [64])
      return v.array(Float16.self, 256)
    }
    #expect(results[0] == results[1] && results[0][5] != 0)
  }

  @Test func compileErrors() {
    func message(_ source: String) -> String { failure { _ = try harness.pipeline(source) } }
    #expect(
      message("kernel void test(device float *x [[buffer(0)]]) {\n x[0] = y; }")
        .contains("program_source:4:9: error: use of undeclared identifier 'y'"))
    #expect(message("kernel void test(uint i) { }").contains("parameter without attribute"))
    #expect(message("float f(float *x) { return *x; }").contains("needs an address space"))
    #expect(message("kernel void test() { double x = 1.0; }").contains("no double in Metal"))
    #expect(
      message("kernel void test() { auto f = [](int x) { return x; }; }").contains(
        "no lambda expressions"))
    #expect(
      message("void f() { threadgroup float x[4]; }").contains("only be declared in a kernel"))
    #expect(message("#include \"other.h\"\n").contains("'other.h' file not found"))
    #expect(
      message("kernel void test(device float4 *x [[buffer(0)]]) { x[0] = x[1] * half4(1.0h); }")
        .contains("error: cannot convert between vector"))
    #expect(
      message("kernel void test(device float *x [[buffer(0)]]) { x[0] = max(1.0f, 2); }")
        .contains("the arguments have different types"))
  }

  @Test func lint() {
    let lint = Harness { $0.lints = true }
    func message(_ body: String) -> String {
      failure {
        _ = try lint.pipeline(
          """
          struct P { float a[4]; };
          float sum(device const float *x) { return x[0] + x[1]; }
          kernel void test(device float *x [[buffer(0)]], constant P &p [[buffer(1)]],
                           device atomic_uint *n [[buffer(2)]], ushort i [[thread_index_in_simdgroup]]) {
              threadgroup float y[32]; threadgroup atomic_uint m; y[i] = x[i];
              atomic_fetch_add_explicit(n, 1u, memory_order_relaxed);
              atomic_fetch_add_explicit(&m, 1u, memory_order_relaxed);
              simdgroup_float8x8 matrix; simdgroup_load(matrix, x, 8); simdgroup_store(matrix, y, 8);
          \(body) }
          """)
      }
    }
    #expect(message("x[0] = sum(x);") == "no error")
    #expect(message("P copy = p; x[0] = copy.a[1];") == "no error")
    #expect(message("x[0] = sum(y);").contains("program_source:11"))
    #expect(message("device float *z = y; x[0] = z[0];").contains("not portable"))
    #expect(message("auto q = (threadgroup float *)y; x[0] = q[0];") == "no error")
  }

  @Test func encodingMistakes() throws {
    let pipeline = try harness.pipeline(
      """
      [[max_total_threads_per_threadgroup(64)]]
      kernel void test(device float *x [[buffer(0)]], threadgroup float *y [[threadgroup(0)]]) { y[0] = 1.0f; x[0] = y[0]; }
      """)
    let buffer = harness.buffer([Float(0)])
    func message(_ body: (any MTLComputeCommandEncoder) -> Void) -> String {
      failure { try harness.encode(body) }
    }
    let one = MTLSizeMake(1, 1, 1)
    #expect(pipeline.maxTotalThreadsPerThreadgroup == 64)
    #expect(
      message { $0.dispatchThreadgroups(one, threadsPerThreadgroup: one) }.contains(
        "without a pipeline"))
    #expect(
      message {
        $0.setComputePipelineState(pipeline)
        $0.dispatchThreadgroups(one, threadsPerThreadgroup: one)
      }.contains("nothing is set at buffer index 0"))
    #expect(
      message {
        $0.setComputePipelineState(pipeline)
        $0.setBuffer(buffer, offset: 0, index: 0)
        $0.dispatchThreadgroups(one, threadsPerThreadgroup: one)
      }.contains("no threadgroup memory length is set at index 0"))
    #expect(
      message {
        $0.setComputePipelineState(pipeline)
        $0.setBuffer(buffer, offset: 0, index: 0)
        $0.setThreadgroupMemoryLength(16, index: 0)
        $0.dispatchThreadgroups(one, threadsPerThreadgroup: MTLSizeMake(65, 1, 1))
      }.contains("65 threads per threadgroup, at most 64"))
  }
}
