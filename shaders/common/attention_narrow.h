// Attention of few queries: a threadgroup for each (token, head), whose SIMD-groups take every NARROW_SIMDGROUPS-th
// block of 32 keys with a softmax of their own, so that a long cache is read by many at once. Lanes share the
// components of a key; each then keeps the score of one key of the block. Partial results are put together in
// the order of the SIMD-groups.
#ifndef ATTENTION_NARROW_H
#define ATTENTION_NARROW_H
#include <metal_stdlib>
#include "affine.h"
#include "attention.h"
#include "group.h"
using namespace metal;

enum : uint { NARROW_SIMDGROUPS = 16, LANE_FOURS = DH_MAX / 128 };

struct narrow_memory {
  threadgroup float4 *partial;  // [NARROW_SIMDGROUPS, 32]
  threadgroup float *tops;      // [NARROW_SIMDGROUPS]
  threadgroup float *masses;
};

// Four components of a row that a lane holds: lane + 32 i.
static inline bool has_four(uint i, uint lane, uint Dh) { return 128 * (i + 1) <= Dh || 4 * (lane + 32 * i) < Dh; }

// A SIMD-group's softmax so far: the largest score, the sum of exponentials, and in each lane its part of
// their sum with the values.
struct running {
  float top, mass;
  float4 sum[LANE_FOURS];
};

// The score of key `lane` of a block.
template <typename E>
static inline float block_scores(device const E *keys, thread const float4 *query, uint2 block, uint stride,
                                 uint3 shape, uint lane) {
  float score = LOWEST;
  for (uint j = 0; j < block.y; j += 4) {
    float4 dots = float4(0.0f);
#pragma unroll
    for (uint n = 0; n < 4; n++) {
      device const E *row = keys + ulong(slot_after(block.x, min(j + n, block.y - 1), shape.y)) * stride;
      float dot_product = 0.0f;
#pragma unroll
      for (uint i = 0; i < LANE_FOURS; i++) {
        if (128 * i >= shape.x) continue;
        if (!has_four(i, lane, shape.x)) continue;
        const float4 k = load_four(row + 4 * (lane + 32 * i));
        dot_product = dot_four(query[i], k, dot_product);
      }
      dots[n] = dot_product;
    }
    dots = simd_sum(dots);
    const float mine = lane % 4 == 0 ? dots.x : lane % 4 == 1 ? dots.y : lane % 4 == 2 ? dots.z : dots.w;
    if (lane / 4 == j / 4) score = mine;
  }
  return score;
}

// Adds a block's values, weighted by the lanes' exponentials.
template <typename E>
static inline void add_values(device const E *values, thread running &now, float weight, uint2 block, uint stride,
                              uint3 shape, uint lane) {
  for (uint j = 0; j < block.y; j += 4) {
#pragma unroll
    for (uint n = 0; n < 4; n++) {
      const float w = simd_shuffle(weight, ushort(j + n));
      device const E *row = values + ulong(slot_after(block.x, min(j + n, block.y - 1), shape.y)) * stride;
#pragma unroll
      for (uint i = 0; i < LANE_FOURS; i++) {
        if (128 * i >= shape.x) continue;
        if (has_four(i, lane, shape.x)) now.sum[i] = fma(float4(w), load_four(row + 4 * (lane + 32 * i)), now.sum[i]);
      }
    }
  }
}

// Puts the SIMD-groups' results together and writes y, 128 components at a time.
static inline void write_combined(thread running &now, device float *y, narrow_memory memory, uint Dh, float unit,
                                  place at) {
  if (at.lane == 0) {
    memory.tops[at.simdgroup] = now.top;
    memory.masses[at.simdgroup] = now.mass;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float top = LOWEST, mass = 0.0f;
  for (uint s = 0; s < NARROW_SIMDGROUPS; s++) top = max(top, memory.tops[s]);
  for (uint s = 0; s < NARROW_SIMDGROUPS; s++) mass = fma(memory.masses[s], precise::exp(memory.tops[s] - top), mass);
  const float factor = precise::exp(now.top - top) / mass * unit;
  threadgroup const float *partial = (threadgroup const float *)memory.partial;
#pragma unroll
  for (uint i = 0; i < LANE_FOURS; i++) {
    if (128 * i >= Dh) continue;
    memory.partial[32 * at.simdgroup + at.lane] = now.sum[i] * factor;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint d = 128 * i + at.index;
    if (at.index < 128 && d < Dh) {
      float sum = 0.0f;
      for (uint s = 0; s < NARROW_SIMDGROUPS; s++) sum += partial[128 * s + at.index];
      y[d] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

template <typename E, typename P>
static inline void attend_narrow(device const float *q, device const E *keys, device const E *values,
                                 device float *y, constant P &p, uint Dh, uint2 group, narrow_memory memory,
                                 place at) {
  const uint h = group.x, t = group.y, g = min(h / (p.H / p.Hkv), p.Hkv - 1);
  const ulong head = (ulong(t) * p.H + h) * Dh;
  const key_range range = visible(t, p);
  const uint stride = p.Hkv * Dh;
  const uint3 shape = uint3(Dh, p.R, 0);
  float4 query[LANE_FOURS];
  running now;
  now.top = LOWEST;
  now.mass = 0.0f;
#pragma unroll
  for (uint i = 0; i < LANE_FOURS; i++) {
    now.sum[i] = float4(0.0f);
    query[i] = float4(0.0f);
    if (128 * i < Dh && has_four(i, at.lane, Dh)) query[i] = load_four(q + head + 4 * (at.lane + 32 * i)) * p.scale;
  }
  for (uint u = range.first + KEY_BLOCK * at.simdgroup; u < range.end; u += KEY_BLOCK * NARROW_SIMDGROUPS) {
    const uint2 block = uint2(u % p.R, min(uint(KEY_BLOCK), range.end - u));
    const float score = block_scores(keys + g * Dh, query, block, stride, shape, at.lane);
    const bool is_seen = at.lane < block.y;
    const float top = max(now.top, simd_max(is_seen ? score : LOWEST));
    const float weight = is_seen ? precise::exp(score - top) : 0.0f;
    const float rescale = precise::exp(now.top - top);
    now.top = top;
    now.mass = fma(now.mass, rescale, simd_sum(weight));
#pragma unroll
    for (uint i = 0; i < LANE_FOURS; i++) now.sum[i] *= rescale;
    add_values(values + g * Dh, now, weight, block, stride, shape, at.lane);
  }
  write_combined(now, y + head, memory, Dh, unit(p, Dh), at);
}
#endif
