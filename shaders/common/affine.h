// Affine-quantised rows: groups of 64 columns share a scale and a bias, w = scale * code + bias. Codes of 4
// bits lie low bits first, four in a ushort; of 8 bits, two. The arrays are aligned to two bytes, no more:
// a wider load of them gives garbage on real files though it passes on tidy ones.
#ifndef AFFINE_H
#define AFFINE_H
#include <metal_stdlib>
#include "numbers.h"
using namespace metal;

// Rows from some row on.
struct affine_rows {
  device const ushort *codes;
  device const ushort *scales;
  device const ushort *biases;
};

struct affine_shape {
  uint columns;  // a multiple of 64; 0 where the parameters make no sense
  uint bits;     // 4 or 8
};

static inline affine_shape shape_of(uint columns, uint bits) {
  const bool is_valid = (bits == 4 || bits == 8) && columns % 64 == 0;
  return affine_shape{is_valid ? columns : 0u, bits};
}

// What sums begin with: rows without columns give NaN.
static inline float empty_sum(affine_shape shape) { return shape.columns == 0 ? not_a_number() : 0.0f; }

static inline uint row_words(affine_shape shape) { return shape.columns / 16 * shape.bits; }
static inline uint row_groups(affine_shape shape) { return shape.columns / 64; }

static inline affine_rows rows_from(affine_rows rows, affine_shape shape, ulong row) {
  const ulong words = row * row_words(shape);
  const ulong groups = row * row_groups(shape);
  return affine_rows{rows.codes + words, rows.scales + groups, rows.biases + groups};
}

// Four codes of 4 bits, as they lie in a word: the n-th is 16^n times too large.
static inline float4 codes_in_place(ushort word) {
  return float4(float(word & 0x000f), float(word & 0x00f0), float(word & 0x0f00), float(word & 0xf000));
}

static inline float4 four_codes(ushort word) {
  return float4(float(word & 15), float(word >> 4 & 15), float(word >> 8 & 15), float(word >> 12));
}

// Four codes of 8 bits from two words.
static inline float4 four_codes(ushort a, ushort b) {
  return float4(float(a & 255), float(a >> 8), float(b & 255), float(b >> 8));
}

static inline float dot_four(float4 a, float4 b, float sum) {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
#endif
