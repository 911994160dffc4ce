#include <metal_stdlib>
#include "../include/mf_kernels.gen.h"
#include "common/group.h"
#include "common/numbers.h"
#include "common/sigmoid.h"
using namespace metal;

// Linear attention by the gated delta rule: the convolution before it, its gates, the recurrence and the norm
// after it. Sources: arXiv 2412.06464, arXiv 2312.00752.

constant uint delta_keys [[function_constant(MF_CONSTANT_GATED_DELTA_DK)]];

enum : uint { CONV_TAPS_MAX = 8, KEY_PARTS_MAX = 8 };

// y[t, c] = silu(sum_j weight[c, j] * x[t - J + j, c]), rows before the first from tail; tail = the last J rows
// of (tail, x). A thread for each channel, which carries the rows before in registers: nobody else touches its
// part of the tail. Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(64)]]
kernel void causal_conv(device const float *x [[buffer(MF_CAUSAL_CONV_X)]],
                        device const ushort *weight [[buffer(MF_CAUSAL_CONV_WEIGHT)]],
                        device float *tail [[buffer(MF_CAUSAL_CONV_TAIL)]],
                        device float *y [[buffer(MF_CAUSAL_CONV_Y)]],
                        constant mf_causal_conv_params &p [[buffer(MF_CAUSAL_CONV_PARAMS)]],
                        uint3 position [[thread_position_in_grid]]) {
  const uint c = position.x;
  if (c >= p.C) return;
  const bool is_valid = p.K >= 1 && p.K <= CONV_TAPS_MAX && p.J == p.K - 1;
  if (!is_valid) {
    for (uint t = 0; t < p.T; t++) y[ulong(t) * p.C + c] = not_a_number();
    return;
  }
  float taps[CONV_TAPS_MAX], rows[CONV_TAPS_MAX];
  for (uint k = 0; k < p.K; k++) taps[k] = from_bf16(weight[ulong(c) * p.K + k]);
  for (uint j = 0; j < p.J; j++) rows[j] = tail[ulong(j) * p.C + c];
  for (uint t = 0; t < p.T; t++) {
    rows[p.J] = x[ulong(t) * p.C + c];
    float sum = 0.0f;
    for (uint k = 0; k < p.K; k++) sum = fma(taps[k], rows[k], sum);
    y[ulong(t) * p.C + c] = sum * sigmoid(sum);
    for (uint j = 0; j < p.J; j++) rows[j] = rows[j + 1];
  }
  for (uint j = 0; j < p.J; j++) tail[ulong(j) * p.C + c] = rows[j];
}

// q = q / sqrt(sum q^2 + eps) / sqrt(Dk); k = k / sqrt(sum k^2 + eps);
// alpha[t, h] = -exp(aLog[h]) * softplus(alpha[t, h] + dtBias[h]); beta = 1 / (1 + exp(-beta))
// A threadgroup for each token, a SIMD-group for each of its heads in turn. Tolerance 1e-6 and 2e-6 of the
// largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void delta_prepare(device float *mixed [[buffer(MF_DELTA_PREPARE_MIXED)]],
                          device float *alpha [[buffer(MF_DELTA_PREPARE_ALPHA)]],
                          device float *beta [[buffer(MF_DELTA_PREPARE_BETA)]],
                          device const ushort *a_log [[buffer(MF_DELTA_PREPARE_A_LOG)]],
                          device const ushort *dt_bias [[buffer(MF_DELTA_PREPARE_DT_BIAS)]],
                          constant mf_delta_prepare_params &p [[buffer(MF_DELTA_PREPARE_PARAMS)]],
                          uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const ulong t = group.x;
  // Heads that do not fit their row: the gates become NaN and the row stays as it is.
  const bool is_valid = 2 * ulong(p.Hk) * p.Dk <= p.C;
  for (uint h = at.simdgroup; is_valid && h < 2 * p.Hk; h += at.simdgroups) {
    device float *head = mixed + t * p.C + ulong(h) * p.Dk;
    float squares = 0.0f;
    for (uint i = at.lane; i < p.Dk; i += 32) squares = fma(head[i], head[i], squares);
    const float length = precise::rsqrt(simd_sum(squares) + p.eps);
    const float factor = h < p.Hk ? length * precise::rsqrt(float(p.Dk)) : length;
    for (uint i = at.lane; i < p.Dk; i += 32) head[i] *= factor;
  }
  for (uint h = at.index; h < p.Hv; h += at.threads) {
    const ulong gate = t * p.Hv + h;
    const float x = alpha[gate] + from_bf16(dt_bias[h]);
    const float softplus = max(x, 0.0f) + precise::log(1.0f + precise::exp(-abs(x)));
    alpha[gate] = is_valid ? -precise::exp(from_bf16(a_log[h])) * softplus : not_a_number();
    beta[gate] = sigmoid(beta[gate]);
  }
}

// S = exp(alpha[t, h]) * S; S = S + beta[t, h] * (v - S k) k^T; y[t, h] = S q, for t ascending; state[h] = S
// A SIMD-group for each row of a head's state, which stays in its registers through all tokens; rows do not
// depend on each other. The grid is (rows in eights, heads). Tolerance 1e-6 and 1e-5 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void gated_delta(device const float *mixed [[buffer(MF_GATED_DELTA_MIXED)]],
                        device const float *alpha [[buffer(MF_GATED_DELTA_ALPHA)]],
                        device const float *beta [[buffer(MF_GATED_DELTA_BETA)]],
                        device float *state [[buffer(MF_GATED_DELTA_STATE)]],
                        device float *y [[buffer(MF_GATED_DELTA_Y)]],
                        constant mf_gated_delta_params &p [[buffer(MF_GATED_DELTA_PARAMS)]],
                        uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const uint d = group.x * at.simdgroups + at.simdgroup, h = group.y;
  if (d >= p.Dv) return;
  const uint keys = p.Hk * delta_keys;
  const bool is_valid = p.Hk != 0 && p.Hv % p.Hk == 0 && delta_keys <= 32 * KEY_PARTS_MAX &&
                        2 * ulong(keys) + ulong(p.Hv) * p.Dv <= p.C;
  if (!is_valid) {
    for (uint t = 0; t < p.T; t++) {
      if (at.lane == 0) y[(ulong(t) * p.Hv + h) * p.Dv + d] = not_a_number();
    }
    return;
  }
  device float *kept = state + (ulong(h) * p.Dv + d) * delta_keys;
  const uint key = h / (p.Hv / p.Hk) * delta_keys;
  float s[KEY_PARTS_MAX];
  for (uint i = 0; i < KEY_PARTS_MAX; i++) {
    const uint at_key = 32 * i + at.lane;
    s[i] = at_key < delta_keys ? kept[at_key] : 0.0f;
  }
  for (uint t = 0; t < p.T; t++) {
    device const float *q = mixed + ulong(t) * p.C + key;
    device const float *k = q + keys;
    const ulong gate = ulong(t) * p.Hv + h;
    const float decay = precise::exp(alpha[gate]);
    float seen = 0.0f;
    for (uint i = 0; i < KEY_PARTS_MAX; i++) {
      const uint at_key = 32 * i + at.lane;
      if (at_key >= delta_keys) continue;
      s[i] *= decay;
      seen = fma(s[i], k[at_key], seen);
    }
    const float value = mixed[ulong(t) * p.C + 2 * keys + h * p.Dv + d];
    const float delta = beta[gate] * (value - simd_sum(seen));
    float out = 0.0f;
    for (uint i = 0; i < KEY_PARTS_MAX; i++) {
      const uint at_key = 32 * i + at.lane;
      if (at_key >= delta_keys) continue;
      s[i] = fma(delta, k[at_key], s[i]);
      out = fma(s[i], q[at_key], out);
    }
    out = simd_sum(out);
    if (at.lane == 0) y[gate * p.Dv + d] = out;
  }
  for (uint i = 0; i < KEY_PARTS_MAX; i++) {
    const uint at_key = 32 * i + at.lane;
    if (at_key < delta_keys) kept[at_key] = s[i];
  }
}

// y[t, h, d] = N(x[t, h]; weight)[d] * silu(gate[t, h, d])
// A SIMD-group for each head; the grid is (heads in fours, tokens). Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(128)]]
kernel void gated_norm(device const float *x [[buffer(MF_GATED_NORM_X)]],
                       device const float *gate [[buffer(MF_GATED_NORM_GATE)]],
                       device const ushort *weight [[buffer(MF_GATED_NORM_WEIGHT)]],
                       device float *y [[buffer(MF_GATED_NORM_Y)]],
                       constant mf_gated_norm_params &p [[buffer(MF_GATED_NORM_PARAMS)]],
                       uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const uint h = group.x * at.simdgroups + at.simdgroup;
  if (h >= p.H) return;
  const ulong head = (ulong(group.y) * p.H + h) * p.D;
  float squares = 0.0f;
  for (uint i = at.lane; i < p.D; i += 32) squares = fma(x[head + i], x[head + i], squares);
  const float factor = precise::rsqrt(simd_sum(squares) / float(p.D) + p.eps);
  for (uint i = at.lane; i < p.D; i += 32) {
    const float z = gate[head + i];
    y[head + i] = x[head + i] * factor * from_bf16(weight[i]) * (z * sigmoid(z));
  }
}
