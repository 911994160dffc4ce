#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "../include/mf_kernels.gen.h"
#include "common/activation.h"
#include "common/affine.h"
#include "common/group.h"
#include "common/matrix_product.h"
#include "common/numbers.h"
#include "common/sigmoid.h"
#include "common/vector_product.h"
using namespace metal;

constant uint routed_gate_bits [[function_constant(MF_CONSTANT_ROUTED_GATE_BITS)]];
constant uint routed_gate_activation [[function_constant(MF_CONSTANT_ROUTED_GATE_ACTIVATION)]];
constant uint routed_down_bits [[function_constant(MF_CONSTANT_ROUTED_DOWN_BITS)]];

// ids[t] = K largest of scores[t]; weights[t, k] = softmax_k(scores[t, ids[t]]) * expertScale[ids[t, k]]
// Of equal scores the lower expert comes first. A SIMD-group for each token: in each of K rounds it looks for
// the best expert after the last in the order of choice. A token with a score that is not finite gets experts
// 0 to K - 1 and weights NaN, so that nothing behind it reads out of bounds and its logits tell.
// Tolerance 1e-6 and 2e-6 of the largest weight; ids are exact.
[[max_total_threads_per_threadgroup(32)]]
kernel void router_topk(device const float *scores [[buffer(MF_ROUTER_TOPK_SCORES)]],
                        device const ushort *expert_scale [[buffer(MF_ROUTER_TOPK_EXPERT_SCALE)]],
                        device uint *ids [[buffer(MF_ROUTER_TOPK_IDS)]],
                        device float *weights [[buffer(MF_ROUTER_TOPK_WEIGHTS)]],
                        constant mf_router_topk_params &p [[buffer(MF_ROUTER_TOPK_PARAMS)]],
                        uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint t = group.x;
  device const float *row = scores + ulong(t) * p.E;
  const ulong out = ulong(t) * p.K;
  bool is_broken = p.K > p.E;
  for (uint e = lane; e < p.E; e += 32) is_broken = is_broken || order_key(row[e]) == 0u;
  is_broken = simd_any(is_broken);
  uint last_key = 0xffffffffu, last_id = 0u;
  float top = 0.0f, sum = 0.0f;
  for (uint k = 0; k < p.K; k++) {
    uint key = 0u, id = 0xffffffffu;
    for (uint e = lane; e < p.E; e += 32) {
      const uint other = order_key(row[e]);
      const bool comes_after = other < last_key || (other == last_key && e > last_id);
      if (!comes_after || other <= key) continue;
      key = other;
      id = e;
    }
    last_key = simd_max(key);
    last_id = simd_min(key == last_key ? id : 0xffffffffu);
    if (k == 0) top = from_order_key(last_key);
    const float weight = precise::exp(from_order_key(last_key) - top);
    sum += weight;
    if (lane != k % 32) continue;
    ids[out + k] = is_broken ? k : last_id;
    weights[out + k] = weight;
  }
  // Each lane reads back what it wrote itself.
  for (uint k = lane; k < p.K; k += 32) {
    const float scale = is_broken ? not_a_number() : from_bf16(expert_scale[ids[out + k]]);
    weights[out + k] = weights[out + k] / sum * scale;
  }
}

// The lists of routed experts: a row of `groups` is (slot, first pair, number of pairs, 0). Lists that make no
// sense are passed over rather than followed out of bounds.
struct expert {
  device const uchar *slot;
  device const uint *pairs;
  uint count;
};

static inline expert expert_at(device const uchar *slab, device const uint *groups, device const uint *pairs,
                               uint a, uint3 limits, uint slot_bytes) {
  const uint slot = groups[4 * a], first = groups[4 * a + 1], count = groups[4 * a + 2];
  const bool is_valid = slot < limits.x && count <= limits.y && first <= limits.y - count;
  return expert{slab + ulong(is_valid ? slot : 0u) * slot_bytes, pairs + (is_valid ? first : 0u),
                is_valid ? count : 0u};
}

// Offsets are even, and so are slots.
static inline affine_rows rows_in(device const uchar *slot, uint codes, uint scales, uint biases) {
  return affine_rows{(device const ushort *)(slot + codes), (device const ushort *)(slot + scales),
                     (device const ushort *)(slot + biases)};
}

// From so many pairs on an expert's products are matrices'; fewer would leave most of a tile empty.
enum : uint { TILE_PAIRS_LEAST = 8 };

// Rows [first, end) of gate and up for the pairs of an expert, one vector at a time.
static inline void gate_rows(affine_rows gate, affine_rows up, affine_shape shape, uint2 range, expert of,
                             device const float *x, device float *hidden, constant mf_routed_gate_params &p,
                             place at) {
  const ulong pair_limit = ulong(p.T) * p.K;
  for (uint i = 0; i < of.count; i++) {
    const uint pair = of.pairs[i];
    if (pair >= pair_limit) continue;
    device const float *vector = x + ulong(pair / p.K) * p.D;
    for (uint f = range.x + at.simdgroup * SIMD_ROWS; f < range.y; f += at.simdgroups * SIMD_ROWS) {
      const uint left = range.y - f;
      const gated_products sums =
          row_products(rows_from(gate, shape, f), rows_from(up, shape, f), shape, left, vector, at.lane);
      if (at.lane >= min(uint(SIMD_ROWS), left)) continue;
      hidden[ulong(pair) * p.F + f + at.lane] =
          gated(pick(sums.gate, at.lane), pick(sums.up, at.lane), routed_gate_activation);
    }
  }
}

// hidden[p, f] = act(gate[f] . x[p / K]) * (up[f] . x[p / K]) for each pair p of each group
// Few tokens; the grid is (blocks of 8 features, groups). Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(64)]]
kernel void routed_gate(device const uchar *slab [[buffer(MF_ROUTED_GATE_SLAB)]],
                        device const float *x [[buffer(MF_ROUTED_GATE_X)]],
                        device const uint *groups [[buffer(MF_ROUTED_GATE_GROUPS)]],
                        device const uint *pairs [[buffer(MF_ROUTED_GATE_PAIRS)]],
                        device float *hidden [[buffer(MF_ROUTED_GATE_HIDDEN)]],
                        constant mf_routed_gate_params &p [[buffer(MF_ROUTED_GATE_PARAMS)]],
                        uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const affine_shape shape = shape_of(p.D, routed_gate_bits);
  const expert of = expert_at(slab, groups, pairs, group.y, uint3(p.S, p.P, 0), p.slot_bytes);
  const uint first = group.x * at.simdgroups * SIMD_ROWS;
  const uint2 range = uint2(first, min(first + at.simdgroups * SIMD_ROWS, p.F));
  gate_rows(rows_in(of.slot, p.gate_codes, p.gate_scales, p.gate_biases),
            rows_in(of.slot, p.up_codes, p.up_scales, p.up_biases), shape, range, of, x, hidden, p, at);
}

// The same for many tokens; the grid is (tiles of 32 features, groups).
[[max_total_threads_per_threadgroup(128)]]
kernel void routed_gate_wide(device const uchar *slab [[buffer(MF_ROUTED_GATE_SLAB)]],
                             device const float *x [[buffer(MF_ROUTED_GATE_X)]],
                             device const uint *groups [[buffer(MF_ROUTED_GATE_GROUPS)]],
                             device const uint *pairs [[buffer(MF_ROUTED_GATE_PAIRS)]],
                             device float *hidden [[buffer(MF_ROUTED_GATE_HIDDEN)]],
                             constant mf_routed_gate_params &p [[buffer(MF_ROUTED_GATE_PARAMS)]],
                             uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 memory[TILE_FLOATS / 4];
  threadgroup float *stage = (threadgroup float *)memory;
  const uint FEATURES = TILE_ROWS / 2;
  const place at = PLACE();
  const affine_shape shape = shape_of(p.D, routed_gate_bits);
  const expert of = expert_at(slab, groups, pairs, group.y, uint3(p.S, p.P, 0), p.slot_bytes);
  const uint first = group.x * FEATURES;
  const affine_rows gate = rows_in(of.slot, p.gate_codes, p.gate_scales, p.gate_biases);
  const affine_rows up = rows_in(of.slot, p.up_codes, p.up_scales, p.up_biases);
  if (of.count < TILE_PAIRS_LEAST) {
    gate_rows(gate, up, shape, uint2(first, min(first + FEATURES, p.F)), of, x, hidden, p, at);
    return;
  }
  const ulong pair_limit = ulong(p.T) * p.K;
  const uint row = min(first + staged_row(at) % FEATURES, p.F - 1);
  const affine_rows staged = rows_from(staged_row(at) < FEATURES ? gate : up, shape, row);
  for (uint done = 0; done < of.count; done += TILE_VECTORS) {
    const uint mine = done + staged_vector(at);
    const uint pair = of.pairs[min(mine, of.count - 1)];
    const bool has_x = mine < of.count && pair < pair_limit;
    tile_product(x + ulong(has_x ? pair / p.K : 0u) * p.D, has_x, staged, shape, stage, at);
    for (uint i = at.index; i < TILE_VECTORS * FEATURES; i += at.threads) {
      const uint v = i / FEATURES, f = first + i % FEATURES;
      if (done + v >= of.count || f >= p.F || of.pairs[done + v] >= pair_limit) continue;
      threadgroup const float *both = stage + v * TILE_ROWS + i % FEATURES;
      hidden[ulong(of.pairs[done + v]) * p.F + f] = gated(both[0], both[FEATURES], routed_gate_activation);
    }
    // The next tile is staged where this one's result lies.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Rows [first, end) of down for the pairs of an expert, one vector at a time.
static inline void down_rows(affine_rows down, affine_shape shape, uint2 range, expert of,
                             device const float *hidden, device float *y, constant mf_routed_down_params &p,
                             place at) {
  const ulong pair_limit = ulong(p.T) * p.K;
  for (uint i = 0; i < of.count; i++) {
    const uint pair = of.pairs[i];
    if (pair >= pair_limit) continue;
    device const float *vector = hidden + ulong(pair) * p.F;
    for (uint d = range.x + at.simdgroup * SIMD_ROWS; d < range.y; d += at.simdgroups * SIMD_ROWS) {
      const uint left = range.y - d;
      const float4 sums = row_products(rows_from(down, shape, d), shape, left, vector, at.lane);
      if (at.lane < min(uint(SIMD_ROWS), left)) y[ulong(pair) * p.D + d + at.lane] = pick(sums, at.lane);
    }
  }
}

// y[p, d] = down[d] . hidden[p] for each pair p of each group
// Few tokens; the grid is (blocks of 8 components, groups). Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(64)]]
kernel void routed_down(device const uchar *slab [[buffer(MF_ROUTED_DOWN_SLAB)]],
                        device const float *hidden [[buffer(MF_ROUTED_DOWN_HIDDEN)]],
                        device const uint *groups [[buffer(MF_ROUTED_DOWN_GROUPS)]],
                        device const uint *pairs [[buffer(MF_ROUTED_DOWN_PAIRS)]],
                        device float *y [[buffer(MF_ROUTED_DOWN_Y)]],
                        constant mf_routed_down_params &p [[buffer(MF_ROUTED_DOWN_PARAMS)]],
                        uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const affine_shape shape = shape_of(p.F, routed_down_bits);
  const expert of = expert_at(slab, groups, pairs, group.y, uint3(p.S, p.P, 0), p.slot_bytes);
  const uint first = group.x * at.simdgroups * SIMD_ROWS;
  const uint2 range = uint2(first, min(first + at.simdgroups * SIMD_ROWS, p.D));
  down_rows(rows_in(of.slot, p.codes, p.scales, p.biases), shape, range, of, hidden, y, p, at);
}

// The same for many tokens; the grid is (tiles of 64 components, groups).
[[max_total_threads_per_threadgroup(128)]]
kernel void routed_down_wide(device const uchar *slab [[buffer(MF_ROUTED_DOWN_SLAB)]],
                             device const float *hidden [[buffer(MF_ROUTED_DOWN_HIDDEN)]],
                             device const uint *groups [[buffer(MF_ROUTED_DOWN_GROUPS)]],
                             device const uint *pairs [[buffer(MF_ROUTED_DOWN_PAIRS)]],
                             device float *y [[buffer(MF_ROUTED_DOWN_Y)]],
                             constant mf_routed_down_params &p [[buffer(MF_ROUTED_DOWN_PARAMS)]],
                             uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float4 memory[TILE_FLOATS / 4];
  threadgroup float *stage = (threadgroup float *)memory;
  const place at = PLACE();
  const affine_shape shape = shape_of(p.F, routed_down_bits);
  const expert of = expert_at(slab, groups, pairs, group.y, uint3(p.S, p.P, 0), p.slot_bytes);
  const uint first = group.x * TILE_ROWS;
  const affine_rows down = rows_in(of.slot, p.codes, p.scales, p.biases);
  if (of.count < TILE_PAIRS_LEAST) {
    down_rows(down, shape, uint2(first, min(first + TILE_ROWS, p.D)), of, hidden, y, p, at);
    return;
  }
  const ulong pair_limit = ulong(p.T) * p.K;
  const affine_rows staged = rows_from(down, shape, min(first + staged_row(at), p.D - 1));
  for (uint done = 0; done < of.count; done += TILE_VECTORS) {
    const uint mine = done + staged_vector(at);
    const uint pair = of.pairs[min(mine, of.count - 1)];
    const bool has_x = mine < of.count && pair < pair_limit;
    tile_product(hidden + ulong(has_x ? pair : 0u) * p.F, has_x, staged, shape, stage, at);
    for (uint i = at.index; i < TILE_VECTORS * TILE_ROWS; i += at.threads) {
      const uint v = i / TILE_ROWS, d = first + i % TILE_ROWS;
      if (done + v >= of.count || d >= p.D || of.pairs[done + v] >= pair_limit) continue;
      y[ulong(of.pairs[done + v]) * p.D + d] = stage[i];
    }
    // The next tile is staged where this one's result lies.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// y[t, d] = sum_k weights[t, k] * experts[t * K + k, d], k ascending
// The grid is (blocks of 256 components, tokens). Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void routed_reduce(device const float *experts [[buffer(MF_ROUTED_REDUCE_EXPERTS)]],
                          device const float *weights [[buffer(MF_ROUTED_REDUCE_WEIGHTS)]],
                          device float *y [[buffer(MF_ROUTED_REDUCE_Y)]],
                          constant mf_routed_reduce_params &p [[buffer(MF_ROUTED_REDUCE_PARAMS)]],
                          uint3 position [[thread_position_in_grid]]) {
  const uint d = position.x, t = position.y;
  if (d >= p.D) return;
  const ulong first = ulong(t) * p.K;
  float sum = 0.0f;
  for (uint k = 0; k < p.K; k++) sum = fma(weights[first + k], experts[(first + k) * p.D + d], sum);
  y[ulong(t) * p.D + d] = sum;
}

// y[t, d] = routed[t, d] + shared[t, d] / (1 + exp(-gate[t]))
// A thread for each component; the grid is (components in blocks of 256, tokens). Tolerance 1e-6 and 2e-6 of the
// largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void gated_shared(device const float *routed [[buffer(MF_GATED_SHARED_ROUTED)]],
                         device const float *shared [[buffer(MF_GATED_SHARED_SHARED)]],
                         device const float *gate [[buffer(MF_GATED_SHARED_GATE)]],
                         device float *y [[buffer(MF_GATED_SHARED_Y)]],
                         constant mf_gated_shared_params &p [[buffer(MF_GATED_SHARED_PARAMS)]],
                         uint3 position [[thread_position_in_grid]]) {
  const uint d = position.x;
  if (d >= p.D) return;
  const ulong at = ulong(position.y) * p.D + d;
  y[at] = fma(sigmoid(gate[position.y]), shared[at], routed[at]);
}

// groups[p] = (table[ids[p]], p, 1, 0)
// A thread for each pair; the grid is (pairs in blocks of 32). An expert that the layer does not have, or that is
// in no slot, gets a row that routed_gate and routed_down pass over. Exact.
[[max_total_threads_per_threadgroup(32)]]
kernel void slot_lookup(device const uint *ids [[buffer(MF_SLOT_LOOKUP_IDS)]],
                        device const uint *table [[buffer(MF_SLOT_LOOKUP_TABLE)]],
                        device uint *groups [[buffer(MF_SLOT_LOOKUP_GROUPS)]],
                        constant mf_slot_lookup_params &p [[buffer(MF_SLOT_LOOKUP_PARAMS)]],
                        uint3 position [[thread_position_in_grid]]) {
  const uint i = position.x;
  if (i >= p.P) return;
  const uint slot = ids[i] < p.E ? table[ids[i]] : 0xffffffffu;
  groups[4 * i] = slot < p.S ? slot : 0xffffffffu;
  groups[4 * i + 1] = i;
  groups[4 * i + 2] = 1u;
  groups[4 * i + 3] = 0u;
}
