// Products with AVX-512 VNNI: activations as signed bytes, two digits for each 16-bit part, codes as unsigned.
// Two lines of 64 codes bytes, one of each run, are taken in turn, so that both streams stay in flight.
#include <immintrin.h>

#include "activation.h"
#include "panel.h"
#include "product.h"
#include "quantise.h"

#define INLINE static inline __attribute__((always_inline))

// A digit's bytes. 8-bit codes: in order. 4-bit codes: of every two groups (a line of codes) the 64 even
// elements and then the 64 odd ones, so that low and high nibbles meet them without a shuffle.
static void store_digit(uint32_t bits, uint32_t g, const int8_t *digit, int8_t *to) {
  const size_t at = (size_t)g * MF_GROUP_SIZE;
  if (bits == 8) {
    memcpy(to + at, digit, MF_GROUP_SIZE);
    return;
  }
  int8_t *even = to + (size_t)(g / 2) * 128 + (g & 1) * 32;
  for (int i = 0; i < 32; i++) {
    even[i] = digit[2 * i];
    even[64 + i] = digit[2 * i + 1];
  }
}

static void prepare(const mf_format *format, const float *x, void *vector) {
  const size_t step = mf_vector_step(format);
  int8_t *to = mf_vector_integers(format, vector);
  for (uint32_t g = 0; g < format->groups; g++) {
    mf_integers q;
    int8_t high[MF_GROUP_SIZE], low[MF_GROUP_SIZE];
    mf_quantise(format, x, g, vector, &q);
    for (uint32_t part = 0; part < format->parts; part++) {
      mf_digits(part ? q.low : q.high, high, low);
      store_digit(format->bits, g, high, to + 2 * part * step);
      store_digit(format->bits, g, low, to + (2 * part + 1) * step);
    }
  }
  mf_clear_padding(format, vector);
}

// Partial dots of the two parts.
typedef struct {
  __m512i high, low;
} partial;

INLINE __m512i digit_dot(const int bits, __m512i low, __m512i high, const int8_t *x, __m512i sum) {
  sum = _mm512_dpbusd_epi32(sum, low, _mm512_load_si512(x));
  return bits == 4 ? _mm512_dpbusd_epi32(sum, high, _mm512_load_si512(x + 64)) : sum;
}

// One line of codes: for 4 bits lanes 0-7 belong to one group and 8-15 to the next, for 8 bits all to one.
INLINE partial line(const int bits, const int parts, __m512i codes, const int8_t *x, size_t step) {
  const __m512i mask = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
  const __m512i low = bits == 4 ? _mm512_and_si512(codes, mask) : codes;
  const __m512i high = bits == 4 ? _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask) : zero;
  partial sum = {_mm512_slli_epi32(digit_dot(bits, low, high, x, zero), 8), zero};
  sum.high = digit_dot(bits, low, high, x + step, sum.high);
  if (parts == 1) return sum;
  sum.low = _mm512_slli_epi32(digit_dot(bits, low, high, x + 2 * step, zero), 8);
  sum.low = digit_dot(bits, low, high, x + 3 * step, sum.low);
  return sum;
}

// In each 128 bits: the sums of a, b, c and d there.
INLINE __m512i fold4(__m512i a, __m512i b, __m512i c, __m512i d) {
  __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// Adds neighbouring quarters: those of a, then those of b.
INLINE __m512i fold_quarters(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
}

// From what fold4 leaves of sixteen groups to one dot a lane, in order.
INLINE __m512i fold_groups(const int bits, __m512i a, __m512i b, __m512i c, __m512i d) {
  if (bits == 8) return fold_quarters(fold_quarters(a, b), fold_quarters(c, d));
  const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  return _mm512_permutexvar_epi32(order, fold_quarters(a, b));
}

INLINE __m512 bf16_load(const uint8_t *p, __mmask16 take) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(take, p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// Line p of n groups; beyond the last one zeros, half a line where the number of groups is odd.
INLINE __m512i load_line(const int bits, const uint8_t *codes, uint32_t p, uint32_t n) {
  const uint8_t *at = codes + 64 * (size_t)p;
  uint32_t left = bits == 8 ? 2 * (n - p) : n - 2 * p;
  return left > 1 ? _mm512_loadu_si512(at) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)at));
}

// What is the same for all lines of a block of n groups.
typedef struct {
  const uint8_t *codes;
  const int8_t *x;
  size_t step;  // from one digit to the next
  uint32_t n;
} source;

// Lines 4 * quad .. 4 * quad + 3, folded.
INLINE partial four_lines(const int bits, const int parts, source from, const uint32_t quad) {
  const uint32_t lines = bits == 8 ? from.n : (from.n + 1) / 2;
  const partial zero = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  partial d[4];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t p = 4 * quad + i;
    d[i] = zero;
    if (p >= lines) continue;
    _mm_prefetch((const char *)from.codes + 64 * (size_t)p + mf_ahead_bytes, _MM_HINT_T1);
    d[i] = line(bits, parts, load_line(bits, from.codes, p, from.n), from.x + (512 / bits) * (size_t)p, from.step);
  }
  partial sum = {fold4(d[0].high, d[1].high, d[2].high, d[3].high), zero.low};
  if (parts == 2) sum.low = fold4(d[0].low, d[1].low, d[2].low, d[3].low);
  return sum;
}

// The dots of a block's groups, one a lane, of the codes taken from their middle.
INLINE __m512 block_dots(const int bits, const int parts, source from, const int32_t *const middles[2]) {
  const __m512i zero = _mm512_setzero_si512();
  partial e[4] = {four_lines(bits, parts, from, 0), four_lines(bits, parts, from, 1), {zero, zero}, {zero, zero}};
  if (bits == 8) {
    e[2] = four_lines(bits, parts, from, 2);
    e[3] = four_lines(bits, parts, from, 3);
  }
  __m512i high = fold_groups(bits, e[0].high, e[1].high, e[2].high, e[3].high);
  __m512 dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(high, _mm512_load_si512(middles[0])));
  if (parts == 1) return dot;
  __m512i low = fold_groups(bits, e[0].low, e[1].low, e[2].low, e[3].low);
  __m512 rest = _mm512_cvtepi32_ps(_mm512_sub_epi32(low, _mm512_load_si512(middles[1])));
  return _mm512_fmadd_ps(dot, _mm512_set1_ps(32768.0f), rest);
}

// Adds groups g .. g + n - 1 (n <= 16) of one row to its lanes.
INLINE __m512 block(const int bits, const int parts, const uint32_t n, const mf_format *format,
                    const mf_rows *row, uint32_t g, const void *vector, __m512 lanes) {
  const source from = {row->codes + (size_t)g * MF_GROUP_SIZE * bits / 8,
                       (const int8_t *)mf_vector_integers(format, vector) + (size_t)g * MF_GROUP_SIZE,
                       mf_vector_step(format), n};
  const int32_t *const middles[2] = {mf_vector_middles(format, vector, 0) + g,
                                     mf_vector_middles(format, vector, 1) + g};
  const __mmask16 take = (__mmask16)((1u << n) - 1);
  const __m512 dot = block_dots(bits, parts, from, middles);
  __m512 scale = bf16_load(row->scales + 2 * (size_t)g, take);
  __m512 bias = bf16_load(row->biases + 2 * (size_t)g, take);
  bias = _mm512_fmadd_ps(scale, _mm512_set1_ps((float)mf_middle(bits)), bias);
  lanes = _mm512_fmadd_ps(bias, _mm512_load_ps(mf_vector_sums(format, vector) + g), lanes);
  scale = _mm512_mul_ps(scale, _mm512_load_ps(mf_vector_scales(vector) + g));
  return _mm512_fmadd_ps(dot, scale, lanes);
}

INLINE float add_lanes(__m512 lanes) {
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE void two_rows(const int bits, const int parts, const mf_format *format, const mf_rows row[2],
                     const void *vector, float *const y[2]) {
  __m512 lanes[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  uint32_t g = 0;
  for (; g + MF_LANES <= format->groups; g += MF_LANES) {
    for (int side = 0; side < 2; side++) {
      lanes[side] = block(bits, parts, MF_LANES, format, &row[side], g, vector, lanes[side]);
    }
  }
  for (int side = 0; side < 2; side++) {
    uint32_t left = format->groups - g;
    if (left) lanes[side] = block(bits, parts, left, format, &row[side], g, vector, lanes[side]);
    *y[side] = add_lanes(lanes[side]);
  }
}

INLINE void multiply_as(const int bits, const int parts, const mf_format *format, const mf_band *band,
                        const mf_columns *columns) {
  uint32_t r = columns->count >= MF_PANEL_COLUMNS ? band->count / MF_PANEL_ROWS * MF_PANEL_ROWS : 0;
  if (r) mf_panels_avx512(format, &(mf_band){{band->run[0], band->run[1]}, r}, columns);
  for (; r < band->count; r++) {
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

const mf_product mf_product_avx512 = {prepare, multiply, gate};
