// Products in plain C: what every other path must equal bit for bit. It names no instruction set.
#include <math.h>
#include <string.h>

#include "activation.h"
#include "product.h"
#include "quantise.h"

// A group's digits: 64 values of 16 bits, then the same number of third digits where there are three.
// With 4-bit codes the even elements come first, then the odd ones, as nibbles lie in bytes.
enum { HALF = MF_GROUP_SIZE / 2 };

static void store(const mf_format *format, const int16_t *values, int16_t *to) {
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    int place = format->bits == 4 ? i / 2 + (i & 1) * HALF : i;
    to[place] = values[i];
  }
}

static void prepare(const mf_format *format, const float *x, void *vector) {
  float *scales = mf_vector_scales(vector), *sums = mf_vector_sums(format, vector);
  int16_t *digits = mf_vector_digits(format, vector);
  size_t third = (size_t)mf_padded(format->groups) * MF_GROUP_SIZE;
  for (uint32_t g = 0; g < format->groups; g++) {
    int32_t q[MF_GROUP_SIZE];
    int16_t values[MF_GROUP_SIZE];
    int8_t digit[MF_GROUP_SIZE];
    size_t at = (size_t)g * MF_GROUP_SIZE;
    scales[g] = mf_quantise(x + at, format->digits, q, &sums[g]);
    if (format->digits == 3) {
      mf_take_digit(q, digit);
      for (int i = 0; i < MF_GROUP_SIZE; i++) values[i] = digit[i];
      store(format, values, digits + third + at);
    }
    for (int i = 0; i < MF_GROUP_SIZE; i++) values[i] = (int16_t)q[i];
    store(format, values, digits + at);
  }
  mf_clear_padding(format, vector);
}

static int32_t dot4(const uint8_t *codes, const int16_t *x) {
  int32_t sum = 0;
  for (int i = 0; i < HALF; i++) {
    sum += (int16_t)(codes[i] & 15) * x[i] + (int16_t)(codes[i] >> 4) * x[HALF + i];
  }
  return sum;
}

static int32_t dot8(const uint8_t *codes, const int16_t *x) {
  int32_t sum = 0;
  for (int i = 0; i < MF_GROUP_SIZE; i++) sum += (int16_t)codes[i] * x[i];
  return sum;
}

static float bf16_at(const uint8_t *array, uint32_t index) {
  uint16_t bits;
  memcpy(&bits, array + 2 * (size_t)index, sizeof bits);
  return mf_bf16(bits);
}

static float row_product(const mf_format *format, const mf_rows *row, const void *vector) {
  const float *scales = mf_vector_scales(vector), *sums = mf_vector_sums(format, vector);
  const int16_t *x = mf_vector_digits(format, vector);
  const size_t third = (size_t)mf_padded(format->groups) * MF_GROUP_SIZE;
  const uint8_t *codes = row->codes;
  float lane[MF_LANES] = {0};
  for (uint32_t g = 0; g < format->groups; g++, x += MF_GROUP_SIZE) {
    int wide = format->bits == 8;
    float dot = (float)(wide ? dot8(codes, x) : dot4(codes, x)), *sum = &lane[g % MF_LANES];
    if (format->digits == 3) {
      dot = fmaf(dot, 256.0f, (float)(wide ? dot8(codes, x + third) : dot4(codes, x + third)));
    }
    *sum = fmaf(bf16_at(row->biases, g), sums[g], *sum);
    *sum = fmaf(dot, bf16_at(row->scales, g) * scales[g], *sum);
    codes += wide ? MF_GROUP_SIZE : HALF;
  }
  for (int width = MF_LANES / 2; width; width /= 2) {
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  }
  return lane[0];
}

static void multiply(const mf_format *format, const mf_band *band, const mf_column *columns, uint32_t count) {
  for (uint32_t r = 0; r < band->count; r++) {
    for (int side = 0; side < 2; side++) {
      mf_rows row = mf_rows_from(format, band->run[side], r);
      for (uint32_t c = 0; c < count; c++) {
        columns[c].y[side][r] = row_product(format, &row, columns[c].x);
      }
    }
  }
}

static void gate(float *y, const float *up, uint32_t count, uint32_t activation) {
  mf_gate(y, up, count, activation);
}

const mf_product mf_product_portable = {prepare, multiply, gate};
