// Activations to integers: the arithmetic that every path shares, so that all of them multiply the same
// numbers. It knows no layout. Included by each path, so that its loops use that path's instructions.
#ifndef MF_QUANTISE_H
#define MF_QUANTISE_H
#include <math.h>
#include <string.h>

#include "product.h"

// Nearest integer, ties to even, for |v| <= 2^23; a vector loop everywhere.
static inline float mf_nearest(float v) {
  float magic = copysignf(8388608.0f, v);
  return (v + magic) - magic;
}

// The largest integer: digits to the base 256 between -128 and 127, the top one 127, room to round up.
static inline float mf_steps(uint32_t digits) {
  return digits == 2 ? (float)0x7F7F : (float)0x7F7F00;
}

// One group: fills q[64] and its sum, returns its scale. Anything that is no number makes both NaN, so
// that it reaches the output.
static inline float mf_quantise(const float *x, uint32_t digits, int32_t *q, float *sum) {
  uint32_t magnitude[MF_GROUP_SIZE], largest = 0;
  memcpy(magnitude, x, sizeof magnitude);
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    uint32_t bits = magnitude[i] & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  float max, steps = mf_steps(digits);
  memcpy(&max, &largest, sizeof max);
  if (largest >= 0x7F800000u) {
    memset(q, 0, MF_GROUP_SIZE * sizeof *q);
    *sum = NAN;
    return NAN;
  }
  float inverse = max > 1e-30f ? steps / max : 0.0f, scale = max / steps;
  int32_t total = 0;
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    q[i] = (int32_t)mf_nearest(x[i] * inverse);
    total += q[i];
  }
  *sum = scale * (float)total;
  return scale;
}

// Takes the lowest digit, between -128 and 127, off each of the group's integers.
static inline void mf_take_digit(int32_t *q, int8_t *digit) {
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    int32_t low = (int32_t)((uint32_t)q[i] << 24) >> 24;
    digit[i] = (int8_t)low;
    q[i] = (q[i] - low) >> 8;
  }
}

// Scales and sums beyond the last group take part in whole vectors: they must be numbers.
static inline void mf_clear_padding(const mf_format *format, void *vector) {
  float *scales = mf_vector_scales(vector), *sums = mf_vector_sums(format, vector);
  for (uint32_t g = format->groups; g < mf_padded(format->groups); g++) scales[g] = sums[g] = 0.0f;
}
#endif
