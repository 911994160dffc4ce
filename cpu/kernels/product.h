// Products with affine-quantised matrices: what an instruction set gives to the drivers in matmul.c and
// moe.c. This file knows neither tasks nor threads nor experts.
//
// One formula holds on every path, for every batch and every way of dividing the work, bit for bit. For each
// group g of 64 columns, with M = 8 (codes of 4 bits) or 128 (of 8), the middle of the codes:
//   x = xScale[g] * q, in integers q of 8 or 16 bits, or of 30, q = high * 2^15 + low (exact)
//   sum[g] = xScale[g] * sum(q)             of the rounded activations: then rounding errors weigh less
//   dot[g] = sum((code - M) * q)            exact in integers, as sum(code * q) - M * sum(q)
//   lane[g % 16] += (bias[g] + M * scale[g]) * sum[g]      in the order of g, fused multiply and add
//   lane[g % 16] += dot[g] * (scale[g] * xScale[g])
//   y = the sixteen lanes, the upper half added to the lower one four times
// Since dots are exact their order is free, and each path lays q out as its instructions like it. Codes
// taken from their middle make terms that hardly cancel, which float32 accumulation of weights has not.
#ifndef MF_PRODUCT_H
#define MF_PRODUCT_H
#include <stddef.h>
#include <stdint.h>

#include "../mf_cpu.h"

enum { MF_LANES = 16 };  // running sums of an output

// What decides the layout of a vector made ready for products.
typedef struct {
  uint32_t groups;  // of 64 columns
  uint32_t bits;    // of a code: 4 or 8
  uint32_t parts;   // 16-bit parts of an activation: 1 or 2
  uint32_t narrow;  // whether activations have only 8 bits (in one part)
  uint32_t wide;    // it is one of at least MF_PANEL_COLUMNS that are multiplied together
} mf_format;

// Consecutive rows of a matrix: where the first one begins in each of its three arrays. Any even address.
typedef struct {
  const uint8_t *codes, *scales, *biases;
} mf_rows;

// Two runs of `count` rows, read side by side. Memory follows two far-apart linear streams at the speed of
// a mere reader, one stream at four fifths and neighbouring rows side by side at one third of it.
typedef struct {
  mf_rows run[2];
  uint32_t count;
} mf_band;

// A vector made ready, and where its products with the rows of both runs go.
typedef struct {
  const void *x;
  float *y[2];
} mf_column;

// Several of them, and room for a panel (mf_panel_bytes, 64-byte aligned; NULL for fewer than MF_PANEL_COLUMNS).
typedef struct {
  const mf_column *at;
  uint32_t count;
  void *panel;
} mf_columns;

// Rows that a path may turn into a panel, in which a row is a lane, so that they meet many columns at the
// cost of few instructions. A few columns, and rests of rows, take the codes as they lie.
enum { MF_PANEL_ROWS = 16, MF_PANEL_COLUMNS = 4 };
// What a path unpacks at a time, and the columns that pass by it together: together they stay in cache.
enum { MF_PANEL_RUN = 4, MF_PANEL_BATCH = 96 };

typedef struct {
  // Makes the vector `x` of 64 * groups floats ready; `vector` has mf_vector_bytes, 64-byte aligned.
  void (*prepare)(const mf_format *format, const float *x, void *vector);
  // y[run][r] of each column = row r of that run times the column's x.
  void (*multiply)(const mf_format *format, const mf_band *band, const mf_columns *columns);
  // y[i] = act(y[i]) * up[i]
  void (*gate)(float *y, const float *up, uint32_t count, uint32_t activation);
} mf_product;

extern const mf_product mf_product_portable, mf_product_avx2, mf_product_avx512, mf_product_neon;

#if defined(__x86_64__)
// So far ahead of the codes in hand others are asked for (product.c).
extern size_t mf_ahead_bytes;
#endif

static inline uint32_t mf_padded(uint32_t groups) {
  return (groups + MF_LANES - 1) / MF_LANES * MF_LANES;
}

// A vector made ready: scales, sums and M * sum(q), of high and low parts, then the integers; all padded to
// whole runs of sixteen groups.
enum { MF_VECTOR_ARRAYS = 4 };
static inline size_t mf_vector_bytes(const mf_format *format) {
  const size_t value_bytes = format->parts * sizeof(int16_t) + (format->narrow ? 1 : 0);
  const size_t group_bytes = MF_VECTOR_ARRAYS * sizeof(float) + MF_GROUP_SIZE * value_bytes;
  return mf_padded(format->groups) * group_bytes;
}
static inline float *mf_vector_scales(const void *vector) {
  return (float *)(uintptr_t)vector;
}
static inline float *mf_vector_sums(const mf_format *format, const void *vector) {
  return mf_vector_scales(vector) + mf_padded(format->groups);
}
static inline int32_t *mf_vector_middles(const mf_format *format, const void *vector, uint32_t part) {
  return (int32_t *)(uintptr_t)vector + (2 + part) * (size_t)mf_padded(format->groups);
}
// Values (16-bit ones, or digits of 8 bits) of one part.
static inline size_t mf_vector_step(const mf_format *format) {
  return (size_t)mf_padded(format->groups) * MF_GROUP_SIZE;
}
static inline void *mf_vector_integers(const mf_format *format, const void *vector) {
  return mf_vector_scales(vector) + MF_VECTOR_ARRAYS * (size_t)mf_padded(format->groups);
}
// Where a path may lay 8-bit integers out a second time, as bytes.
static inline int8_t *mf_vector_narrow(const mf_format *format, const void *vector) {
  return (int8_t *)mf_vector_integers(format, vector) + format->parts * sizeof(int16_t) * mf_vector_step(format);
}

static inline int32_t mf_middle(uint32_t bits) {
  return bits == 4 ? 8 : 128;
}
static inline size_t mf_code_bytes(const mf_format *format) {
  return (size_t)format->groups * MF_GROUP_SIZE * format->bits / 8;
}
// A panel: codes, then scales and biases as floats; and of each column the lanes of its sums.
static inline size_t mf_panel_bytes(const mf_format *format, uint32_t columns) {
  const uint32_t together = columns < MF_PANEL_BATCH ? columns : MF_PANEL_BATCH;
  const size_t whole = mf_code_bytes(format), run = MF_PANEL_RUN * MF_GROUP_SIZE * sizeof(int16_t);
  const size_t row_bytes = (whole > run ? whole : run) + 2 * sizeof(float) * mf_padded(format->groups);
  return MF_PANEL_ROWS * (row_bytes + together * MF_LANES * sizeof(float));
}
static inline mf_rows mf_rows_from(const mf_format *format, mf_rows rows, size_t first) {
  size_t factors = first * format->groups * 2;
  return (mf_rows){rows.codes + first * mf_code_bytes(format), rows.scales + factors, rows.biases + factors};
}
#endif
