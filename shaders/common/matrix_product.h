// Products of a tile of affine-quantised rows with a tile of vectors, by 8x8 matrices in float32: columns of
// both are staged in threadgroup memory, weights as floats, so that each is dequantised once for all vectors.
// (Matrices that read packed weights themselves were measured to lose.)
#ifndef MATRIX_PRODUCT_H
#define MATRIX_PRODUCT_H
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "affine.h"
#include "group.h"
using namespace metal;

enum : uint {
  TILE_VECTORS = 32,
  TILE_ROWS = 64,
  TILE_COLUMNS = 32,
  TILE_THREADS = 128,  // four SIMD-groups, each 16 vectors by 32 rows
  TILE_STRIDE = TILE_COLUMNS + 4,  // rows of a staged tile begin in different banks, at multiples of 16 bytes
  TILE_FLOATS = (TILE_VECTORS + TILE_ROWS) * TILE_STRIDE,  // more than the result
};

// What a thread stages: 8 columns of a vector, 16 of a row.
enum : uint {
  STAGED_X = TILE_VECTORS * TILE_COLUMNS / TILE_THREADS,
  STAGED_W = TILE_ROWS * TILE_COLUMNS / TILE_THREADS,
};

// The vector and the row of the tile that a thread stages.
static inline uint staged_vector(place at) { return at.index / (TILE_COLUMNS / STAGED_X); }
static inline uint staged_row(place at) { return at.index / (TILE_COLUMNS / STAGED_W); }

static inline void stage_x(device const float *x, bool is_there, threadgroup float *to) {
  device const packed_float4 *fours = (device const packed_float4 *)x;
  threadgroup float4 *out = (threadgroup float4 *)to;
  for (uint i = 0; i < STAGED_X / 4; i++) out[i] = is_there ? float4(fours[i]) : float4(0.0f);
}

static inline void stage_w(affine_rows row, uint column, uint bits, threadgroup float *to) {
  const float4 scale = float4(from_bf16(row.scales[column / 64]));
  const float4 bias = float4(from_bf16(row.biases[column / 64]));
  device const ushort *codes = row.codes + column / 16 * bits;
  threadgroup float4 *out = (threadgroup float4 *)to;
  for (uint i = 0; i < STAGED_W / 4; i++) {
    const float4 code = bits == 4 ? four_codes(codes[i]) : four_codes(codes[2 * i], codes[2 * i + 1]);
    out[i] = fma(scale, code, bias);
  }
}

// result[v * TILE_ROWS + r] = row r . vector v, for every thread to read. `x` is the vector that this thread
// stages (none: zeros), `row` its row. `stage` holds TILE_FLOATS, aligned as a float4; the result lies there too.
static inline void tile_product(device const float *x, bool has_x, affine_rows row, affine_shape shape,
                                threadgroup float *stage, place at) {
  threadgroup float *xs = stage;
  threadgroup float *ws = stage + TILE_VECTORS * TILE_STRIDE;
  const uint x_column = at.index % (TILE_COLUMNS / STAGED_X) * STAGED_X;
  const uint w_column = at.index % (TILE_COLUMNS / STAGED_W) * STAGED_W;
  const uint vector = at.simdgroup / 2 * 16, first_row = at.simdgroup % 2 * 32;
  simdgroup_float8x8 sums[2][4];
#pragma unroll
  for (uint v = 0; v < 2; v++) {
#pragma unroll
    for (uint r = 0; r < 4; r++) sums[v][r] = make_filled_simdgroup_matrix<float, 8, 8>(empty_sum(shape));
  }
  for (uint column = 0; column < shape.columns; column += TILE_COLUMNS) {
    stage_x(x + column + x_column, has_x, xs + staged_vector(at) * TILE_STRIDE + x_column);
    stage_w(row, column + w_column, shape.bits, ws + staged_row(at) * TILE_STRIDE + w_column);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < TILE_COLUMNS; k += 8) {
      simdgroup_float8x8 left[2];
#pragma unroll
      for (uint v = 0; v < 2; v++) simdgroup_load(left[v], xs + (vector + 8 * v) * TILE_STRIDE + k, TILE_STRIDE);
#pragma unroll
      for (uint r = 0; r < 4; r++) {
        simdgroup_float8x8 right;
        simdgroup_load(right, ws + (first_row + 8 * r) * TILE_STRIDE + k, TILE_STRIDE, ulong2(0), true);
#pragma unroll
        for (uint v = 0; v < 2; v++) simdgroup_multiply_accumulate(sums[v][r], left[v], right, sums[v][r]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (uint v = 0; v < 2; v++) {
#pragma unroll
    for (uint r = 0; r < 4; r++) {
      simdgroup_store(sums[v][r], stage + (vector + 8 * v) * TILE_ROWS + first_row + 8 * r, TILE_ROWS);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
#endif
