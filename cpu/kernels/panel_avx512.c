// Panels with AVX-512 VNNI: a vector of sixteen rows, times up to twelve vectors of digits at a time.
#include <immintrin.h>

#include "panel.h"
#include "product.h"

#define INLINE static inline __attribute__((always_inline))

// Sixteen vectors of sixteen 32-bit words: rows become columns.
INLINE void transpose(__m512i r[16]) {
  __m512i t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Now u[4a + c] holds column 4q + c of rows 4a .. 4a + 3 in its quarter q.
  for (int c = 0; c < 4; c++) {
    const __m512i a = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88), b = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xDD), e = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xDD);
    r[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    r[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(a, b, 0xDD);
    r[12 + c] = _mm512_shuffle_i32x4(d, e, 0xDD);
  }
}

// Rows of codes are whole runs of 32 bytes: the last vector may be half of one.
INLINE void build_codes(const mf_format *format, mf_rows rows, __m512i *to) {
  const size_t row_bytes = mf_code_bytes(format);
  for (size_t at = 0; at < row_bytes; at += sizeof(__m512i), to += 16) {
    const int words = row_bytes - at < sizeof(__m512i) ? 8 : 16;
    const __mmask16 take = words == 8 ? 0x00FF : 0xFFFF;
    __m512i r[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_maskz_loadu_epi32(take, rows.codes + (size_t)i * row_bytes + at);
    transpose(r);
    for (int i = 0; i < words; i++) _mm512_store_si512(to + i, r[i]);
  }
}

INLINE __m512i bf16_words(const uint8_t *p, __mmask16 take) {
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(take, p)), 16);
}

INLINE void build_factors(const mf_format *format, mf_rows rows, float *to) {
  const size_t row_bytes = 2 * (size_t)format->groups;
  const __m512 middle = _mm512_set1_ps((float)mf_middle(format->bits));
  for (uint32_t g = 0; g < format->groups; g += 16) {
    const uint32_t n = format->groups - g < 16 ? format->groups - g : 16;
    const __mmask16 take = (__mmask16)((1u << n) - 1);
    __m512i scales[16], biases[16];
    for (int i = 0; i < 16; i++) {
      scales[i] = bf16_words(rows.scales + (size_t)i * row_bytes + 2 * (size_t)g, take);
      biases[i] = bf16_words(rows.biases + (size_t)i * row_bytes + 2 * (size_t)g, take);
    }
    transpose(scales);
    transpose(biases);
    for (uint32_t i = 0; i < n; i++) {
      float *at = to + (g + i) * 2 * MF_PANEL_ROWS;
      const __m512 scale = _mm512_castsi512_ps(scales[i]), bias = _mm512_castsi512_ps(biases[i]);
      _mm512_store_ps(at, scale);
      _mm512_store_ps(at + MF_PANEL_ROWS, _mm512_fmadd_ps(scale, middle, bias));
    }
  }
}

enum { TOKENS = 6, VECTORS = 2 * TOKENS };  // digits in a tile: tokens times parts times two

// Codes to come next, asked for while others are multiplied: building a panel goes down sixteen rows at
// once, an order that the processor does not foresee.
typedef struct {
  const uint8_t *at;
  uint32_t lines;  // for each group
} ahead;

INLINE void prefetch(ahead *next) {
  for (uint32_t i = 0; i < next->lines; i++, next->at += 64) _mm_prefetch((const char *)next->at, _MM_HINT_T1);
}

INLINE __m512i add_products(__m512i sum, __m512i codes, const int8_t *digits) {
  int32_t four;
  __builtin_memcpy(&four, digits, sizeof four);
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four));
}

// One group's dots of `count` vectors of digits; of 4-bit codes the odd elements' digits lie 64 further.
INLINE void group_dots(const int bits, const int count, const __m512i *words, const int8_t *const x[VECTORS],
                       __m512i dot[VECTORS]) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int v = 0; v < count; v++) dot[v] = _mm512_setzero_si512();
  for (int k = 0; k < 2 * bits; k++) {
    const __m512i codes = _mm512_load_si512(words + k);
    if (bits == 8) {
#pragma GCC unroll 12
      for (int v = 0; v < count; v++) dot[v] = add_products(dot[v], codes, x[v] + 4 * k);
      continue;
    }
    const __m512i even = _mm512_and_si512(codes, mask), odd = _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask);
#pragma GCC unroll 12
    for (int v = 0; v < count; v++) dot[v] = add_products(dot[v], even, x[v] + 4 * k);
#pragma GCC unroll 12
    for (int v = 0; v < count; v++) dot[v] = add_products(dot[v], odd, x[v] + 64 + 4 * k);
  }
}

// One part of a token: its two digits' dots, taken from the middle of the codes.
INLINE __m512 part_dot(const __m512i *digits, int32_t middle) {
  const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(digits[0], 8), digits[1]);
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(dot, _mm512_set1_epi32(middle)));
}

// A token's sixteen lanes for each row.
typedef struct {
  __m512 at[MF_LANES];
} lanes;

INLINE __m512 add_lanes(lanes *sum) {
  for (int width = MF_LANES / 2; width; width /= 2) {
    for (int i = 0; i < width; i++) sum->at[i] = _mm512_add_ps(sum->at[i], sum->at[i + width]);
  }
  return sum->at[0];
}

typedef struct {
  const mf_format *format;
  void *panel;
  float *y[TOKENS];        // of each token, where the panel's rows begin
  const void *x[TOKENS];
} tile;

INLINE void add_group(const int parts, const tile *t, uint32_t g, const __m512i *digits, const void *x, lanes *sum) {
  const float *factors = mf_panel_factors(t->format, t->panel) + (size_t)g * 2 * MF_PANEL_ROWS;
  __m512 dot = part_dot(digits, mf_vector_middles(t->format, x, 0)[g]);
  if (parts == 2) {
    const __m512 low = part_dot(digits + 2, mf_vector_middles(t->format, x, 1)[g]);
    dot = _mm512_fmadd_ps(dot, _mm512_set1_ps(32768.0f), low);
  }
  const __m512 scale = _mm512_mul_ps(_mm512_load_ps(factors), _mm512_set1_ps(mf_vector_scales(x)[g]));
  const __m512 total = _mm512_set1_ps(mf_vector_sums(t->format, x)[g]);
  __m512 *lane = &sum->at[g % MF_LANES];
  *lane = _mm512_fmadd_ps(_mm512_load_ps(factors + MF_PANEL_ROWS), total, *lane);
  *lane = _mm512_fmadd_ps(dot, scale, *lane);
}

INLINE void run_tile(const int bits, const int parts, const int tokens, const tile *t, ahead *next) {
  const int digits = 2 * parts;
  lanes sum[TOKENS];
  for (int token = 0; token < tokens; token++) {
    for (int i = 0; i < MF_LANES; i++) sum[token].at[i] = _mm512_setzero_ps();
  }
  const __m512i *words = t->panel;
  for (uint32_t g = 0; g < t->format->groups; g++, words += 2 * bits) {
    const size_t place = bits == 8 ? (size_t)g * MF_GROUP_SIZE : (size_t)(g / 2) * 128 + (g & 1) * 32;
    const int8_t *x[VECTORS];
    __m512i dot[VECTORS];
    for (int v = 0; v < tokens * digits; v++) {
      const int8_t *all = mf_vector_integers(t->format, t->x[v / digits]);
      x[v] = all + (size_t)(v % digits) * mf_vector_step(t->format) + place;
    }
    prefetch(next);
    group_dots(bits, tokens * digits, words, x, dot);
    for (int token = 0; token < tokens; token++) {
      add_group(parts, t, g, dot + token * digits, t->x[token], &sum[token]);
    }
  }
  for (int token = 0; token < tokens; token++) _mm512_storeu_ps(t->y[token], add_lanes(&sum[token]));
}

// The largest tile that `left` tokens fill.
INLINE uint32_t run_some(const int bits, const int parts, uint32_t left, const tile *t, ahead *next) {
  if (parts == 1 && left >= 6) return run_tile(bits, parts, 6, t, next), 6;
  if (parts == 1 && left >= 4) return run_tile(bits, parts, 4, t, next), 4;
  if (left >= 3) return run_tile(bits, parts, 3, t, next), 3;
  if (left == 2) return run_tile(bits, parts, 2, t, next), 2;
  return run_tile(bits, parts, 1, t, next), 1;
}

INLINE void run_panels(const int bits, const int parts, const mf_format *format, const mf_band *band,
                       const mf_columns *columns) {
  const uint32_t most = TOKENS / (uint32_t)parts, tiles = (columns->count + most - 1) / most;
  const uint32_t panel_lines = (uint32_t)(MF_PANEL_ROWS * mf_code_bytes(format) / 64);
  const uint32_t panels = band->count / MF_PANEL_ROWS;
  for (uint32_t i = 0; i < 2 * panels; i++) {
    const uint32_t side = i / panels, row = i % panels * MF_PANEL_ROWS;
    const mf_rows rows = mf_rows_from(format, band->run[side], row);
    tile t = {.format = format, .panel = columns->panel};
    ahead next = {mf_rows_from(format, rows, MF_PANEL_ROWS).codes, panel_lines / (tiles * format->groups) + 1};
    build_codes(format, rows, t.panel);
    build_factors(format, rows, mf_panel_factors(format, t.panel));
    for (uint32_t c = 0; c < columns->count;) {
      for (uint32_t k = 0; k < most && c + k < columns->count; k++) {
        t.x[k] = columns->at[c + k].x;
        t.y[k] = columns->at[c + k].y[side] + row;
      }
      c += run_some(bits, parts, columns->count - c, &t, &next);
    }
  }
}

void mf_panels_avx512(const mf_format *format, const mf_band *band, const mf_columns *columns) {
  if (format->bits == 4 && format->parts == 1) run_panels(4, 1, format, band, columns);
  else if (format->bits == 4) run_panels(4, 2, format, band, columns);
  else if (format->parts == 1) run_panels(8, 1, format, band, columns);
  else run_panels(8, 2, format, band, columns);
}
