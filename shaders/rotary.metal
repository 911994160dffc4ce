#include <metal_stdlib>
#include "../include/mf_kernels.gen.h"
#include "common/group.h"
#include "common/numbers.h"
#include "common/sigmoid.h"
using namespace metal;

// Cosine and sine of an angle from 0 to a million. The multiple of pi / 2 is taken off in three parts by
// fused multiply-adds, the first of which is exact, so that large angles lose nothing; then Taylor's
// polynomials on |r| <= pi / 4. Error below 1.2e-7; a library's sine may be off by more than the tolerance.
static inline float2 cosine_and_sine(float angle) {
  const float n = rint(angle * 0.636619772f);
  float r = fma(-n, 1.57079637f, angle);
  r = fma(-n, -4.37113883e-8f, r);
  r = fma(-n, -1.71512451e-15f, r);
  const float s = r * r;
  float sine = fma(s, 2.75573192e-6f, -1.98412698e-4f);
  sine = fma(s, sine, 8.33333333e-3f);
  sine = fma(s, sine, -1.66666667e-1f);
  sine = fma(s * r, sine, r);
  float cosine = fma(s, -2.75573192e-7f, 2.48015873e-5f);
  cosine = fma(s, cosine, -1.38888889e-3f);
  cosine = fma(s, cosine, 4.16666667e-2f);
  cosine = fma(s, cosine, -0.5f);
  cosine = fma(s, cosine, 1.0f);
  const uint quadrant = uint(int(n)) & 3u;
  const float2 turned = (quadrant & 1u) != 0u ? float2(sine, cosine) : float2(cosine, sine);
  const float cosine_sign = quadrant == 1u || quadrant == 2u ? -1.0f : 1.0f;
  const float sine_sign = quadrant >= 2u ? -1.0f : 1.0f;
  return turned * float2(cosine_sign, sine_sign);
}

// table[t, n] = (cos a, sin a); a = float32(float32(position + t) * frequencies[n])
// A thread for each pair; the grid is (blocks of 256 pairs, tokens). Tolerance 2e-7.
[[max_total_threads_per_threadgroup(256)]]
kernel void rope_table(device const float *frequencies [[buffer(MF_ROPE_TABLE_FREQUENCIES)]],
                       device packed_float2 *table [[buffer(MF_ROPE_TABLE_TABLE)]],
                       constant mf_rope_table_params &p [[buffer(MF_ROPE_TABLE_PARAMS)]],
                       uint3 position [[thread_position_in_grid]]) {
  const uint n = position.x, t = position.y;
  if (n >= p.N) return;
  table[ulong(t) * p.N + n] = packed_float2(cosine_and_sine(float(p.position + t) * frequencies[n]));
}

// One head of a SIMD-group: x * rsqrt(mean(x^2) + eps) * weight, its first 2 N components rotated by `pairs`.
// A lane reads in both passes what it writes, so that `to` may be `from`.
template <typename E, typename P>
static inline void write_head(device const float *from, device const ushort *weight, device const float *pairs,
                              device E *to, uint N, constant P &p, uint lane) {
  float squares = 0.0f;
  for (uint i = lane; i < N; i += 32) {
    squares = fma(from[i], from[i], squares);
    squares = fma(from[i + N], from[i + N], squares);
  }
  for (uint i = 2 * N + lane; i < p.Dh; i += 32) squares = fma(from[i], from[i], squares);
  const float factor = precise::rsqrt(simd_sum(squares) / float(p.Dh) + p.eps);
  for (uint i = lane; i < N; i += 32) {
    const float a = from[i] * factor * from_bf16(weight[i]);
    const float b = from[i + N] * factor * from_bf16(weight[i + N]);
    const float cosine = pairs[2 * i], sine = pairs[2 * i + 1];
    to[i] = E(fma(a, cosine, -(b * sine)));
    to[i + N] = E(fma(b, cosine, a * sine));
  }
  for (uint i = 2 * N + lane; i < p.Dh; i += 32) to[i] = E(from[i] * factor * from_bf16(weight[i]));
}

// The values' heads: a norm without weights or none, nothing rotates.
template <typename E, typename P>
static inline void write_value(device const float *from, device E *to, bool is_normed, constant P &p, uint lane) {
  float squares = 0.0f;
  for (uint i = lane; i < p.Dh; i += 32) squares = fma(from[i], from[i], squares);
  const float norm = precise::rsqrt(simd_sum(squares) / float(p.Dh) + p.eps);
  const float factor = is_normed ? norm : 1.0f;
  for (uint i = lane; i < p.Dh; i += 32) to[i] = E(from[i] * factor);
}

template <typename E>
struct qkv_buffers {
  device float *q;
  device const float *k;
  device const float *v;
  device const ushort *q_norm;
  device const ushort *k_norm;
  device const float *table;
  device E *keys;
  device E *values;
  bool norms_values;
};

// Parameters that make no sense: queries become NaN, and the cache stays as it is.
template <typename E, typename P>
static inline void refuse_head(qkv_buffers<E> b, uint head, uint t, constant P &p, uint lane) {
  if (head >= p.H) return;
  device float *q = b.q + (ulong(t) * p.H + head) * p.Dh;
  for (uint i = lane; i < p.Dh; i += 32) q[i] = not_a_number();
}

// Heads 0 .. H - 1 of a token are queries, then Hkv keys, then Hkv values.
template <typename E, typename P>
static inline void epilogue_head(qkv_buffers<E> b, uint head, uint t, constant P &p, uint lane) {
  if (p.T > p.R || 2 * p.N > p.Dh) {
    refuse_head(b, head, t, p, lane);
    return;
  }
  device const float *pairs = b.table + ulong(t) * p.N * 2;
  if (head < p.H) {
    device float *q = b.q + (ulong(t) * p.H + head) * p.Dh;
    write_head(q, b.q_norm, pairs, q, p.N, p, lane);
    return;
  }
  const uint g = (head - p.H) % p.Hkv;
  const ulong from = (ulong(t) * p.Hkv + g) * p.Dh;
  const ulong to = ((ulong(p.position) + t) % p.R * p.Hkv + g) * p.Dh;
  if (head < p.H + p.Hkv) {
    write_head(b.k + from, b.k_norm, pairs, b.keys + to, p.N, p, lane);
  } else {
    write_value(b.v + from, b.values + to, b.norms_values, p, lane);
  }
}

// q[t, h] = rope(N(q[t, h]; qNorm)); keys[slot, g] = rope(N(k[t, g]; kNorm));
// values[slot, g] = N(v[t, g]; 1); slot = (position + t) mod R; component i pairs with i + N.
// Sources: arXiv 1910.07467, arXiv 2104.09864. A SIMD-group for each head; the grid is (heads in fours,
// tokens). Tolerance 1e-6 and 3e-6 of the largest value.
[[max_total_threads_per_threadgroup(128)]]
kernel void qkv_epilogue_f32(device float *q [[buffer(MF_QKV_EPILOGUE_F32_Q)]],
                             device const float *k [[buffer(MF_QKV_EPILOGUE_F32_K)]],
                             device const float *v [[buffer(MF_QKV_EPILOGUE_F32_V)]],
                             device const ushort *q_norm [[buffer(MF_QKV_EPILOGUE_F32_Q_NORM)]],
                             device const ushort *k_norm [[buffer(MF_QKV_EPILOGUE_F32_K_NORM)]],
                             device const float *table [[buffer(MF_QKV_EPILOGUE_F32_TABLE)]],
                             device float *keys [[buffer(MF_QKV_EPILOGUE_F32_KEYS)]],
                             device float *values [[buffer(MF_QKV_EPILOGUE_F32_VALUES)]],
                             constant mf_qkv_epilogue_f32_params &p [[buffer(MF_QKV_EPILOGUE_F32_PARAMS)]],
                             uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const uint head = group.x * at.simdgroups + at.simdgroup;
  if (head >= p.H + 2 * p.Hkv) return;
  const qkv_buffers<float> buffers = {q, k, v, q_norm, k_norm, table, keys, values, true};
  epilogue_head(buffers, head, group.y, p, at.lane);
}

// The same into a cache of half precision, rounded to nearest even. Tolerance 6e-4 of the largest value.
[[max_total_threads_per_threadgroup(128)]]
kernel void qkv_epilogue_f16(device float *q [[buffer(MF_QKV_EPILOGUE_F16_Q)]],
                             device const float *k [[buffer(MF_QKV_EPILOGUE_F16_K)]],
                             device const float *v [[buffer(MF_QKV_EPILOGUE_F16_V)]],
                             device const ushort *q_norm [[buffer(MF_QKV_EPILOGUE_F16_Q_NORM)]],
                             device const ushort *k_norm [[buffer(MF_QKV_EPILOGUE_F16_K_NORM)]],
                             device const float *table [[buffer(MF_QKV_EPILOGUE_F16_TABLE)]],
                             device half *keys [[buffer(MF_QKV_EPILOGUE_F16_KEYS)]],
                             device half *values [[buffer(MF_QKV_EPILOGUE_F16_VALUES)]],
                             constant mf_qkv_epilogue_f16_params &p [[buffer(MF_QKV_EPILOGUE_F16_PARAMS)]],
                             uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const uint head = group.x * at.simdgroups + at.simdgroup;
  if (head >= p.H + 2 * p.Hkv) return;
  const qkv_buffers<half> buffers = {q, k, v, q_norm, k_norm, table, keys, values, true};
  epilogue_head(buffers, head, group.y, p, at.lane);
}

// The same for models whose values have no norm: values[slot, g] = v[t, g].
[[max_total_threads_per_threadgroup(128)]]
kernel void qk_epilogue_f32(device float *q [[buffer(MF_QK_EPILOGUE_F32_Q)]],
                             device const float *k [[buffer(MF_QK_EPILOGUE_F32_K)]],
                             device const float *v [[buffer(MF_QK_EPILOGUE_F32_V)]],
                             device const ushort *q_norm [[buffer(MF_QK_EPILOGUE_F32_Q_NORM)]],
                             device const ushort *k_norm [[buffer(MF_QK_EPILOGUE_F32_K_NORM)]],
                             device const float *table [[buffer(MF_QK_EPILOGUE_F32_TABLE)]],
                             device float *keys [[buffer(MF_QK_EPILOGUE_F32_KEYS)]],
                             device float *values [[buffer(MF_QK_EPILOGUE_F32_VALUES)]],
                             constant mf_qk_epilogue_f32_params &p [[buffer(MF_QK_EPILOGUE_F32_PARAMS)]],
                             uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const uint head = group.x * at.simdgroups + at.simdgroup;
  if (head >= p.H + 2 * p.Hkv) return;
  const qkv_buffers<float> buffers = {q, k, v, q_norm, k_norm, table, keys, values, false};
  epilogue_head(buffers, head, group.y, p, at.lane);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void qk_epilogue_f16(device float *q [[buffer(MF_QK_EPILOGUE_F16_Q)]],
                             device const float *k [[buffer(MF_QK_EPILOGUE_F16_K)]],
                             device const float *v [[buffer(MF_QK_EPILOGUE_F16_V)]],
                             device const ushort *q_norm [[buffer(MF_QK_EPILOGUE_F16_Q_NORM)]],
                             device const ushort *k_norm [[buffer(MF_QK_EPILOGUE_F16_K_NORM)]],
                             device const float *table [[buffer(MF_QK_EPILOGUE_F16_TABLE)]],
                             device half *keys [[buffer(MF_QK_EPILOGUE_F16_KEYS)]],
                             device half *values [[buffer(MF_QK_EPILOGUE_F16_VALUES)]],
                             constant mf_qk_epilogue_f16_params &p [[buffer(MF_QK_EPILOGUE_F16_PARAMS)]],
                             uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const uint head = group.x * at.simdgroups + at.simdgroup;
  if (head >= p.H + 2 * p.Hkv) return;
  const qkv_buffers<half> buffers = {q, k, v, q_norm, k_norm, table, keys, values, false};
  epilogue_head(buffers, head, group.y, p, at.lane);
}

// q[t, h] = pairs[t, h, 0]. A thread for each component; the grid is (components in blocks of 256, tokens). Exact.
[[max_total_threads_per_threadgroup(256)]]
kernel void split_gate(device const float *pairs [[buffer(MF_SPLIT_GATE_PAIRS)]],
                       device float *q [[buffer(MF_SPLIT_GATE_Q)]],
                       constant mf_split_gate_params &p [[buffer(MF_SPLIT_GATE_PARAMS)]],
                       uint3 position [[thread_position_in_grid]]) {
  const uint i = position.x;
  if (i >= p.H * p.Dh) return;
  const ulong row = ulong(position.y) * p.H * p.Dh;
  q[row + i] = pairs[2 * row + 2 * (i / p.Dh) * p.Dh + i % p.Dh];
}

// y[t, h, d] = y[t, h, d] / (1 + exp(-pairs[t, h, 1, d])). The same grid. Tolerance 1e-6 and 2e-6 of the largest
// value. Source: arXiv 2505.06708, section 3.
[[max_total_threads_per_threadgroup(256)]]
kernel void output_gate(device const float *pairs [[buffer(MF_OUTPUT_GATE_PAIRS)]],
                        device float *y [[buffer(MF_OUTPUT_GATE_Y)]],
                        constant mf_output_gate_params &p [[buffer(MF_OUTPUT_GATE_PARAMS)]],
                        uint3 position [[thread_position_in_grid]]) {
  const uint i = position.x;
  if (i >= p.H * p.Dh) return;
  const ulong row = ulong(position.y) * p.H * p.Dh;
  y[row + i] *= sigmoid(pairs[2 * row + (2 * (i / p.Dh) + 1) * p.Dh + i % p.Dh]);
}
