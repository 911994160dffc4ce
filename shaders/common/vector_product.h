// Products of affine-quantised rows with one vector. A SIMD-group makes SIMD_ROWS rows at a time: each lane
// takes 8 columns, whose x it holds in registers for all of them, and 256 columns on takes the next 8; so a
// SIMD-group reads whole runs of a row. sum (scale * code + bias) * x = scale * sum code * x + bias * sum x.
#ifndef VECTOR_PRODUCT_H
#define VECTOR_PRODUCT_H
#include <metal_stdlib>
#include "affine.h"
#include "group.h"
using namespace metal;

enum : uint { SIMD_ROWS = 4, LANE_COLUMNS = 8, STEP_COLUMNS = 32 * LANE_COLUMNS };

// x of a lane's columns. Codes of 4 bits are multiplied where they lie in their word, so that x is divided
// by what they are too large; powers of 2 round nothing.
struct lane_x {
  float4 low, high;
  float sum;
};

static inline lane_x load_x(device const float *x, uint bits) {
  device const packed_float4 *fours = (device const packed_float4 *)x;
  const float4 low = float4(fours[0]);
  const float4 high = float4(fours[1]);
  const float4 four = low + high;
  const float sum = (four.x + four.y) + (four.z + four.w);
  if (bits == 8) return lane_x{low, high, sum};
  const float4 factor = float4(1.0f, 0.0625f, 0.00390625f, 0.000244140625f);
  return lane_x{low * factor, high * factor, sum};
}

static inline float code_product(device const ushort *codes, lane_x x, uint bits) {
  if (bits == 4) {
    return dot_four(codes_in_place(codes[1]), x.high, dot_four(codes_in_place(codes[0]), x.low, 0.0f));
  }
  const float low = dot_four(four_codes(codes[0], codes[1]), x.low, 0.0f);
  return dot_four(four_codes(codes[2], codes[3]), x.high, low);
}

// Adds the products of a lane's columns, from `column` on, to the sums of SIMD_ROWS rows. Where fewer than
// that are left, the last is done again.
static inline void add_columns(affine_rows rows, affine_shape shape, uint left, uint column, lane_x x,
                               thread float *sums) {
  const uint words = row_words(shape), groups = row_groups(shape);
  const uint word = column * shape.bits / 16, group = column / 64;
#pragma unroll
  for (uint r = 0; r < SIMD_ROWS; r++) {
    const uint row = min(r, left - 1);
    const float product = code_product(rows.codes + row * words + word, x, shape.bits);
    const float scale = from_bf16(rows.scales[row * groups + group]);
    const float bias = from_bf16(rows.biases[row * groups + group]);
    sums[r] = fma(scale, product, fma(bias, x.sum, sums[r]));
  }
}

// Component `lane` of a vector of four.
static inline float pick(float4 v, uint lane) {
  return lane == 0 ? v.x : lane == 1 ? v.y : lane == 2 ? v.z : v.w;
}

// A SIMD-group's products: the sums of rows r < SIMD_ROWS in every lane.
static inline float4 row_products(affine_rows rows, affine_shape shape, uint left, device const float *x,
                                  uint lane) {
  const float none = empty_sum(shape);
  float sums[SIMD_ROWS] = {none, none, none, none};
  for (uint column = lane * LANE_COLUMNS; column < shape.columns; column += STEP_COLUMNS) {
    add_columns(rows, shape, left, column, load_x(x + column, shape.bits), sums);
  }
  return simd_sum(float4(sums[0], sums[1], sums[2], sums[3]));
}

// The same of a gate and an up matrix, which read x once.
struct gated_products {
  float4 gate, up;
};

static inline gated_products row_products(affine_rows gate, affine_rows up, affine_shape shape, uint left,
                                          device const float *x, uint lane) {
  const float none = empty_sum(shape);
  float gates[SIMD_ROWS] = {none, none, none, none};
  float ups[SIMD_ROWS] = {none, none, none, none};
  for (uint column = lane * LANE_COLUMNS; column < shape.columns; column += STEP_COLUMNS) {
    const lane_x lane_columns = load_x(x + column, shape.bits);
    add_columns(gate, shape, left, column, lane_columns, gates);
    add_columns(up, shape, left, column, lane_columns, ups);
  }
  return gated_products{simd_sum(float4(gates[0], gates[1], gates[2], gates[3])),
                        simd_sum(float4(ups[0], ups[1], ups[2], ups[3]))};
}
#endif
