import CSoftMetal
import Foundation
import Testing

@testable import Metal

private let harness = Harness()

@Suite struct LanguageTests {
  @Test func vectorConstructors() throws {
    #expect(
      try harness.evaluate(
        Float.self, "float4", count: 8,
        """
        float2 a = float2(1.0f, 2.0f);
        out[0] = float4(a, 3.0f, 4.0f);
        out[1] = float4(5.0f);
        """) == [1, 2, 3, 4, 5, 5, 5, 5])
    #expect(
      try harness.evaluate(
        Float.self, "float", count: 4,
        """
        float3 v(1.0f, 2.0f, 3.0f);
        float3 w = v.zyx;
        w.xy += 10.0f;
        out[0] = w.x; out[1] = w[1]; out[2] = w.z;
        out[3] = dot(float4(v, 1.0f), metal::float4(w, 2.0f));
        """) == [13, 12, 1, 42])
  }

  @Test func conversions() throws {
    #expect(
      try harness.evaluate(
        Int32.self, "int4", count: 12,
        """
        float4 f = float4(1.9f, -1.9f, 200.0f, 0.5f);
        out[0] = int4(f);
        out[1] = (int4)f + 1;
        out[2] = static_cast<int4>(uchar4(f.zzzz));
        """) == [1, -1, 200, 0, 2, 0, 201, 1, 200, 200, 200, 200])
    #expect(
      try harness.evaluate(
        Float.self, "float4", count: 4,
        """
        half4 h = half4(float4(0.1f, 1.0f / 3.0f, 65504.0f, 1e-8f));
        out[0] = float4(h);
        """) == [Float(Float16(0.1)), Float(Float16(1.0 / 3)), 65504, 0])
    #expect(
      try harness.evaluate(
        UInt32.self, "uint", count: 3,
        """
        out[0] = as_type<uint>(1.0f);
        out[1] = as_type<uint>(half2(1.0h, 2.0h));
        out[2] = as_type<ushort>(bfloat(1.0f));
        """) == [0x3F80_0000, 0x4000_3C00, 0x3F80])
  }

  @Test func conversionsOfDependentTypes() throws {
    #expect(
      try harness.evaluate(
        Float.self, "float", count: 2,
        """
        out[0] = twice<float4>(half4(3.0h)).w;
        out[1] = twice<float>(4.0h);
        """,
        prelude: """
          template <typename T, typename U> T twice(U value) { using R = T; return R(value) * (R)2; }

          """) == [6, 8])
  }

  @Test func halfRoundsAfterEveryOperation() throws {
    // 2048 + 1 is not a half, so the ones are lost one by one; in float they would add up.
    #expect(
      try harness.evaluate(
        Float.self, "float", count: 1,
        """
        half a = 2048.0h, one = out[0] == 0.0f ? 1.0h : 0.0h;
        out[0] = float(a + one + one);
        """) == [2048])
  }

  @Test func packedVectors() throws {
    let input = harness.buffer((0..<12).map { Float($0) })
    let out = harness.buffer(of: Float.self, count: 3)
    try harness.run(
      """
      struct Record { packed_float3 position; float weight; };
      kernel void test(device const Record *in [[buffer(0)]], device float *out [[buffer(1)]]) {
          static_assert(sizeof(Record) == 16, "");
          float3 p = in[1].position;
          out[0] = p.z;
          out[1] = in[2].weight;
          out[2] = float4(*(device const packed_float4 *)((device const float *)in + 1)).w;
      }
      """, [input, out])
    #expect(out.array(Float.self, 3) == [6, 11, 4])
  }

  @Test func mathematics() throws {
    let values = try harness.evaluate(
      Float.self, "float", count: 10,
      """
      out[0] = exp(1.0f);
      out[1] = precise::log2(8.0f);
      out[2] = rsqrt(4.0f);
      out[3] = clamp(5.0f, 0.0f, 2.0f);
      out[4] = mix(1.0f, 3.0f, 0.25f);
      out[5] = max(float4(1.0f, 5.0f, 2.0f, 0.0f), 3.0f).y;
      out[6] = select(1.0f, 2.0f, true);
      out[7] = float(popcount(0xF0u) + clz(1u) + ctz(8u));
      out[8] = select(float2(1.0f), float2(2.0f), float2(0.0f, 1.0f) > 0.5f).y;
      out[9] = fast::tanh(0.5f) + float(all(float2(1.0f) > 0.0f));
      """)
    let expected: [Float] = [2.7182817, 3, 0.5, 2, 1.5, 5, 2, 4 + 31 + 3, 2, 1.4621172]
    for (a, b) in zip(values, expected) { #expect(abs(a - b) < 1e-6) }
  }

  @Test func threadPositions() throws {
    let out = harness.buffer(of: UInt32.self, count: 8 * 6 * 4)
    let pipeline = try harness.pipeline(
      """
      kernel void test(device uint *out [[buffer(0)]], uint3 p [[thread_position_in_grid]],
                       ushort2 size [[threads_per_grid]], uint3 group [[threadgroup_position_in_grid]],
                       ushort index [[thread_index_in_threadgroup]], uint3 q [[thread_position_in_threadgroup]],
                       uint3 threads [[threads_per_threadgroup]]) {
          uint expected = q.x + q.y * threads.x + q.z * threads.x * threads.y;
          out[p.x + p.y * size.x + p.z * size.x * size.y] = index == expected ? 100 * group.x + 10 * group.y + group.z : 999;
      }
      """)
    try harness.encode { encoder in
      encoder.setComputePipelineState(pipeline)
      encoder.setBuffer(out, offset: 0, index: 0)
      encoder.dispatchThreads(
        MTLSize(width: 8, height: 6, depth: 4),
        threadsPerThreadgroup: MTLSize(width: 3, height: 4, depth: 2))
    }
    for (i, value) in out.array(UInt32.self, 8 * 6 * 4).enumerated() {
      let group = (x: i % 8 / 3, y: i / 8 % 6 / 4, z: i / 48 / 2)
      #expect(Int(value) == 100 * group.x + 10 * group.y + group.z)
    }
  }

  @Test func threadgroupMemory() throws {
    // Reverses 1024 numbers through a 2D array, with a second variable and an argument beside it.
    let out = harness.buffer((0..<2048).map { Int32($0) })
    try harness.run(
      """
      void publish(threadgroup int *where, int value, ushort i) {
          where[i] = value;
          threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      kernel void test(device int *data [[buffer(0)]], threadgroup int *sums [[threadgroup(0)]],
                       ushort i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]],
                       ushort lane [[thread_index_in_simdgroup]], ushort s [[simdgroup_index_in_threadgroup]]) {
          threadgroup int grid[32][32], first;
          data += g * 1024;
          if (i == 7) first = data[0];
          publish(&grid[0][0], data[i], i);
          int sum = simd_sum(grid[s][lane]);
          if (lane == 0) sums[s] = sum;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          int total = simd_sum(sums[lane]);
          data[i] = grid[31 - s][31 - lane] - first + (total - total);
      }
      """, [out], groups: 2, threads: 1024, threadgroupMemory: [128])
    let reversed = (0..<1024).map { Int32(1023 - $0) }
    #expect(out.array(Int32.self, 2048) == reversed + reversed)
  }

  @Test func manyKernelsWithThreadgroupMemory() throws {
    let source = (0..<100).map { n in
      """
      kernel void \(n == 99 ? "test" : "k\(n)")(device float *out, ushort i [[thread_index_in_threadgroup]]) {
          threadgroup float a[4], b;
          if (i == 0) b = \(n).0f;
          a[i] = float(i);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[i] = a[3 - i] + b;
      }
      """
    }.joined(separator: "\n")
    let out = harness.buffer(of: Float.self, count: 4)
    try harness.run(source, [out], threads: 4)
    #expect(out.array(Float.self, 4) == [102, 101, 100, 99])
  }

  @Test func simdgroupFunctions() throws {
    let out = harness.buffer(of: Int32.self, count: 12 * 32)
    try harness.run(
      """
      kernel void test(device int *out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
          int v = lane + 1;
          out[0 * 32 + lane] = simd_sum(v);
          out[1 * 32 + lane] = simd_max(v) * 100 + simd_min(v);
          out[2 * 32 + lane] = simd_prefix_inclusive_sum(v);
          out[3 * 32 + lane] = simd_prefix_exclusive_sum(v);
          out[4 * 32 + lane] = simd_broadcast(v, 5);
          out[5 * 32 + lane] = simd_shuffle_xor(v, 1);
          out[6 * 32 + lane] = simd_shuffle_down(v, 2);
          out[7 * 32 + lane] = simd_shuffle_up(v, 2);
          out[8 * 32 + lane] = int(ulong(simd_ballot(lane % 8 == 0)));
          out[9 * 32 + lane] = simd_all(v > 0) && !simd_all(v > 1) && simd_any(v == 32) && !simd_any(v == 33);
          out[10 * 32 + lane] = quad_sum(v);
          out[11 * 32 + lane] = simd_broadcast_first(v) + simd_product(lane == 3 ? 7 : 1);
      }
      """, [out], threads: 32)
    let rows = out.array(Int32.self, 12 * 32)
    func row(_ i: Int) -> [Int32] { Array(rows[(i * 32)..<(i * 32 + 32)]) }
    let lanes = Array(0..<32)
    #expect(row(0) == lanes.map { _ in 528 })
    #expect(row(1) == lanes.map { _ in 3201 })
    #expect(row(2) == lanes.map { Int32(($0 + 1) * ($0 + 2) / 2) })
    #expect(row(3) == lanes.map { Int32($0 * ($0 + 1) / 2) })
    #expect(row(4) == lanes.map { _ in 6 })
    #expect(row(5) == lanes.map { Int32(($0 ^ 1) + 1) })
    #expect(row(6) == lanes.map { Int32($0 + 2 < 32 ? $0 + 3 : $0 + 1) })
    #expect(row(7) == lanes.map { Int32($0 >= 2 ? $0 - 1 : $0 + 1) })
    #expect(row(8) == lanes.map { _ in 0x0101_0101 })
    #expect(row(9) == lanes.map { _ in 1 })
    #expect(row(10) == lanes.map { Int32($0 / 4 * 16 + 10) })
    #expect(row(11) == lanes.map { _ in 8 })
  }

  @Test func simdFunctionsOfSomeLanes() throws {
    // Lanes that returned, or skip the operation, do not count.
    let source = """
      kernel void test(device int *out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
          if (lane >= 20) return;
          if (lane < 4) out[lane] = simd_sum(lane + 1);
          out[lane] += simd_sum(100);
      }
      """
    let out = harness.buffer(of: Int32.self, count: 32)
    #expect(failure { try harness.run(source, [out], threads: 32) }.contains("diverged"))
    try Harness { $0.allowsDivergentSIMD = true }.run(source, [out], threads: 32)
    #expect(out.array(Int32.self, 32) == (0..<32).map { $0 < 4 ? 2010 : $0 < 20 ? 2000 : 0 })
  }

  @Test func simdFunctionsOfOtherTypes() throws {
    let out = harness.buffer(of: Float.self, count: 3)
    try harness.run(
      """
      kernel void test(device float *out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
          float4 v = simd_sum(float4(1.0f, 2.0f, 3.0f, float(lane)));
          half h = simd_max(half(lane));
          bfloat b = simd_shuffle(bfloat(float(lane)), 9);
          if (lane == 3) { out[0] = v.y + v.w; out[1] = h; out[2] = float(b); }
      }
      """, [out], threads: 32)
    #expect(out.array(Float.self, 3) == [560, 31, 9])
  }

  @Test func atomics() throws {
    let counters = harness.buffer([Int32](repeating: 0, count: 4))
    try harness.run(
      """
      kernel void test(device atomic_int *counters [[buffer(0)]], device atomic_float *sum [[buffer(0)]],
                       uint i [[thread_position_in_grid]]) {
          threadgroup atomic_uint local;
          if (i % 256 == 0) atomic_store_explicit(&local, 0u, memory_order_relaxed);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          atomic_fetch_add_explicit(&local, 1u, memory_order_relaxed);
          atomic_fetch_add_explicit(&counters[0], 1, memory_order_relaxed);
          atomic_fetch_max_explicit(&counters[1], int(i), memory_order_relaxed);
          atomic_fetch_add_explicit(&sum[2], 0.5f, memory_order_relaxed);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          if (i == 0) atomic_store_explicit(&counters[3], int(atomic_load_explicit(&local, memory_order_relaxed)), memory_order_relaxed);
      }
      """, [counters], groups: 16, threads: 256)
    let result = counters.array(Int32.self, 4)
    #expect(result[0] == 4096 && result[1] == 4095 && result[3] == 256)
    #expect(Float(bitPattern: UInt32(bitPattern: result[2])) == 2048)
  }

  @Test func functionConstants() throws {
    let source = """
      constant uint width [[function_constant(0)]];
      constant bool has_bias [[function_constant(1)]];
      constant float scale [[function_constant(2)]];
      constant bool scale_is_set = is_function_constant_defined(scale);
      constant float used_scale = scale_is_set ? scale : 1.0f;
      kernel void test(device float *out [[buffer(0)]],
                       device const float *bias [[buffer(1), function_constant(has_bias)]]) {
          out[0] = float(width) * used_scale + (has_bias ? bias[0] : 0.0f);
      }
      """
    let out = harness.buffer(of: Float.self, count: 1)
    let bias = harness.buffer([Float(0.5)])
    let values = MTLFunctionConstantValues()
    var width: UInt32 = 6
    var flag = false
    var scale: Float = -2.5
    values.setConstantValue(&width, type: .uint, index: 0)
    values.setConstantValue(&flag, type: .bool, withName: "has_bias")
    try harness.run(source, [out], constants: values)
    #expect(out.array(Float.self, 1) == [6])
    flag = true
    values.setConstantValue(&flag, type: .bool, withName: "has_bias")
    values.setConstantValue(&scale, type: .float, index: 2)
    try harness.run(source, [out, bias], constants: values)
    #expect(out.array(Float.self, 1) == [-14.5])
  }

  @Test func functionsThatNeedSpecialization() throws {
    let library = try harness.device.makeLibrary(
      source: """
        constant uint n [[function_constant(0)]];
        constant uint m = n + 1;
        uint f() { return m; }
        kernel void a(device uint *out [[buffer(0)]]) { out[0] = f(); }
        kernel void b(device uint *out [[buffer(0)]]) { out[0] = 2; }
        """, options: nil)
    #expect(
      failure {
        _ = try harness.device.makeComputePipelineState(function: library.makeFunction(name: "a")!)
      }
      .contains("a uses function constants"))
    #expect(
      failure {
        _ = try harness.device.makeComputePipelineState(function: library.makeFunction(name: "b")!)
      }
        == "no error")
  }

  @Test func templates() throws {
    let library = try harness.device.makeLibrary(
      source: """
        #include <metal_stdlib>
        using namespace metal;
        template <typename T, int N>
        kernel void fill(device T *out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = T(N); }
        template [[host_name("fill_float_3")]] kernel void fill<float, 3>(device float *, uint);
        template [[host_name("fill_int_4")]] [[kernel]] decltype(fill<int, 4>) fill<int, 4>;
        #define PLUS(T) kernel void plus_##T(device T *out [[buffer(0)]]) { out[0] += T(1); }
        PLUS(int)
        PLUS(float)
        """, options: nil)
    #expect(
      library.functionNames.sorted() == ["fill_float_3", "fill_int_4", "plus_float", "plus_int"])
  }

  @Test func argumentBuffersWithAddresses() throws {
    let a = harness.buffer([Float(1), 2])
    let b = harness.buffer([Float(10), 20])
    let table = harness.buffer([a.gpuAddress, b.gpuAddress + 4])
    let out = harness.buffer(of: Float.self, count: 1)
    let pipeline = try harness.pipeline(
      """
      struct Table { device const float *data[2]; };
      kernel void test(constant Table &table [[buffer(0)]], device float *out [[buffer(1)]]) {
          out[0] = table.data[0][1] + table.data[1][0];
      }
      """)
    try harness.encode { encoder in
      encoder.setComputePipelineState(pipeline)
      encoder.setBuffer(table, offset: 0, index: 0)
      encoder.setBuffer(out, offset: 0, index: 1)
      encoder.useResources([a, b], usage: .read)
      encoder.dispatchThreadgroups(
        MTLSizeMake(1, 1, 1), threadsPerThreadgroup: MTLSizeMake(1, 1, 1))
    }
    #expect(out.array(Float.self, 1) == [22])
  }

  @Test func sameResultsInEveryOrder() throws {
    let source = """
      kernel void test(device float *out [[buffer(0)]], ushort i [[thread_index_in_threadgroup]],
                       uint g [[threadgroup_position_in_grid]]) {
          threadgroup float line[128];
          line[i] = float(i * g);
          for (ushort step = 1; step < 128; step *= 2) {
              threadgroup_barrier(mem_flags::mem_threadgroup);
              float other = i >= step ? line[i - step] : 0.0f;
              threadgroup_barrier(mem_flags::mem_threadgroup);
              line[i] += other;
          }
          out[g * 128 + i] = line[i] + simd_sum(line[i]) * 0.125f;
      }
      """
    let results = try [SOFTMETAL_ORDER_FORWARD, SOFTMETAL_ORDER_REVERSE, SOFTMETAL_ORDER_SHUFFLE]
      .map { order in
        let harness = Harness { $0.order = order }
        let out = harness.buffer(of: Float.self, count: 128 * 20)
        try harness.run(source, [out], groups: 20, threads: 128)
        return out.array(Float.self, 128 * 20)
      }
    #expect(results[0] == results[1] && results[0] == results[2])
    let sums = (0..<128).map { Float($0 * ($0 + 1) / 2) }
    #expect(results[0][128 + 127] == sums[127] + sums[96...].reduce(0, +) / 8)
  }
}
