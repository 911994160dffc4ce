// Products in plain C: what every other path must equal bit for bit. It names no instruction set.
#include <math.h>
#include <string.h>

#include "activation.h"
#include "product.h"
#include "quantise.h"

// A group's 64 integers of 16 bits; those of the low parts follow all high ones. With 4-bit codes the even
// elements come first, then the odd ones, as nibbles lie in bytes.
enum { HALF = MF_GROUP_SIZE / 2 };

static void store(const mf_format *format, const int32_t *values, int16_t *to) {
  for (int i = 0; i < MF_GROUP_SIZE; i++) {
    int place = format->bits == 4 ? i / 2 + (i & 1) * HALF : i;
    to[place] = (int16_t)values[i];
  }
}

static void prepare(const mf_format *format, const float *x, void *vector) {
  int16_t *to = mf_vector_integers(format, vector);
  for (uint32_t g = 0; g < format->groups; g++, to += MF_GROUP_SIZE) {
    mf_integers q;
    mf_quantise(format, x, g, vector, &q);
    store(format, q.high, to);
    if (format->parts == 2) store(format, q.low, to + mf_vector_step(format));
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

// Group g's dot of the codes taken from their middle.
static float group_dot(const mf_format *format, const uint8_t *codes, const void *vector, uint32_t g) {
  const int16_t *x = (const int16_t *)mf_vector_integers(format, vector) + (size_t)g * MF_GROUP_SIZE;
  int32_t dot[2] = {0, 0};
  for (uint32_t part = 0; part < format->parts; part++, x += mf_vector_step(format)) {
    dot[part] = (format->bits == 8 ? dot8(codes, x) : dot4(codes, x)) - mf_vector_middles(format, vector, part)[g];
  }
  return format->parts == 1 ? (float)dot[0] : fmaf((float)dot[0], 32768.0f, (float)dot[1]);
}

static float row_product(const mf_format *format, const mf_rows *row, const void *vector) {
  const float *scales = mf_vector_scales(vector), *sums = mf_vector_sums(format, vector);
  const float middle = (float)mf_middle(format->bits);
  const uint8_t *codes = row->codes;
  float lane[MF_LANES] = {0};
  for (uint32_t g = 0; g < format->groups; g++) {
    float *sum = &lane[g % MF_LANES], scale = bf16_at(row->scales, g);
    *sum = fmaf(bf16_at(row->biases, g) + scale * middle, sums[g], *sum);
    *sum = fmaf(group_dot(format, codes, vector, g), scale * scales[g], *sum);
    codes += MF_GROUP_SIZE * format->bits / 8;
  }
  for (int width = MF_LANES / 2; width; width /= 2) {
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  }
  return lane[0];
}

static void multiply(const mf_format *format, const mf_band *band, const mf_columns *columns) {
  for (uint32_t r = 0; r < band->count; r++) {
    for (int side = 0; side < 2; side++) {
      mf_rows row = mf_rows_from(format, band->run[side], r);
      for (uint32_t c = 0; c < columns->count; c++) {
        columns->at[c].y[side][r] = row_product(format, &row, columns->at[c].x);
      }
    }
  }
}

static void gate(float *y, const float *up, uint32_t count, uint32_t activation) {
  mf_gate(y, up, count, activation);
}

const mf_product mf_product_portable = {prepare, multiply, gate};
