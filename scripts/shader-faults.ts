/**
 * Faults to plant in shaders, each a mistake that somebody could make: what is there, what is put in its
 * stead, and the kernel whose conformance cases have to notice. Pure data for scripts/mutate-shaders.ts.
 */
export interface ShaderFault {
  readonly title: string;
  /** Kernel of the catalogue. */
  readonly kernel: string;
  /** Text after which to look; absent: the original occurs once. */
  readonly after?: string;
  readonly original: string;
  readonly replacement: string;
}

const BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n";

const BARRIERS: readonly ShaderFault[] = [
  {
    title: "no barrier before partial sums are read",
    kernel: "rms_norm",
    after: "static inline T group_sum",
    original: `  ${BARRIER}  const T sum`,
    replacement: "  const T sum",
  },
  {
    title: "no barrier before partial sums are overwritten",
    kernel: "sandwich_setup",
    after: "static inline T group_sum",
    original: `  ${BARRIER}  return sum;`,
    replacement: "  return sum;",
  },
  {
    title: "no barrier before a staged tile is overwritten",
    kernel: "matmul_affine",
    after: "simdgroup_multiply_accumulate(sums[v][r], left[v], right, sums[v][r]);",
    original: `    ${BARRIER}`,
    replacement: "",
  },
  {
    title: "no barrier before the next tile is staged over a result",
    kernel: "routed_down",
    after: "kernel void routed_down_wide",
    original: `    // The next tile is staged where this one's result lies.\n    ${BARRIER}`,
    replacement: "",
  },
  {
    title: "a barrier for the wrong kind of memory",
    kernel: "matmul_affine",
    after: "stage_w(row, column + w_column",
    original: "mem_flags::mem_threadgroup",
    replacement: "mem_flags::mem_device",
  },
  {
    title: "a SIMD-group's barrier where the threadgroup's is needed",
    kernel: "attention_f32",
    after: "memory.masses[at.simdgroup] = now.mass;",
    original: "threadgroup_barrier(",
    replacement: "simdgroup_barrier(",
  },
  {
    title: "a barrier that only some threads reach",
    kernel: "argmax",
    after: "static inline uint group_max",
    original: `  ${BARRIER}`,
    replacement: `  if (at.simdgroup != 1) ${BARRIER}`,
  },
  {
    title: "threads that leave before a barrier",
    kernel: "rms_norm",
    after: "kernel void rms_norm",
    original: "  const uint t = group.x;\n",
    replacement: "  const uint t = group.x;\n  if (at.index == 0 && p.D > 64) return;\n",
  },
];

const BOUNDS: readonly ShaderFault[] = [
  {
    title: "one element into the next tensor",
    kernel: "rms_norm",
    after: "kernel void rms_norm",
    original: "from_bf16(weight[d])",
    replacement: "from_bf16(weight[d + 1])",
  },
  {
    title: "rows of the next tensor, read and not used",
    kernel: "matmul_affine",
    original: "const uint row = min(r, left - 1);",
    replacement: "const uint row = r;",
  },
  {
    title: "a ragged tile that stages rows of the next tensor",
    kernel: "matmul_affine",
    after: "kernel void matmul_affine_wide",
    original: "min(first_row + staged_row(at), p.O - 1)",
    replacement: "first_row + staged_row(at)",
  },
  {
    title: "a ragged end that is written past",
    kernel: "softcap",
    after: "kernel void softcap",
    original: "  if (i >= p.N) return;\n",
    replacement: "",
  },
  {
    title: "a ring that does not wrap",
    kernel: "attention_f32",
    original: "min(slot < R ? slot : slot - R, R - 1)",
    replacement: "slot",
  },
  {
    title: "the slot of the next expert",
    kernel: "routed_gate",
    original: "slab + ulong(is_valid ? slot : 0u) * slot_bytes",
    replacement: "slab + ulong(is_valid ? slot + 1u : 0u) * slot_bytes",
  },
  {
    title: "a write to a buffer that is only read",
    kernel: "sandwich_tail",
    original: "  const float scalar = from_bf16(layer_scalar[0]);\n",
    replacement:
      "  const float scalar = from_bf16(layer_scalar[0]);\n" +
      "  if (at.index == 0) ((device ushort *)layer_scalar)[0] = layer_scalar[0];\n",
  },
  {
    title: "packed codes read four bytes at a time",
    kernel: "matmul_affine",
    after: "static inline float code_product",
    original:
      "    return dot_four(codes_in_place(codes[1]), x.high, dot_four(codes_in_place(codes[0]), x.low, 0.0f));\n",
    replacement:
      "    const uint both = *(device const uint *)codes;\n" +
      "    return dot_four(codes_in_place(ushort(both >> 16)), x.high,\n" +
      "                    dot_four(codes_in_place(ushort(both)), x.low, 0.0f));\n",
  },
  {
    title: "channels of a convolution beyond the last",
    kernel: "causal_conv",
    after: "kernel void causal_conv",
    original: "  if (c >= p.C) return;\n",
    replacement: "",
  },
];

const LANES: readonly ShaderFault[] = [
  {
    title: "a mask that leaves out lanes",
    kernel: "argmax",
    after: "static inline uint group_max",
    original: "at.lane < at.simdgroups ?",
    replacement: "at.lane < 4 ?",
  },
  {
    title: "a mask with one lane too many, which reads what nobody wrote",
    kernel: "rms_norm",
    after: "static inline T group_sum",
    original: "at.lane < at.simdgroups ?",
    replacement: "at.lane <= at.simdgroups ?",
  },
  {
    title: "a shuffle from the wrong lane",
    kernel: "attention_f16",
    original: "simd_shuffle(weight, ushort(j + n))",
    replacement: "simd_shuffle(weight, ushort((j + n + 1) % 32))",
  },
  {
    title: "a SIMD operation that only some lanes reach",
    kernel: "router_topk",
    after: "kernel void router_topk",
    original: "    last_key = simd_max(key);\n",
    replacement: "    if (lane < 16) last_key = simd_max(key);\n",
  },
  {
    title: "lanes that write rows of the SIMD-group beside",
    kernel: "matmul_affine",
    after: "kernel void matmul_affine(",
    original: "if (at.lane < min(uint(SIMD_ROWS), left)) y",
    replacement: "if (at.lane < min(uint(SIMD_ROWS) + 1u, left)) y",
  },
];

const MEMORY: readonly ShaderFault[] = [
  {
    title: "threadgroups that write the same row",
    kernel: "embed_affine",
    after: "kernel void embed_affine",
    original: "device float *to = y + ulong(t) * p.D;",
    replacement: "device float *to = y + 0 * ulong(t);",
  },
  {
    title: "device memory that another thread of the group wrote, without a barrier for it",
    kernel: "sandwich_setup",
    after: "    x[row + d] = sum;\n",
    original: "for (uint d = at.index; d < p.D; d += at.threads) {\n    const float normed",
    replacement:
      "for (uint d = (at.index + 1) % at.threads; d < p.D; d += at.threads) {\n    const float normed",
  },
  {
    title: "every thread of a group writes the same result",
    kernel: "argmax",
    after: "kernel void argmax",
    original: "  if (at.index != 0) return;\n",
    replacement: "",
  },
  {
    title: "threadgroup memory that is not set before it is read",
    kernel: "attention_f32",
    original:
      "  for (uint i = at.index; i < ROW_MATRICES * 64; i += WIDE_THREADS) memory.diagonals[i] = 0.0f;\n",
    replacement: "",
  },
  {
    title: "an output that is read",
    kernel: "rms_norm",
    after: "kernel void rms_norm",
    original: "out[d] = row[d] * factor",
    replacement: "out[d] = 0.0f * out[d] + row[d] * factor",
  },
  {
    title: "an output that is not wholly written",
    kernel: "matmul_affine",
    after: "kernel void matmul_affine_wide",
    original: "if (t < p.T && o < p.O) y",
    replacement: "if (t < p.T && o + 1 < p.O) y",
  },
];

const NUMBERS: readonly ShaderFault[] = [
  {
    title: "a matrix that is not transposed",
    kernel: "gated_matmul_affine",
    after: "static inline void tile_product",
    original: "TILE_STRIDE, ulong2(0), true)",
    replacement: "TILE_STRIDE, ulong2(0), false)",
  },
  {
    title: "sums of half precision",
    kernel: "attention_f32",
    after: "static inline float block_scores",
    original: "dot_product = dot_four(query[i], k, dot_product);",
    replacement: "dot_product = float(half(dot_four(query[i], k, dot_product)));",
  },
  {
    title: "the wrong group of heads",
    kernel: "attention_f16",
    after: "static inline void attend_narrow",
    original: "min(h / (p.H / p.Hkv), p.Hkv - 1)",
    replacement: "min(h % p.Hkv, p.Hkv - 1)",
  },
  {
    title: "the state's decay after the read",
    kernel: "gated_delta",
    after: "kernel void gated_delta",
    original: "      s[i] *= decay;\n      seen = fma(s[i], k[at_key], seen);",
    replacement: "      seen = fma(s[i], k[at_key], seen);\n      s[i] *= decay;",
  },
];

export const SHADER_FAULTS: readonly ShaderFault[] = [
  ...BARRIERS,
  ...BOUNDS,
  ...LANES,
  ...MEMORY,
  ...NUMBERS,
];
