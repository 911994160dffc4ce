#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "../include/mf_kernels.gen.h"
#include "common/attention.h"
#include "common/attention_narrow.h"
#include "common/attention_wide.h"
#include "common/group.h"
using namespace metal;

constant uint attention_f32_dh [[function_constant(MF_CONSTANT_ATTENTION_F32_DH)]];
constant uint attention_f16_dh [[function_constant(MF_CONSTANT_ATTENTION_F16_DH)]];

// y[t, h] = sum_u softmax_u(scale * q[t, h] . keys[u mod R, g]) * values[u mod R, g]; g = h * Hkv / H
// u from max(0, position + t - window + 1) (window 0: from 0) to position + t. Source: arXiv 1706.03762, grouped
// heads: arXiv 2305.13245. Few queries; the grid is (heads, tokens). Everything after loading is float32.
// Tolerance 2e-6 and 5e-6 of the largest value.
[[max_total_threads_per_threadgroup(512)]]
kernel void attention_f32(device const float *q [[buffer(MF_ATTENTION_F32_Q)]],
                          device const float *keys [[buffer(MF_ATTENTION_F32_KEYS)]],
                          device const float *values [[buffer(MF_ATTENTION_F32_VALUES)]],
                          device float *y [[buffer(MF_ATTENTION_F32_Y)]],
                          constant mf_attention_f32_params &p [[buffer(MF_ATTENTION_F32_PARAMS)]],
                          uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 partial[NARROW_SIMDGROUPS * 32];
  threadgroup float tops[NARROW_SIMDGROUPS];
  threadgroup float masses[NARROW_SIMDGROUPS];
  const narrow_memory memory = {partial, tops, masses};
  attend_narrow(q, keys, values, y, p, attention_f32_dh, group.xy, memory, PLACE());
}

// The same over a cache of half precision.
[[max_total_threads_per_threadgroup(512)]]
kernel void attention_f16(device const float *q [[buffer(MF_ATTENTION_F16_Q)]],
                          device const half *keys [[buffer(MF_ATTENTION_F16_KEYS)]],
                          device const half *values [[buffer(MF_ATTENTION_F16_VALUES)]],
                          device float *y [[buffer(MF_ATTENTION_F16_Y)]],
                          constant mf_attention_f16_params &p [[buffer(MF_ATTENTION_F16_PARAMS)]],
                          uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 partial[NARROW_SIMDGROUPS * 32];
  threadgroup float tops[NARROW_SIMDGROUPS];
  threadgroup float masses[NARROW_SIMDGROUPS];
  const narrow_memory memory = {partial, tops, masses};
  attend_narrow(q, keys, values, y, p, attention_f16_dh, group.xy, memory, PLACE());
}

// Many queries; the grid is (tiles of 32 rows, groups of heads).
[[max_total_threads_per_threadgroup(256)]]
kernel void attention_f32_wide(device const float *q [[buffer(MF_ATTENTION_F32_Q)]],
                               device const float *keys [[buffer(MF_ATTENTION_F32_KEYS)]],
                               device const float *values [[buffer(MF_ATTENTION_F32_VALUES)]],
                               device float *y [[buffer(MF_ATTENTION_F32_Y)]],
                               constant mf_attention_f32_params &p [[buffer(MF_ATTENTION_F32_PARAMS)]],
                               uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 memory[WIDE_FLOATS / 4];
  attend_wide(q, keys, values, y, p, attention_f32_dh, group.xy, (threadgroup float *)memory, PLACE());
}

// The same over a cache of half precision.
[[max_total_threads_per_threadgroup(256)]]
kernel void attention_f16_wide(device const float *q [[buffer(MF_ATTENTION_F16_Q)]],
                               device const half *keys [[buffer(MF_ATTENTION_F16_KEYS)]],
                               device const half *values [[buffer(MF_ATTENTION_F16_VALUES)]],
                               device float *y [[buffer(MF_ATTENTION_F16_Y)]],
                               constant mf_attention_f16_params &p [[buffer(MF_ATTENTION_F16_PARAMS)]],
                               uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 memory[WIDE_FLOATS / 4];
  attend_wide(q, keys, values, y, p, attention_f16_dh, group.xy, (threadgroup float *)memory, PLACE());
}
