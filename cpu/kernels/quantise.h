// Activations to integers: the arithmetic that every path shares, so that all of them multiply the same
// numbers. It knows no layout. Included by each path, so that its loops use that path's instructions.
#ifndef MF_QUANTISE_H
#define MF_QUANTISE_H
#include <math.h>
#include <string.h>

#include "product.h"

// The integers of one group: q, or q = high * 2^15 + low where there are two parts.
typedef struct {
  int32_t high[MF_GROUP_SIZE], low[MF_GROUP_SIZE];
} mf_integers;

static inline uint32_t mf_float_bits(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
static inline float mf_bits_float(uint32_t bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

// Nearest whole number of |v| < 2^22, ties to even, without a call or a branch: loops of it become vectors.
static inline float mf_nearest(float v) {
  const float magic = 12582912.0f;  // 1.5 * 2^23
  return (v + magic) - magic;
}

// 8 or 16 bits: the largest value becomes 127, or 0x7F7F, whose digits to the base 256 still fit signed bytes.
static inline float mf_quantise_fast(const float *x, float max, float steps, mf_integers *q, int32_t totals[2]) {
  const float inverse = steps / max;
  int32_t total = 0;
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    q->high[i] = (int32_t)mf_nearest(x[i] * inverse);
    total += q->high[i];
  }
  totals[0] = total;
  totals[1] = 0;
  return max / steps;
}

// Exact: a power of two takes the largest value to 2^28 .. 2^29, so that nothing above 2^-29 of it is lost.
// All products and differences here are exact. Parts lie within -2^14 .. 2^14.
static inline float mf_quantise_exact(const float *x, float max, mf_integers *q, int32_t totals[2]) {
  const uint32_t exponent = mf_float_bits(max) >> 23;
  const float inverse = mf_bits_float((282 - exponent) << 23);
  int32_t high = 0, low = 0;
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    const float whole = x[i] * inverse, above = mf_nearest(whole * 0x1p-15f);
    q->high[i] = (int32_t)above;
    q->low[i] = (int32_t)mf_nearest(whole - above * 0x1p15f);
    high += q->high[i];
    low += q->low[i];
  }
  totals[0] = high;
  totals[1] = low;
  return mf_bits_float((exponent - 28) << 23);
}

// Group g: its integers, and its places in the vector's other arrays. Values below 2^-97 count as zero, and
// anything that is no number makes scale and sum NaN, so that it reaches the output.
static inline void mf_quantise(const mf_format *format, const float *x, uint32_t g, void *vector, mf_integers *q) {
  const float *from = x + (size_t)g * MF_GROUP_SIZE;
  uint32_t largest = 0;
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    const uint32_t bits = mf_float_bits(from[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  int32_t totals[2] = {0, 0};
  float scale = 0.0f;
  if (largest >= 0x7F800000u || largest < 30u << 23) {
    memset(q, 0, sizeof *q);
    scale = largest >= 0x7F800000u ? NAN : 0.0f;
  } else if (format->parts == 1) {
    scale = mf_quantise_fast(from, mf_bits_float(largest), format->narrow ? 127.0f : 0x7F7F, q, totals);
  } else {
    scale = mf_quantise_exact(from, mf_bits_float(largest), q, totals);
  }
  const float sum = format->parts == 1 ? (float)totals[0] : (float)totals[0] * 32768.0f + (float)totals[1];
  mf_vector_scales(vector)[g] = scale;
  mf_vector_sums(format, vector)[g] = scale * sum;
  for (uint32_t part = 0; part < 2; part++) {
    mf_vector_middles(format, vector, part)[g] = mf_middle(format->bits) * totals[part];
  }
}

// A 16-bit part as two digits to the base 256, between -128 and 127.
static inline void mf_digits(const int32_t *values, int8_t *high, int8_t *low) {
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    const int32_t last = (int32_t)((uint32_t)values[i] << 24) >> 24;
    low[i] = (int8_t)last;
    high[i] = (int8_t)((values[i] - last) >> 8);
  }
}

// What lies beyond the last group takes part in whole vectors and must be zero.
static inline void mf_clear_padding(const mf_format *format, void *vector) {
  const uint32_t padded = mf_padded(format->groups);
  for (uint32_t array = 0; array < MF_VECTOR_ARRAYS; array++) {
    float *values = mf_vector_scales(vector) + array * (size_t)padded;
    for (uint32_t g = format->groups; g < padded; g++) values[g] = 0.0f;
  }
}
#endif
