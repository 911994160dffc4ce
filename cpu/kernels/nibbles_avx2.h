// Products of a few vectors with 4-bit codes by AVX2: activations as signed bytes, two digits for each part,
// codes as unsigned. Two groups lie side by side, one in each half of a vector: then sixteen products of a
// digit fit into a sum of 16 bits, and only two folds are left for eight groups. Included by product_avx2.c.
#ifndef MF_NIBBLES_AVX2_H
#define MF_NIBBLES_AVX2_H
#include <immintrin.h>
#include <string.h>

#include "product.h"
#include "quantise.h"

#define MF_INLINE static inline __attribute__((always_inline))

// Makes the compiler finish v here. Left alone it keeps activations of one row for the next one, which spills
// them all, and reorders sums until it spills those.
#define MF_PIN(v) __asm__ volatile("" : "+x"(v))

enum {
  MF_NIBBLE_BLOCK = 8,                             // groups whose dots fill a vector: i and i + 4 side by side
  MF_NIBBLE_QUAD = 4,                              // groups at a row's end that both rows have side by side
  MF_NIBBLE_PAIR_BYTES = 2 * MF_GROUP_SIZE,        // digits of two groups, or of one group twice
};

// Whether a row ends with at most a quad of groups.
static inline uint32_t mf_nibble_quad(uint32_t groups) {
  const uint32_t rest = groups % MF_NIBBLE_BLOCK;
  return rest <= MF_NIBBLE_QUAD ? rest : 0;
}

// The digits of a group: its even elements and then its odd ones, in sixteens; as nibbles lie in 16 bytes.
MF_INLINE void mf_nibble_store(const int8_t *digit, uint32_t groups, uint32_t g, int8_t *to) {
  const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,  //
                                         0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const uint32_t place = g % MF_NIBBLE_BLOCK, twice = g >= groups - mf_nibble_quad(groups);
  to += (size_t)(g - place) * MF_GROUP_SIZE;
  to += twice ? place * MF_NIBBLE_PAIR_BYTES : place % 4 * MF_NIBBLE_PAIR_BYTES + place / 4 * 16;
  for (int half = 0; half < 2; half++) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(digit + 32 * half));
    v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, apart), 0xD8);
    for (uint32_t copy = 0; copy <= twice; copy++) {
      _mm_store_si128((__m128i *)(to + 32 * half + 16 * copy), _mm256_castsi256_si128(v));
      _mm_store_si128((__m128i *)(to + 32 * half + 16 * copy + 64), _mm256_extracti128_si256(v, 1));
    }
  }
}

static void mf_nibble_prepare(const mf_format *format, const float *x, void *vector) {
  const size_t step = mf_vector_step(format);
  int8_t *to = mf_vector_integers(format, vector);
  for (uint32_t g = 0; g < format->groups; g++) {
    mf_integers q;
    int8_t high[MF_GROUP_SIZE], low[MF_GROUP_SIZE];
    mf_quantise(format, x, g, vector, &q);
    for (uint32_t part = 0; part < format->parts; part++) {
      mf_digits(part ? q.low : q.high, high, low);
      mf_nibble_store(high, format->groups, g, to + 2 * part * step);
      mf_nibble_store(low, format->groups, g, to + (2 * part + 1) * step);
    }
  }
  mf_clear_padding(format, vector);
}

// Two groups side by side: the nibbles of the first 16 bytes of each, then of the second.
typedef struct {
  __m256i low[2], high[2];
} mf_nibbles;

// b == NULL: nothing beside a.
MF_INLINE mf_nibbles mf_nibbles_of(const uint8_t *a, const uint8_t *b) {
  const __m256i mask = _mm256_set1_epi8(15);
  mf_nibbles n;
  for (int half = 0; half < 2; half++) {
    __m256i v = _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)a + half));
    if (b) v = _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)b + half), 1);
    n.low[half] = _mm256_and_si256(v, mask);
    n.high[half] = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    MF_PIN(n.low[half]);
    MF_PIN(n.high[half]);
  }
  return n;
}

// At most 16 * 15 * 128 in each sum.
MF_INLINE __m256i mf_nibble_digit(mf_nibbles n, const int8_t *x) {
  const __m256i *v = (const __m256i *)x;
  const __m256i a = _mm256_add_epi16(_mm256_maddubs_epi16(n.low[0], v[0]), _mm256_maddubs_epi16(n.low[1], v[1]));
  const __m256i b = _mm256_add_epi16(_mm256_maddubs_epi16(n.high[0], v[2]), _mm256_maddubs_epi16(n.high[1], v[3]));
  return _mm256_add_epi16(a, b);
}

MF_INLINE __m256i mf_nibble_part(mf_nibbles n, const int8_t *x, size_t step) {
  const __m256i high = _mm256_madd_epi16(mf_nibble_digit(n, x), _mm256_set1_epi16(256));
  __m256i sum = _mm256_add_epi32(high, _mm256_madd_epi16(mf_nibble_digit(n, x + step), _mm256_set1_epi16(1)));
  MF_PIN(sum);
  return sum;
}

// A value for each part.
typedef struct {
  __m256i part[2];
} mf_nibble_sums;

// In each half: the sums of the four vectors there.
MF_INLINE __m256i mf_nibble_fold(const __m256i d[4]) {
  const __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(d[0], d[1]), _mm256_unpackhi_epi32(d[0], d[1]));
  const __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(d[2], d[3]), _mm256_unpackhi_epi32(d[2], d[3]));
  return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xCC), _mm256_alignr_epi8(b, a, 8));
}

// Dots of n <= 4 pairs of groups: those at `a`, and beside pair i that at `b` where i < beside. The next
// codes are taken apart before the present ones are multiplied: the processor looks no further by itself.
MF_INLINE mf_nibble_sums mf_nibble_dots(const int parts, const uint32_t n, const uint32_t beside, const uint8_t *a,
                                        const uint8_t *b, const int8_t *x, size_t step) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i d[2][4] = {{zero, zero, zero, zero}, {zero, zero, zero, zero}};
  __asm__ volatile("" : "+r"(x));  // else every load of it is kept for the next row
  mf_nibbles next = mf_nibbles_of(a, beside ? b : NULL);
#pragma GCC unroll 4
  for (uint32_t i = 0; i < n; i++) {
    const mf_nibbles now = next;
    const size_t at = (size_t)(i + 1) * (MF_GROUP_SIZE / 2);
    if (i % 2 == 0) {
      _mm_prefetch((const char *)a + at + mf_ahead_bytes, _MM_HINT_T1);
      _mm_prefetch((const char *)b + at + mf_ahead_bytes, _MM_HINT_T1);
    }
    if (i + 1 < n) next = mf_nibbles_of(a + at, i + 1 < beside ? b + at : NULL);
    for (int part = 0; part < parts; part++) {
      const size_t digits = 2 * step * (size_t)part;
      d[part][i] = mf_nibble_part(now, x + digits + (size_t)i * MF_NIBBLE_PAIR_BYTES, step);
    }
  }
  return (mf_nibble_sums){{mf_nibble_fold(d[0]), parts == 2 ? mf_nibble_fold(d[1]) : zero}};
}

// What of a vector, its scales, sums and middles, belongs to the groups in hand.
typedef struct {
  __m256 scale, sum;
  __m256i middle[2];
} mf_nibble_x;

MF_INLINE mf_nibble_x mf_nibble_factors(const mf_format *format, const void *vector, uint32_t g) {
  return (mf_nibble_x){_mm256_load_ps(mf_vector_scales(vector) + g),
                       _mm256_load_ps(mf_vector_sums(format, vector) + g),
                       {_mm256_load_si256((const __m256i *)(mf_vector_middles(format, vector, 0) + g)),
                        _mm256_load_si256((const __m256i *)(mf_vector_middles(format, vector, 1) + g))}};
}

// The same four groups in both halves.
MF_INLINE __m256i mf_nibble_twice(const void *four) {
  return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)four));
}
MF_INLINE mf_nibble_x mf_nibble_factors_twice(const mf_format *format, const void *vector, uint32_t g) {
  return (mf_nibble_x){_mm256_castsi256_ps(mf_nibble_twice(mf_vector_scales(vector) + g)),
                       _mm256_castsi256_ps(mf_nibble_twice(mf_vector_sums(format, vector) + g)),
                       {mf_nibble_twice(mf_vector_middles(format, vector, 0) + g),
                        mf_nibble_twice(mf_vector_middles(format, vector, 1) + g)}};
}

// Adds the groups' terms to their lanes, in the order of the formula.
MF_INLINE __m256 mf_nibble_add(const int parts, mf_nibble_sums dots, mf_nibble_x x, __m256 scale, __m256 bias,
                               __m256 lanes) {
  __m256 dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots.part[0], x.middle[0]));
  if (parts == 2) {
    const __m256 rest = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots.part[1], x.middle[1]));
    dot = _mm256_fmadd_ps(dot, _mm256_set1_ps(32768.0f), rest);
  }
  bias = _mm256_fmadd_ps(scale, _mm256_set1_ps((float)mf_middle(4)), bias);
  lanes = _mm256_fmadd_ps(bias, x.sum, lanes);
  lanes = _mm256_fmadd_ps(dot, _mm256_mul_ps(scale, x.scale), lanes);
  MF_PIN(lanes);
  return lanes;
}

// BF16 numbers as floats.
MF_INLINE __m256 mf_nibble_floats(__m128i narrow) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
// n <= 4 of them as one word; reads nothing beyond them. Put together in registers: a load of bytes just
// stored in pieces would wait for them.
MF_INLINE int64_t mf_nibble_word(const uint8_t *p, const uint32_t n) {
  uint64_t word = 0;
  uint32_t two = 0;
  uint16_t one = 0;
  if (n == 4) memcpy(&word, p, sizeof word);
  if (n == 2 || n == 3) memcpy(&two, p, sizeof two);
  if (n == 1 || n == 3) memcpy(&one, p + 2 * (size_t)(n - 1), sizeof one);
  if (n < 4) word = n == 1 ? one : (uint64_t)one << 32 | two;
  return (int64_t)word;
}
MF_INLINE __m256 mf_nibble_load(const uint8_t *p, const uint32_t n) {
  if (n == MF_NIBBLE_BLOCK) return mf_nibble_floats(_mm_loadu_si128((const __m128i *)p));
  return mf_nibble_floats(_mm_set_epi64x(mf_nibble_word(p + 8, n - 4), mf_nibble_word(p, 4)));
}

// Two rows' lanes, and where the rows are.
typedef struct {
  const mf_format *format;
  const mf_rows *row;
  const void *vector;
  __m256 lanes[2][2];
} mf_nibble_rows;

// n of 5 .. 8 groups from g on of both rows.
MF_INLINE void mf_nibble_block(const int parts, const uint32_t n, mf_nibble_rows *r, uint32_t g, const int half) {
  const size_t step = mf_vector_step(r->format), at = (size_t)g * (MF_GROUP_SIZE / 2);
  const int8_t *x = (const int8_t *)mf_vector_integers(r->format, r->vector) + (size_t)g * MF_GROUP_SIZE;
  mf_nibble_sums dots[2];
#pragma GCC unroll 2
  for (int side = 0; side < 2; side++) {
    const uint8_t *codes = r->row[side].codes + at;
    dots[side] = mf_nibble_dots(parts, 4, n - 4, codes, codes + 4 * (MF_GROUP_SIZE / 2), x, step);
  }
#pragma GCC unroll 2
  for (int side = 0; side < 2; side++) {
    const mf_nibble_x factors = mf_nibble_factors(r->format, r->vector, g);
    const __m256 scale = mf_nibble_load(r->row[side].scales + 2 * (size_t)g, n);
    const __m256 bias = mf_nibble_load(r->row[side].biases + 2 * (size_t)g, n);
    r->lanes[side][half] = mf_nibble_add(parts, dots[side], factors, scale, bias, r->lanes[side][half]);
  }
}

// The last n <= 4 groups, of both rows side by side.
MF_INLINE void mf_nibble_end(const int parts, const uint32_t n, mf_nibble_rows *r, uint32_t g, const int half) {
  const size_t step = mf_vector_step(r->format), at = (size_t)g * (MF_GROUP_SIZE / 2), factor = 2 * (size_t)g;
  const int8_t *x = (const int8_t *)mf_vector_integers(r->format, r->vector) + (size_t)g * MF_GROUP_SIZE;
  const mf_rows *a = &r->row[0], *b = &r->row[1];
  const mf_nibble_sums dots = mf_nibble_dots(parts, n, n, a->codes + at, b->codes + at, x, step);
  const __m256 scale = mf_nibble_floats(
      _mm_set_epi64x(mf_nibble_word(b->scales + factor, n), mf_nibble_word(a->scales + factor, n)));
  const __m256 bias = mf_nibble_floats(
      _mm_set_epi64x(mf_nibble_word(b->biases + factor, n), mf_nibble_word(a->biases + factor, n)));
  __m256 *first = &r->lanes[0][half], *second = &r->lanes[1][half];
  __m256 both = _mm256_permute2f128_ps(*first, *second, 0x20);
  both = mf_nibble_add(parts, dots, mf_nibble_factors_twice(r->format, r->vector, g), scale, bias, both);
  *first = _mm256_blend_ps(both, *first, 0xF0);
  *second = _mm256_permute2f128_ps(both, *second, 0x31);
}

MF_INLINE void mf_nibble_rest(const int parts, mf_nibble_rows *r, uint32_t g, const int half) {
  switch (r->format->groups - g) {
  case 1:
    return mf_nibble_end(parts, 1, r, g, half);
  case 2:
    return mf_nibble_end(parts, 2, r, g, half);
  case 3:
    return mf_nibble_end(parts, 3, r, g, half);
  case 4:
    return mf_nibble_end(parts, 4, r, g, half);
  case 5:
    return mf_nibble_block(parts, 5, r, g, half);
  case 6:
    return mf_nibble_block(parts, 6, r, g, half);
  case 7:
    return mf_nibble_block(parts, 7, r, g, half);
  }
}

MF_INLINE float mf_nibble_total(const __m256 lanes[2]) {
  const __m256 eight = _mm256_add_ps(lanes[0], lanes[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

MF_INLINE void mf_nibble_two_rows(const int parts, const mf_format *format, const mf_rows row[2], const void *vector,
                                  float *const y[2]) {
  const __m256 zero = _mm256_setzero_ps();
  mf_nibble_rows r = {format, row, vector, {{zero, zero}, {zero, zero}}};
  uint32_t g = 0;
  for (; g + MF_LANES <= format->groups; g += MF_LANES) {
    mf_nibble_block(parts, MF_NIBBLE_BLOCK, &r, g, 0);
    mf_nibble_block(parts, MF_NIBBLE_BLOCK, &r, g + MF_NIBBLE_BLOCK, 1);
  }
  if (g + MF_NIBBLE_BLOCK <= format->groups) {
    mf_nibble_block(parts, MF_NIBBLE_BLOCK, &r, g, 0);
    mf_nibble_rest(parts, &r, g + MF_NIBBLE_BLOCK, 1);
  } else {
    mf_nibble_rest(parts, &r, g, 0);
  }
  for (int side = 0; side < 2; side++) *y[side] = mf_nibble_total(r.lanes[side]);
}

MF_INLINE void mf_nibble_multiply(const int parts, const mf_format *format, const mf_band *band,
                                  const mf_columns *columns) {
  for (uint32_t r = 0; r < band->count; r++) {
    const mf_rows row[2] = {mf_rows_from(format, band->run[0], r), mf_rows_from(format, band->run[1], r)};
    for (uint32_t c = 0; c < columns->count; c++) {
      float *const y[2] = {columns->at[c].y[0] + r, columns->at[c].y[1] + r};
      mf_nibble_two_rows(parts, format, row, columns->at[c].x, y);
    }
  }
}
#endif
