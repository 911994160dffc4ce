#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "../include/mf_kernels.gen.h"
#include "common/activation.h"
#include "common/affine.h"
#include "common/group.h"
#include "common/matrix_product.h"
#include "common/vector_product.h"
using namespace metal;

constant uint matmul_bits [[function_constant(MF_CONSTANT_MATMUL_AFFINE_BITS)]];
constant uint gated_matmul_bits [[function_constant(MF_CONSTANT_GATED_MATMUL_AFFINE_BITS)]];
constant uint gated_matmul_activation [[function_constant(MF_CONSTANT_GATED_MATMUL_AFFINE_ACTIVATION)]];

// y[t, o] = sum_i (scale[o, i / 64] * code[o, i] + bias[o, i / 64]) * x[t, i]
// Few tokens: two SIMD-groups of SIMD_ROWS rows; the grid is (blocks of 8 rows, tokens). x and the sums are
// float32 whatever `activationBits` allows. Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(64)]]
kernel void matmul_affine(device const float *x [[buffer(MF_MATMUL_AFFINE_X)]],
                          device const ushort *codes [[buffer(MF_MATMUL_AFFINE_CODES)]],
                          device const ushort *scales [[buffer(MF_MATMUL_AFFINE_SCALES)]],
                          device const ushort *biases [[buffer(MF_MATMUL_AFFINE_BIASES)]],
                          device float *y [[buffer(MF_MATMUL_AFFINE_Y)]],
                          constant mf_matmul_affine_params &p [[buffer(MF_MATMUL_AFFINE_PARAMS)]],
                          uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const affine_shape shape = shape_of(p.I, matmul_bits);
  const uint first = (group.x * at.simdgroups + at.simdgroup) * SIMD_ROWS, t = group.y;
  if (first >= p.O) return;
  const uint left = p.O - first;
  const affine_rows rows = rows_from(affine_rows{codes, scales, biases}, shape, first);
  const float4 sums = row_products(rows, shape, left, x + ulong(t) * p.I, at.lane);
  if (at.lane < min(uint(SIMD_ROWS), left)) y[ulong(t) * p.O + first + at.lane] = pick(sums, at.lane);
}

// The same for many tokens; the grid is (tiles of 32 tokens, tiles of 64 rows).
[[max_total_threads_per_threadgroup(128)]]
kernel void matmul_affine_wide(device const float *x [[buffer(MF_MATMUL_AFFINE_X)]],
                               device const ushort *codes [[buffer(MF_MATMUL_AFFINE_CODES)]],
                               device const ushort *scales [[buffer(MF_MATMUL_AFFINE_SCALES)]],
                               device const ushort *biases [[buffer(MF_MATMUL_AFFINE_BIASES)]],
                               device float *y [[buffer(MF_MATMUL_AFFINE_Y)]],
                               constant mf_matmul_affine_params &p [[buffer(MF_MATMUL_AFFINE_PARAMS)]],
                               uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 memory[TILE_FLOATS / 4];
  threadgroup float *stage = (threadgroup float *)memory;
  const place at = PLACE();
  const affine_shape shape = shape_of(p.I, matmul_bits);
  const uint first_token = group.x * TILE_VECTORS, first_row = group.y * TILE_ROWS;
  const uint token = min(first_token + staged_vector(at), p.T - 1);
  const bool has_x = first_token + staged_vector(at) < p.T;
  const uint row = min(first_row + staged_row(at), p.O - 1);
  tile_product(x + ulong(token) * p.I, has_x, rows_from(affine_rows{codes, scales, biases}, shape, row), shape,
               stage, at);
  for (uint i = at.index; i < TILE_VECTORS * TILE_ROWS; i += at.threads) {
    const uint t = first_token + i / TILE_ROWS, o = first_row + i % TILE_ROWS;
    if (t < p.T && o < p.O) y[ulong(t) * p.O + o] = stage[i];
  }
}

// y[t, f] = act(sum_i gate[f, i] * x[t, i]) * (sum_i up[f, i] * x[t, i])
// As matmul_affine, gate and up rows together. Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(64)]]
kernel void gated_matmul_affine(device const float *x [[buffer(MF_GATED_MATMUL_AFFINE_X)]],
                                device const ushort *gate_codes [[buffer(MF_GATED_MATMUL_AFFINE_GATE_CODES)]],
                                device const ushort *gate_scales [[buffer(MF_GATED_MATMUL_AFFINE_GATE_SCALES)]],
                                device const ushort *gate_biases [[buffer(MF_GATED_MATMUL_AFFINE_GATE_BIASES)]],
                                device const ushort *up_codes [[buffer(MF_GATED_MATMUL_AFFINE_UP_CODES)]],
                                device const ushort *up_scales [[buffer(MF_GATED_MATMUL_AFFINE_UP_SCALES)]],
                                device const ushort *up_biases [[buffer(MF_GATED_MATMUL_AFFINE_UP_BIASES)]],
                                device float *y [[buffer(MF_GATED_MATMUL_AFFINE_Y)]],
                                constant mf_gated_matmul_affine_params &p [[buffer(MF_GATED_MATMUL_AFFINE_PARAMS)]],
                                uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const affine_shape shape = shape_of(p.I, gated_matmul_bits);
  const uint first = (group.x * at.simdgroups + at.simdgroup) * SIMD_ROWS, t = group.y;
  if (first >= p.F) return;
  const uint left = p.F - first;
  const gated_products sums =
      row_products(rows_from(affine_rows{gate_codes, gate_scales, gate_biases}, shape, first),
                   rows_from(affine_rows{up_codes, up_scales, up_biases}, shape, first), shape, left,
                   x + ulong(t) * p.I, at.lane);
  if (at.lane >= min(uint(SIMD_ROWS), left)) return;
  y[ulong(t) * p.F + first + at.lane] =
      gated(pick(sums.gate, at.lane), pick(sums.up, at.lane), gated_matmul_activation);
}

// The same for many tokens; the grid is (tiles of 32 tokens, tiles of 32 features): half of a tile's rows are
// the gate's, half those of up.
[[max_total_threads_per_threadgroup(128)]]
kernel void gated_matmul_affine_wide(
    device const float *x [[buffer(MF_GATED_MATMUL_AFFINE_X)]],
    device const ushort *gate_codes [[buffer(MF_GATED_MATMUL_AFFINE_GATE_CODES)]],
    device const ushort *gate_scales [[buffer(MF_GATED_MATMUL_AFFINE_GATE_SCALES)]],
    device const ushort *gate_biases [[buffer(MF_GATED_MATMUL_AFFINE_GATE_BIASES)]],
    device const ushort *up_codes [[buffer(MF_GATED_MATMUL_AFFINE_UP_CODES)]],
    device const ushort *up_scales [[buffer(MF_GATED_MATMUL_AFFINE_UP_SCALES)]],
    device const ushort *up_biases [[buffer(MF_GATED_MATMUL_AFFINE_UP_BIASES)]],
    device float *y [[buffer(MF_GATED_MATMUL_AFFINE_Y)]],
    constant mf_gated_matmul_affine_params &p [[buffer(MF_GATED_MATMUL_AFFINE_PARAMS)]],
    uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 memory[TILE_FLOATS / 4];
  threadgroup float *stage = (threadgroup float *)memory;
  const uint FEATURES = TILE_ROWS / 2;
  const place at = PLACE();
  const affine_shape shape = shape_of(p.I, gated_matmul_bits);
  const uint first_token = group.x * TILE_VECTORS, first = group.y * FEATURES;
  const uint token = min(first_token + staged_vector(at), p.T - 1);
  const bool has_x = first_token + staged_vector(at) < p.T;
  const bool is_gate = staged_row(at) < FEATURES;
  const affine_rows matrix = {is_gate ? gate_codes : up_codes, is_gate ? gate_scales : up_scales,
                              is_gate ? gate_biases : up_biases};
  const uint row = min(first + staged_row(at) % FEATURES, p.F - 1);
  tile_product(x + ulong(token) * p.I, has_x, rows_from(matrix, shape, row), shape, stage, at);
  for (uint i = at.index; i < TILE_VECTORS * FEATURES; i += at.threads) {
    const uint v = i / FEATURES, t = first_token + v, f = first + i % FEATURES;
    if (t >= p.T || f >= p.F) continue;
    threadgroup const float *both = stage + v * TILE_ROWS + i % FEATURES;
    y[ulong(t) * p.F + f] = gated(both[0], both[FEATURES], gated_matmul_activation);
  }
}
