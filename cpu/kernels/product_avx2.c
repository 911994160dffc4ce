// Products with AVX2: activations as 16-bit integers, codes widened to 16 bits where they lie, so that one
// multiply-and-add pairs them exactly. Few vectors with 4-bit codes take another way: nibbles_avx2.h.
#include <immintrin.h>

#include "activation.h"
#include "nibbles_avx2.h"
#include "panel.h"
#include "product.h"
#include "quantise.h"

#define INLINE static inline __attribute__((always_inline))

// Makes the compiler finish v here. Left alone it reorders whole numbers' sums over a block of groups until
// it spills most of them: half the speed.
#define PIN(v) __asm__ volatile("" : "+x"(v))

// From sixty-four values in order to the elements 4j + i in v[i].
INLINE void gather_runs(__m256i v[4]) {
  const __m256i pairs = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,  //
                                         0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int i = 0; i < 4; i++) v[i] = _mm256_shuffle_epi8(v[i], pairs);
  const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
  const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(a, c), order);
  v[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(a, c), order);
  v[2] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(b, d), order);
  v[3] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(b, d), order);
}

// Of each two vectors the even elements, then the odd ones.
INLINE void split_pairs(__m256i v[4]) {
  const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  for (int i = 0; i < 4; i += 2) {
    const __m256i a = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v[i], apart), 0xD8);
    const __m256i b = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v[i + 1], apart), 0xD8);
    v[i] = _mm256_permute2x128_si256(a, b, 0x20);
    v[i + 1] = _mm256_permute2x128_si256(a, b, 0x31);
  }
}

INLINE __m256i sixteen(const int32_t *values) {
  const __m256i *at = (const __m256i *)values;
  __m256i packed = _mm256_packs_epi32(_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1));
  return _mm256_permute4x64_epi64(packed, 0xD8);
}

// A code comes out of its 16-bit word by a shift, and meets the value at the same place of a run of sixteen.
// 4-bit codes: run i of the elements 4j + i. 8-bit codes: of each 32 elements the even, then the odd ones.
// Low parts follow all high ones.
INLINE void store_group(uint32_t bits, const int32_t *values, int16_t *to) {
  __m256i v[4];
  for (int i = 0; i < 4; i++) v[i] = sixteen(values + 16 * i);
  if (bits == 4) gather_runs(v);
  else split_pairs(v);
  for (int i = 0; i < 4; i++) _mm256_store_si256((__m256i *)to + i, v[i]);
}

// 8-bit integers once more, for panels: a group's even elements, then the odd ones.
INLINE void store_bytes(const int32_t *values, int8_t *to) {
  for (int i = 0; i < MF_GROUP_SIZE / 2; i++) {
    to[i] = (int8_t)values[2 * i];
    to[MF_GROUP_SIZE / 2 + i] = (int8_t)values[2 * i + 1];
  }
}

static int takes_nibbles(const mf_format *format) {
  return format->bits == 4 && !format->wide;
}

static void prepare(const mf_format *format, const float *x, void *vector) {
  if (takes_nibbles(format)) {
    mf_nibble_prepare(format, x, vector);
    return;
  }
  int16_t *to = mf_vector_integers(format, vector);
  int8_t *bytes = mf_vector_narrow(format, vector);
  for (uint32_t g = 0; g < format->groups; g++, to += MF_GROUP_SIZE) {
    mf_integers q;
    mf_quantise(format, x, g, vector, &q);
    store_group(format->bits, q.high, to);
    if (format->narrow && format->bits == 4) store_bytes(q.high, bytes + (size_t)g * MF_GROUP_SIZE);
    if (format->parts == 2) store_group(format->bits, q.low, to + mf_vector_step(format));
  }
  mf_clear_padding(format, vector);
}

// A group's codes as sixteen-bit numbers, in the order of the values.
typedef struct {
  __m256i part[4];
} codes16;

INLINE codes16 widen(const int bits, const uint8_t *codes) {
  const __m256i *words = (const __m256i *)codes;
  const __m256i mask = _mm256_set1_epi16(bits == 8 ? 255 : 15), first = _mm256_loadu_si256(words);
  if (bits == 8) {
    const __m256i second = _mm256_loadu_si256(words + 1);
    return (codes16){{_mm256_and_si256(first, mask), _mm256_srli_epi16(first, 8),  //
                      _mm256_and_si256(second, mask), _mm256_srli_epi16(second, 8)}};
  }
  return (codes16){{_mm256_and_si256(first, mask), _mm256_and_si256(_mm256_srli_epi16(first, 4), mask),
                    _mm256_and_si256(_mm256_srli_epi16(first, 8), mask), _mm256_srli_epi16(first, 12)}};
}

INLINE __m256i group_dot(codes16 codes, const int16_t *x) {
  const __m256i *part = (const __m256i *)x;
  __m256i a = _mm256_madd_epi16(codes.part[0], _mm256_load_si256(part));
  __m256i b = _mm256_madd_epi16(codes.part[1], _mm256_load_si256(part + 1));
  a = _mm256_add_epi32(a, _mm256_madd_epi16(codes.part[2], _mm256_load_si256(part + 2)));
  b = _mm256_add_epi32(b, _mm256_madd_epi16(codes.part[3], _mm256_load_si256(part + 3)));
  a = _mm256_add_epi32(a, b);
  PIN(a);
  return a;
}

// In each 128 bits: the sums of the four vectors there.
INLINE __m256i fold4(const __m256i d[4]) {
  __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(d[0], d[1]), _mm256_unpackhi_epi32(d[0], d[1]));
  __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(d[2], d[3]), _mm256_unpackhi_epi32(d[2], d[3]));
  return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

// Two folds of four groups to one sum a lane, in order, less those of the codes' middle, as floats.
INLINE __m256 fold8(__m256i a, __m256i b, const int32_t *middles) {
  __m256i low = _mm256_permute2x128_si256(a, b, 0x20), high = _mm256_permute2x128_si256(a, b, 0x31);
  __m256i sum = _mm256_sub_epi32(_mm256_add_epi32(low, high), _mm256_load_si256((const __m256i *)middles));
  return _mm256_cvtepi32_ps(sum);
}

// n <= 8 BF16 numbers as floats, zeros after them; reads nothing beyond them.
INLINE __m256 bf16_load(const uint8_t *p, const uint32_t n) {
  __m128i narrow;
  if (n == 8) {
    narrow = _mm_loadu_si128((const __m128i *)p);
  } else {
    const __m128i lane = _mm_setr_epi32(0, 1, 2, 3), pairs = _mm_set1_epi32((int)(n / 2));
    narrow = _mm_maskload_epi32((const int *)(const void *)p, _mm_cmpgt_epi32(pairs, lane));
    if (n & 1) {
      uint16_t last;
      memcpy(&last, p + 2 * (size_t)(n - 1), sizeof last);
      __m128i here = _mm_and_si128(_mm_cmpeq_epi32(pairs, lane), _mm_set1_epi32(last));
      narrow = _mm_or_si128(narrow, here);
    }
  }
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

// Four groups, of which n are there, folded: their high parts and their low ones.
typedef struct {
  __m256i high, low;
} partial;

INLINE partial four_groups(const int bits, const int parts, const uint8_t *codes, const int16_t *x,
                           size_t step, const uint32_t n) {
  __m256i high[4], low[4];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; i++) {
    high[i] = low[i] = _mm256_setzero_si256();
    if (i >= n) continue;
    const uint8_t *at = codes + (size_t)i * MF_GROUP_SIZE * bits / 8;
    if (bits == 8 || i % 2 == 0) _mm_prefetch((const char *)at + mf_ahead_bytes, _MM_HINT_T1);
    codes16 wide = widen(bits, at);
    high[i] = group_dot(wide, x + MF_GROUP_SIZE * i);
    if (parts == 2) low[i] = group_dot(wide, x + step + MF_GROUP_SIZE * i);
  }
  partial sum = {fold4(high), _mm256_setzero_si256()};
  PIN(sum.high);
  if (parts == 2) {
    sum.low = fold4(low);
    PIN(sum.low);
  }
  return sum;
}

// Adds groups g .. g + n - 1 (n <= 8) of one row to their lanes.
INLINE __m256 block(const int bits, const int parts, const uint32_t n, const mf_format *format,
                    const mf_rows *row, uint32_t g, const void *vector, __m256 lanes) {
  const size_t step = mf_vector_step(format);
  const int16_t *x = (const int16_t *)mf_vector_integers(format, vector) + (size_t)g * MF_GROUP_SIZE;
  const uint8_t *codes = row->codes + (size_t)g * MF_GROUP_SIZE * bits / 8;
  const partial a = four_groups(bits, parts, codes, x, step, n);
  partial b = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  if (n > 4) b = four_groups(bits, parts, codes + 4 * MF_GROUP_SIZE * bits / 8, x + 4 * MF_GROUP_SIZE, step, n - 4);
  __m256 dot = fold8(a.high, b.high, mf_vector_middles(format, vector, 0) + g);
  if (parts == 2) {
    const __m256 rest = fold8(a.low, b.low, mf_vector_middles(format, vector, 1) + g);
    dot = _mm256_fmadd_ps(dot, _mm256_set1_ps(32768.0f), rest);
  }
  __m256 scale = bf16_load(row->scales + 2 * (size_t)g, n), bias = bf16_load(row->biases + 2 * (size_t)g, n);
  bias = _mm256_fmadd_ps(scale, _mm256_set1_ps((float)mf_middle(bits)), bias);
  lanes = _mm256_fmadd_ps(bias, _mm256_load_ps(mf_vector_sums(format, vector) + g), lanes);
  scale = _mm256_mul_ps(scale, _mm256_load_ps(mf_vector_scales(vector) + g));
  return _mm256_fmadd_ps(dot, scale, lanes);
}

INLINE float add_lanes(const __m256 lanes[2]) {
  __m256 eight = _mm256_add_ps(lanes[0], lanes[1]);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE void two_rows(const int bits, const int parts, const mf_format *format, const mf_rows row[2],
                     const void *vector, float *const y[2]) {
  __m256 lanes[2][2];
  for (int side = 0; side < 2; side++) lanes[side][0] = lanes[side][1] = _mm256_setzero_ps();
  uint32_t g = 0;
  for (; g + MF_LANES <= format->groups; g += MF_LANES) {
    for (int side = 0; side < 2; side++) {
      for (int half = 0; half < 2; half++) {
        __m256 *sum = &lanes[side][half];
        *sum = block(bits, parts, 8, format, &row[side], g + 8 * half, vector, *sum);
      }
    }
  }
  for (int half = 0; g < format->groups; half++) {
    uint32_t n = format->groups - g < 8 ? format->groups - g : 8;
    for (int side = 0; side < 2; side++) {
      __m256 *sum = &lanes[side][half];
      *sum = n == 8 ? block(bits, parts, 8, format, &row[side], g, vector, *sum)
                    : block(bits, parts, n, format, &row[side], g, vector, *sum);
    }
    g += n;
  }
  for (int side = 0; side < 2; side++) *y[side] = add_lanes(lanes[side]);
}

INLINE void multiply_as(const int bits, const int parts, const mf_format *format, const mf_band *band,
                        const mf_columns *columns) {
  uint32_t r = columns->count >= MF_PANEL_COLUMNS ? band->count / MF_PANEL_ROWS * MF_PANEL_ROWS : 0;
  if (r) mf_panels_avx2(format, &(mf_band){{band->run[0], band->run[1]}, r}, columns);
  for (; r < band->count; r++) {
    const mf_rows row[2] = {mf_rows_from(format, band->run[0], r), mf_rows_from(format, band->run[1], r)};
    for (uint32_t c = 0; c < columns->count; c++) {
      float *const y[2] = {columns->at[c].y[0] + r, columns->at[c].y[1] + r};
      two_rows(bits, parts, format, row, columns->at[c].x, y);
    }
  }
}

static void multiply(const mf_format *format, const mf_band *band, const mf_columns *columns) {
  if (takes_nibbles(format) && format->parts == 1) mf_nibble_multiply(1, format, band, columns);
  else if (takes_nibbles(format)) mf_nibble_multiply(2, format, band, columns);
  else if (format->bits == 4 && format->parts == 1) multiply_as(4, 1, format, band, columns);
  else if (format->bits == 4) multiply_as(4, 2, format, band, columns);
  else if (format->parts == 1) multiply_as(8, 1, format, band, columns);
  else multiply_as(8, 2, format, band, columns);
}

static void gate(float *y, const float *up, uint32_t count, uint32_t activation) {
  mf_gate(y, up, count, activation);
}

const mf_product mf_product_avx2 = {prepare, multiply, gate};
