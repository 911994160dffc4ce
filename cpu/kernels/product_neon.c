// Products with NEON's dot products: activations as signed bytes, two digits for each 16-bit part. 8-bit codes
// become signed bytes by taking the middle off first; 4-bit codes are some, and it is taken off their dots.
#include <arm_neon.h>

#include "activation.h"
#include "product.h"
#include "quantise.h"

#define INLINE static inline __attribute__((always_inline))

// A digit's bytes. 8-bit codes: in order. 4-bit codes: a group's 32 even elements, then the odd ones.
static void store_digit(uint32_t bits, const int8_t *digit, int8_t *to) {
  if (bits == 8) {
    memcpy(to, digit, MF_GROUP_SIZE);
    return;
  }
  for (int i = 0; i < MF_GROUP_SIZE / 2; i++) {
    to[i] = digit[2 * i];
    to[MF_GROUP_SIZE / 2 + i] = digit[2 * i + 1];
  }
}

static void prepare(const mf_format *format, const float *x, void *vector) {
  const size_t step = mf_vector_step(format);
  int8_t *to = mf_vector_integers(format, vector);
  for (uint32_t g = 0; g < format->groups; g++, to += MF_GROUP_SIZE) {
    mf_integers q;
    int8_t high[MF_GROUP_SIZE], low[MF_GROUP_SIZE];
    mf_quantise(format, x, g, vector, &q);
    for (uint32_t part = 0; part < format->parts; part++) {
      mf_digits(part ? q.low : q.high, high, low);
      store_digit(format->bits, high, to + 2 * part * step);
      store_digit(format->bits, low, to + (2 * part + 1) * step);
    }
  }
  mf_clear_padding(format, vector);
}

// A group's codes as signed bytes, in the order of the digits; those of 8 bits less their middle.
INLINE int8x16x4_t widen(const int bits, const uint8_t *codes) {
  int8x16x4_t bytes;
  if (bits == 8) {
    for (int i = 0; i < 4; i++) {
      bytes.val[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(codes + 16 * i), vdupq_n_u8(128)));
    }
    return bytes;
  }
  for (int i = 0; i < 2; i++) {
    const uint8x16_t v = vld1q_u8(codes + 16 * i);
    bytes.val[i] = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
    bytes.val[2 + i] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
  }
  return bytes;
}

// One 16-bit part: the digits at x, and those at x + step.
INLINE int32x4_t part_dot(int8x16x4_t codes, const int8_t *x, size_t step) {
  int32x4_t high = vdupq_n_s32(0), low = high;
  for (int i = 0; i < 4; i++) {
    high = vdotq_s32(high, codes.val[i], vld1q_s8(x + 16 * i));
    low = vdotq_s32(low, codes.val[i], vld1q_s8(x + step + 16 * i));
  }
  return vaddq_s32(vshlq_n_s32(high, 8), low);
}

INLINE int32x4_t fold4(const int32x4_t d[4]) {
  return vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3]));
}

// n <= 4 BF16 numbers as floats, zeros after them.
INLINE float32x4_t bf16_load(const uint8_t *p, const uint32_t n) {
  uint16x4_t narrow = vdup_n_u16(0);
  if (n == 4) {
    narrow = vreinterpret_u16_u8(vld1_u8(p));
  } else {
    uint16_t some[4] = {0};
    memcpy(some, p, 2 * (size_t)n);
    narrow = vld1_u16(some);
  }
  return vreinterpretq_f32_u32(vshll_n_u16(narrow, 16));
}

// Adds groups g .. g + n - 1 (n <= 4) of one row to their lanes.
INLINE float32x4_t block(const int bits, const int parts, const uint32_t n, const mf_format *format,
                         const mf_rows *row, uint32_t g, const void *vector, float32x4_t lanes) {
  const size_t step = mf_vector_step(format);
  const int8_t *x = (const int8_t *)mf_vector_integers(format, vector) + (size_t)g * MF_GROUP_SIZE;
  const uint8_t *codes = row->codes + (size_t)g * MF_GROUP_SIZE * bits / 8;
  int32x4_t d[2][4];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; i++, x += MF_GROUP_SIZE) {
    d[0][i] = d[1][i] = vdupq_n_s32(0);
    if (i >= n) continue;
    const int8x16x4_t bytes = widen(bits, codes + (size_t)i * MF_GROUP_SIZE * bits / 8);
    d[0][i] = part_dot(bytes, x, step);
    if (parts == 2) d[1][i] = part_dot(bytes, x + 2 * step, step);
  }
  float32x4_t dot[2];
  for (int part = 0; part < parts; part++) {
    int32x4_t sum = fold4(d[part]);
    if (bits == 4) sum = vsubq_s32(sum, vld1q_s32(mf_vector_middles(format, vector, (uint32_t)part) + g));
    dot[part] = vcvtq_f32_s32(sum);
  }
  if (parts == 2) dot[0] = vfmaq_n_f32(dot[1], dot[0], 32768.0f);
  float32x4_t scale = bf16_load(row->scales + 2 * (size_t)g, n), bias = bf16_load(row->biases + 2 * (size_t)g, n);
  bias = vaddq_f32(bias, vmulq_n_f32(scale, (float)mf_middle(bits)));
  lanes = vfmaq_f32(lanes, bias, vld1q_f32(mf_vector_sums(format, vector) + g));
  scale = vmulq_f32(scale, vld1q_f32(mf_vector_scales(vector) + g));
  return vfmaq_f32(lanes, dot[0], scale);
}

INLINE float add_lanes(const float32x4_t lanes[4]) {
  float32x4_t four = vaddq_f32(vaddq_f32(lanes[0], lanes[2]), vaddq_f32(lanes[1], lanes[3]));
  float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

INLINE void two_rows(const int bits, const int parts, const mf_format *format, const mf_rows row[2],
                     const void *vector, float *const y[2]) {
  float32x4_t lanes[2][4];
  for (int i = 0; i < 4; i++) lanes[0][i] = lanes[1][i] = vdupq_n_f32(0.0f);
  uint32_t g = 0;
  for (; g + MF_LANES <= format->groups; g += MF_LANES) {
    for (int side = 0; side < 2; side++) {
      for (int i = 0; i < 4; i++) {
        float32x4_t *sum = &lanes[side][i];
        *sum = block(bits, parts, 4, format, &row[side], g + 4 * (uint32_t)i, vector, *sum);
      }
    }
  }
  for (int i = 0; g < format->groups; i++) {
    uint32_t n = format->groups - g < 4 ? format->groups - g : 4;
    for (int side = 0; side < 2; side++) {
      float32x4_t *sum = &lanes[side][i];
      *sum = block(bits, parts, n, format, &row[side], g, vector, *sum);
    }
    g += n;
  }
  for (int side = 0; side < 2; side++) *y[side] = add_lanes(lanes[side]);
}

INLINE void multiply_as(const int bits, const int parts, const mf_format *format, const mf_band *band,
                        const mf_columns *columns) {
  for (uint32_t r = 0; r < band->count; r++) {
    const mf_rows row[2] = {mf_rows_from(format, band->run[0], r), mf_rows_from(format, band->run[1], r)};
    for (uint32_t c = 0; c < columns->count; c++) {
      float *const y[2] = {columns->at[c].y[0] + r, columns->at[c].y[1] + r};
      two_rows(bits, parts, format, row, columns->at[c].x, y);
    }
  }
}

static void multiply(const mf_format *format, const mf_band *band, const mf_columns *columns) {
  if (format->bits == 4 && format->parts == 1) multiply_as(4, 1, format, band, columns);
  else if (format->bits == 4) multiply_as(4, 2, format, band, columns);
  else if (format->parts == 1) multiply_as(8, 1, format, band, columns);
  else multiply_as(8, 2, format, band, columns);
}

static void gate(float *y, const float *up, uint32_t count, uint32_t activation) {
  mf_gate(y, up, count, activation);
}

const mf_product mf_product_neon = {prepare, multiply, gate};
