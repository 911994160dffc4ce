// Attention of many queries by 8x8 matrices in float32. A threadgroup takes 32 rows of one group of heads (row
// r: token r / heads, head r % heads), which share every key and value. For each block of 32 keys: scores, from
// 64 components at a time of queries and keys staged in threadgroup memory; the running softmax of each row;
// and values, staged in the same way. The sums of a SIMD-group are 8 components of every 64, for all rows. A
// row's sums are multiplied as a block changes its maximum, by a diagonal matrix.
// The loops over a SIMD-group's matrices must unroll: matrices in registers cannot be indexed.
// Source of the running softmax: arXiv 1805.02867; in blocks: arXiv 2205.14135.
#ifndef ATTENTION_WIDE_H
#define ATTENTION_WIDE_H
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "attention.h"
#include "group.h"
using namespace metal;

enum : uint {
  WIDE_ROWS = 32,
  WIDE_THREADS = 256,  // eight SIMD-groups
  CHUNK = 64,          // components at a time
  CHUNKS_MAX = DH_MAX / CHUNK,
  CHUNK_STRIDE = CHUNK + 4,
  SCORE_STRIDE = KEY_BLOCK + 4,
  ROW_MATRICES = WIDE_ROWS / 8,
};
// Parts of the threadgroup memory of an attention, in floats; each begins at a multiple of 16 bytes.
enum : uint {
  WIDE_QUERIES = 0,
  WIDE_CACHE = WIDE_QUERIES + WIDE_ROWS * CHUNK_STRIDE,
  WIDE_SCORES = WIDE_CACHE + KEY_BLOCK * CHUNK_STRIDE,
  WIDE_DIAGONALS = WIDE_SCORES + WIDE_ROWS * SCORE_STRIDE,
  WIDE_CHANGED = WIDE_DIAGONALS + ROW_MATRICES * 64,  // for each SIMD-group, whether it changed a maximum
  WIDE_FLOATS = WIDE_CHANGED + 8,
};

// The rows of a threadgroup, and the keys that any of them sees.
struct wide_tile {
  uint g;      // group of heads
  uint heads;  // of the group
  uint row;    // first row
  uint rows;
  key_range keys;
};

template <typename P>
static inline wide_tile tile_at(uint2 group, constant P &p) {
  wide_tile tile;
  tile.g = group.y;
  tile.heads = p.H / p.Hkv;
  tile.row = group.x * WIDE_ROWS;
  tile.rows = min(uint(WIDE_ROWS), p.T * tile.heads - tile.row);
  tile.keys.first = visible(tile.row / tile.heads, p).first;
  tile.keys.end = visible((tile.row + tile.rows - 1) / tile.heads, p).end;
  return tile;
}

// Where a row's query, and its result, begin.
template <typename P>
static inline ulong row_offset(wide_tile tile, uint r, uint Dh, constant P &p) {
  const uint row = tile.row + r;
  return (ulong(row / tile.heads) * p.H + tile.g * tile.heads + row % tile.heads) * Dh;
}

// A thread stages 8 components of one row, of one key. Components beyond Dh are zeros.
template <typename P>
static inline void stage_queries(device const float *q, wide_tile tile, uint first, uint Dh, constant P &p,
                                 threadgroup float *to, place at) {
  const uint r = at.index / 8, d = at.index % 8 * 8;
  const bool is_there = r < tile.rows && first + d < Dh;
  device const float *from = q + row_offset(tile, is_there ? r : 0u, Dh, p) + (is_there ? first + d : 0u);
  const float4 none = float4(0.0f);
  threadgroup float4 *out = (threadgroup float4 *)(to + r * CHUNK_STRIDE + d);
  out[0] = is_there ? load_four(from) : none;
  out[1] = is_there ? load_four(from + 4) : none;
}

// Keys beyond the block's last repeat it: their scores are not used, and what is multiplied by 0 is a number.
template <typename E, typename P>
static inline void stage_cache(device const E *cache, wide_tile tile, uint2 block, uint first, uint Dh,
                               constant P &p, threadgroup float *to, place at) {
  const uint k = at.index / 8, d = at.index % 8 * 8;
  const bool is_there = first + d < Dh;
  const ulong row = ulong(slot_after(block.x, min(k, block.y - 1), p.R)) * p.Hkv + tile.g;
  device const E *from = cache + row * Dh + (is_there ? first + d : 0u);
  const float4 none = float4(0.0f);
  threadgroup float4 *out = (threadgroup float4 *)(to + k * CHUNK_STRIDE + d);
  out[0] = is_there ? load_four(from) : none;
  out[1] = is_there ? load_four(from + 4) : none;
}

// The softmax state of a row, in each of the eight threads that share it.
struct row_state {
  float top, mass;
};

// Turns four scores of the thread's row into exponentials; keys that the row does not see get 0. Gives what the
// row's sums so far are to be multiplied by.
template <typename P>
static inline float soften(threadgroup float *scores, thread row_state &state, wide_tile tile, uint u, constant P &p,
                           place at) {
  const uint r = at.index / 8, k = at.index % 8 * 4;
  const key_range range = visible((tile.row + min(r, tile.rows - 1)) / tile.heads, p);
  threadgroup float *mine = scores + r * SCORE_STRIDE + k;
  bool is_seen[4];
  float top = LOWEST;
  for (uint i = 0; i < 4; i++) {
    is_seen[i] = r < tile.rows && u + k + i >= range.first && u + k + i < range.end;
    if (is_seen[i]) top = max(top, mine[i] * p.scale);
  }
  for (ushort mask = 1; mask < 8; mask *= 2) top = max(top, simd_shuffle_xor(top, mask));
  top = max(top, state.top);
  float sum = 0.0f;
  for (uint i = 0; i < 4; i++) {
    const float weight = is_seen[i] ? precise::exp(mine[i] * p.scale - top) : 0.0f;
    mine[i] = weight;
    sum += weight;
  }
  for (ushort mask = 1; mask < 8; mask *= 2) sum += simd_shuffle_xor(sum, mask);
  const float rescale = precise::exp(state.top - top);
  state.mass = fma(state.mass, rescale, sum);
  state.top = top;
  return rescale;
}

// Entry (r, r) of the diagonals, by the first of a row's threads.
static inline void put_diagonal(threadgroup float *diagonals, float value, place at) {
  const uint r = at.index / 8;
  if (at.index % 8 == 0) diagonals[r / 8 * 64 + r % 8 * 9] = value;
}

// A SIMD-group's sums: its 8 components of every chunk, of all rows.
typedef simdgroup_float8x8 wide_sums[CHUNKS_MAX][ROW_MATRICES];

// Threadgroup memory by its parts.
struct wide_memory {
  threadgroup float *queries;    // [WIDE_ROWS, CHUNK_STRIDE]
  threadgroup float *cache;      // [KEY_BLOCK, CHUNK_STRIDE]
  threadgroup float *scores;     // [WIDE_ROWS, SCORE_STRIDE]
  threadgroup float *diagonals;  // [ROW_MATRICES, 8, 8]
  threadgroup float *changed;    // [8]
};

// A block's scores, not yet scaled: two matrices of a SIMD-group.
template <typename E, typename P>
static inline void score_block(device const float *q, device const E *keys, wide_tile tile, uint2 block, uint Dh,
                               constant P &p, wide_memory memory, place at) {
  const uint row = at.simdgroup / 2 * 8, key = at.simdgroup % 2 * 16;
  simdgroup_float8x8 products[2];
#pragma unroll
  for (uint i = 0; i < 2; i++) products[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint first = 0; first < Dh; first += CHUNK) {
    stage_queries(q, tile, first, Dh, p, memory.queries, at);
    stage_cache(keys, tile, block, first, Dh, p, memory.cache, at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint d = 0; d < CHUNK; d += 8) {
      simdgroup_float8x8 left, right;
      simdgroup_load(left, memory.queries + row * CHUNK_STRIDE + d, CHUNK_STRIDE);
#pragma unroll
      for (uint i = 0; i < 2; i++) {
        simdgroup_load(right, memory.cache + (key + 8 * i) * CHUNK_STRIDE + d, CHUNK_STRIDE, ulong2(0), true);
        simdgroup_multiply_accumulate(products[i], left, right, products[i]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    simdgroup_store(products[i], memory.scores + row * SCORE_STRIDE + key + 8 * i, SCORE_STRIDE);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Multiplies the sums of the rows whose maximum a block has changed.
static inline void rescale_sums(thread wide_sums &sums, uint Dh, wide_memory memory) {
#pragma unroll
  for (uint r = 0; r < ROW_MATRICES; r++) {
    // The rows of two SIMD-groups' threads make up a matrix.
    if (memory.changed[2 * r] + memory.changed[2 * r + 1] == 0.0f) continue;
    simdgroup_float8x8 diagonal;
    simdgroup_load(diagonal, memory.diagonals + r * 64, 8);
#pragma unroll
    for (uint c = 0; c < CHUNKS_MAX; c++) {
      if (c * CHUNK < Dh) simdgroup_multiply(sums[c][r], diagonal, sums[c][r]);
    }
  }
}

// Adds a block's values, weighted by its exponentials.
template <typename E, typename P>
static inline void add_block(thread wide_sums &sums, device const E *values, wide_tile tile, uint2 block, uint Dh,
                             constant P &p, wide_memory memory, place at) {
#pragma unroll
  for (uint c = 0; c < CHUNKS_MAX; c++) {
    if (c * CHUNK >= Dh) continue;
    stage_cache(values, tile, block, c * CHUNK, Dh, p, memory.cache, at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < KEY_BLOCK; k += 8) {
      simdgroup_float8x8 left, right;
      simdgroup_load(right, memory.cache + k * CHUNK_STRIDE + 8 * at.simdgroup, CHUNK_STRIDE);
#pragma unroll
      for (uint r = 0; r < ROW_MATRICES; r++) {
        simdgroup_load(left, memory.scores + 8 * r * SCORE_STRIDE + k, SCORE_STRIDE);
        simdgroup_multiply_accumulate(sums[c][r], left, right, sums[c][r]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Divides the sums by the rows' masses, which are in the diagonals, and writes the rows that there are.
template <typename P>
static inline void write_rows(thread wide_sums &sums, device float *y, wide_tile tile, uint Dh, constant P &p,
                              wide_memory memory, place at) {
#pragma unroll
  for (uint c = 0; c < CHUNKS_MAX; c++) {
    if (c * CHUNK >= Dh) continue;
#pragma unroll
    for (uint r = 0; r < ROW_MATRICES; r++) {
      simdgroup_float8x8 diagonal;
      simdgroup_load(diagonal, memory.diagonals + r * 64, 8);
      simdgroup_multiply(sums[c][r], diagonal, sums[c][r]);
      simdgroup_store(sums[c][r], memory.cache + 8 * r * CHUNK_STRIDE + 8 * at.simdgroup, CHUNK_STRIDE);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = at.index; i < WIDE_ROWS * CHUNK; i += WIDE_THREADS) {
      const uint r = i / CHUNK, d = c * CHUNK + i % CHUNK;
      if (r < tile.rows && d < Dh) y[row_offset(tile, r, Dh, p) + d] = memory.cache[r * CHUNK_STRIDE + i % CHUNK];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

template <typename E, typename P>
static inline void attend_wide(device const float *q, device const E *keys, device const E *values, device float *y,
                               constant P &p, uint Dh, uint2 group, threadgroup float *floats, place at) {
  const wide_memory memory = {floats + WIDE_QUERIES, floats + WIDE_CACHE, floats + WIDE_SCORES,
                              floats + WIDE_DIAGONALS, floats + WIDE_CHANGED};
  const wide_tile tile = tile_at(group, p);
  row_state state = {LOWEST, 0.0f};
  wide_sums sums;
#pragma unroll
  for (uint c = 0; c < CHUNKS_MAX; c++) {
#pragma unroll
    for (uint r = 0; r < ROW_MATRICES; r++) sums[c][r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  // The first barrier is in the first block, and a tile has one.
  for (uint i = at.index; i < ROW_MATRICES * 64; i += WIDE_THREADS) memory.diagonals[i] = 0.0f;
  for (uint u = tile.keys.first; u < tile.keys.end; u += KEY_BLOCK) {
    const uint2 block = uint2(u % p.R, min(uint(KEY_BLOCK), tile.keys.end - u));
    score_block(q, keys, tile, block, Dh, p, memory, at);
    const float rescale = soften(memory.scores, state, tile, u, p, at);
    put_diagonal(memory.diagonals, rescale, at);
    const bool has_changed = simd_any(rescale != 1.0f);
    if (at.lane == 0) memory.changed[at.simdgroup] = has_changed ? 1.0f : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    rescale_sums(sums, Dh, memory);
    add_block(sums, values, tile, block, Dh, p, memory, at);
  }
  put_diagonal(memory.diagonals, state.mass == 0.0f ? 0.0f : unit(p, Dh) / state.mass, at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  write_rows(sums, y, tile, Dh, p, memory, at);
}
#endif
