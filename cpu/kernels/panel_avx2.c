// Panels with AVX2: two vectors of eight rows, times up to four vectors of 16-bit values at a time.
#include <immintrin.h>

#include "panel.h"
#include "product.h"

#define INLINE static inline __attribute__((always_inline))

enum { HALF = 8 };  // rows in a vector

// Eight vectors of eight 32-bit words: rows become columns.
INLINE void transpose(__m256i r[8]) {
  __m256i t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x20);
    r[4 + i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x31);
  }
}

// n <= 8 BF16 numbers as the upper halves of words, zeros after them; reads nothing beyond them.
INLINE __m256i bf16_words(const uint8_t *p, uint32_t n) {
  uint16_t some[8] = {0};
  if (n == 8) return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
  __builtin_memcpy(some, p, 2 * (size_t)n);
  return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)some)), 16);
}

// Eight rows' words, into every second vector.
INLINE void build_codes(const mf_format *format, mf_rows rows, int half, __m256i *to) {
  const size_t row_bytes = mf_code_bytes(format);
  for (size_t at = 0; at < row_bytes; at += sizeof(__m256i), to += 2 * 8) {
    __m256i r[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256((const __m256i *)(rows.codes + (size_t)i * row_bytes + at));
    transpose(r);
    for (int i = 0; i < 8; i++) _mm256_store_si256(to + 2 * i + half, r[i]);
  }
}

INLINE void build_factors(const mf_format *format, mf_rows rows, int half, float *to) {
  const size_t row_bytes = 2 * (size_t)format->groups;
  const __m256 middle = _mm256_set1_ps((float)mf_middle(format->bits));
  for (uint32_t g = 0; g < format->groups; g += 8) {
    const uint32_t n = format->groups - g < 8 ? format->groups - g : 8;
    __m256i scales[8], biases[8];
    for (int i = 0; i < 8; i++) {
      scales[i] = bf16_words(rows.scales + (size_t)i * row_bytes + 2 * (size_t)g, n);
      biases[i] = bf16_words(rows.biases + (size_t)i * row_bytes + 2 * (size_t)g, n);
    }
    transpose(scales);
    transpose(biases);
    for (uint32_t i = 0; i < n; i++) {
      float *at = to + (g + i) * 2 * MF_PANEL_ROWS + HALF * half;
      const __m256 scale = _mm256_castsi256_ps(scales[i]), bias = _mm256_castsi256_ps(biases[i]);
      _mm256_store_ps(at, scale);
      _mm256_store_ps(at + MF_PANEL_ROWS, _mm256_fmadd_ps(scale, middle, bias));
    }
  }
}

static void build(const mf_format *format, mf_rows rows, void *panel) {
  for (int half = 0; half < 2; half++) {
    const mf_rows eight = mf_rows_from(format, rows, (size_t)half * HALF);
    build_codes(format, eight, half, panel);
    build_factors(format, eight, half, mf_panel_factors(format, panel));
  }
}

enum { VECTORS = 4 };  // of 16-bit values in a tile: tokens times parts

// Codes to come next, asked for while others are multiplied: building a panel goes down sixteen rows at
// once, an order that the processor does not foresee.
typedef struct {
  const uint8_t *at;
  uint32_t lines;  // for each group
} ahead;

INLINE void prefetch(ahead *next) {
  for (uint32_t i = 0; i < next->lines; i++, next->at += 64) _mm_prefetch((const char *)next->at, _MM_HINT_T1);
}

typedef struct {
  __m256i dot[VECTORS][2];  // of both halves
} sums;

// The codes of one place in all words, as 16-bit numbers.
INLINE __m256i codes_at(const int bits, const int place, __m256i words) {
  const __m256i mask = _mm256_set1_epi16(bits == 8 ? 255 : 15);
  const __m256i shifted = place ? _mm256_srli_epi16(words, bits * place) : words;
  return place == 16 / bits - 1 ? shifted : _mm256_and_si256(shifted, mask);
}

// One group's dots of `count` vectors.
INLINE void group_dots(const int bits, const int count, const __m256i *words, const int16_t *const x[VECTORS],
                       sums *s) {
  for (int v = 0; v < count; v++) s->dot[v][0] = s->dot[v][1] = _mm256_setzero_si256();
  // A 32-byte run of codes has eight words; a run of values sixteen, one for each 16 bits of the codes.
  for (int run = 0; run < bits / 4; run++) {
    for (int k = 0; k < 8; k++) {
      const __m256i *halves = words + 2 * (8 * run + k);
      const __m256i a = _mm256_load_si256(halves), b = _mm256_load_si256(halves + 1);
#pragma GCC unroll 4
      for (int place = 0; place < 16 / bits; place++) {
        const __m256i low = codes_at(bits, place, a), high = codes_at(bits, place, b);
#pragma GCC unroll 4
        for (int v = 0; v < count; v++) {
          int32_t pair;
          __builtin_memcpy(&pair, x[v] + 32 * run + 16 * place + 2 * k, sizeof pair);
          const __m256i values = _mm256_set1_epi32(pair);
          s->dot[v][0] = _mm256_add_epi32(s->dot[v][0], _mm256_madd_epi16(low, values));
          s->dot[v][1] = _mm256_add_epi32(s->dot[v][1], _mm256_madd_epi16(high, values));
        }
      }
    }
  }
}

// Dots of one token's parts, taken from the middle of the codes, as floats.
INLINE __m256 finish(const int parts, const __m256i dots[2], const int32_t middles[2]) {
  const __m256 high = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots[0], _mm256_set1_epi32(middles[0])));
  if (parts == 1) return high;
  const __m256 low = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots[1], _mm256_set1_epi32(middles[1])));
  return _mm256_fmadd_ps(high, _mm256_set1_ps(32768.0f), low);
}

// A token's sixteen lanes for each row of a half.
typedef struct {
  __m256 at[MF_LANES];
} lanes;

INLINE __m256 add_lanes(lanes *sum) {
  for (int width = MF_LANES / 2; width; width /= 2) {
    for (int i = 0; i < width; i++) sum->at[i] = _mm256_add_ps(sum->at[i], sum->at[i + width]);
  }
  return sum->at[0];
}

typedef struct {
  const mf_format *format;
  void *panel;
  float *y[VECTORS];        // of each token, where the panel's rows begin
  const void *x[VECTORS];
} tile;

INLINE void add_group(const int parts, const tile *t, uint32_t g, const sums *s, int token, lanes sum[2]) {
  const void *x = t->x[token];
  const float *factors = mf_panel_factors(t->format, t->panel) + (size_t)g * 2 * MF_PANEL_ROWS;
  const int32_t middles[2] = {mf_vector_middles(t->format, x, 0)[g], mf_vector_middles(t->format, x, 1)[g]};
  const __m256 total = _mm256_set1_ps(mf_vector_sums(t->format, x)[g]);
  const __m256 x_scale = _mm256_set1_ps(mf_vector_scales(x)[g]);
  for (int half = 0; half < 2; half++) {
    const __m256i dots[2] = {s->dot[token * parts][half], s->dot[token * parts + parts - 1][half]};
    const __m256 dot = finish(parts, dots, middles);
    const __m256 scale = _mm256_mul_ps(_mm256_load_ps(factors + HALF * half), x_scale);
    __m256 *lane = &sum[half].at[g % MF_LANES];
    *lane = _mm256_fmadd_ps(_mm256_load_ps(factors + MF_PANEL_ROWS + HALF * half), total, *lane);
    *lane = _mm256_fmadd_ps(dot, scale, *lane);
  }
}

INLINE void run_tile(const int bits, const int parts, const int tokens, const tile *t, ahead *next) {
  lanes sum[VECTORS][2];
  for (int token = 0; token < tokens; token++) {
    for (int i = 0; i < MF_LANES; i++) sum[token][0].at[i] = sum[token][1].at[i] = _mm256_setzero_ps();
  }
  const __m256i *words = t->panel;
  for (uint32_t g = 0; g < t->format->groups; g++, words += 2 * 2 * bits) {
    const int16_t *x[VECTORS];
    for (int v = 0; v < tokens * parts; v++) {
      const int16_t *values = mf_vector_integers(t->format, t->x[v / parts]);
      x[v] = values + (size_t)(v % parts) * mf_vector_step(t->format) + (size_t)g * MF_GROUP_SIZE;
    }
    sums s;
    prefetch(next);
    group_dots(bits, tokens * parts, words, x, &s);
    for (int token = 0; token < tokens; token++) add_group(parts, t, g, &s, token, sum[token]);
  }
  for (int token = 0; token < tokens; token++) {
    for (int half = 0; half < 2; half++) {
      _mm256_storeu_ps(t->y[token] + HALF * half, add_lanes(&sum[token][half]));
    }
  }
}

INLINE void run_panels(const int bits, const int parts, const mf_format *format, const mf_band *band,
                       const mf_columns *columns) {
  const uint32_t most = VECTORS / (uint32_t)parts, tiles = (columns->count + most - 1) / most;
  const uint32_t panel_lines = (uint32_t)(MF_PANEL_ROWS * mf_code_bytes(format) / 64);
  const uint32_t panels = band->count / MF_PANEL_ROWS;
  for (uint32_t i = 0; i < 2 * panels; i++) {
    const uint32_t side = i / panels, row = i % panels * MF_PANEL_ROWS;
    const mf_rows rows = mf_rows_from(format, band->run[side], row);
    tile t = {.format = format, .panel = columns->panel};
    ahead next = {mf_rows_from(format, rows, MF_PANEL_ROWS).codes, panel_lines / (tiles * format->groups) + 1};
    build(format, rows, t.panel);
    for (uint32_t c = 0; c < columns->count;) {
      const uint32_t left = columns->count - c, tokens = left >= most ? most : left >= 2 ? 2 : 1;
      for (uint32_t k = 0; k < tokens; k++) {
        t.x[k] = columns->at[c + k].x;
        t.y[k] = columns->at[c + k].y[side] + row;
      }
      if (parts == 1 && tokens == 4) run_tile(bits, parts, 4, &t, &next);
      else if (tokens == 2) run_tile(bits, parts, 2, &t, &next);
      else run_tile(bits, parts, 1, &t, &next);
      c += tokens;
    }
  }
}

void mf_panels_avx2(const mf_format *format, const mf_band *band, const mf_columns *columns) {
  if (format->bits == 4 && format->parts == 1) run_panels(4, 1, format, band, columns);
  else if (format->bits == 4) run_panels(4, 2, format, band, columns);
  else if (format->parts == 1) run_panels(8, 1, format, band, columns);
  else run_panels(8, 2, format, band, columns);
}
