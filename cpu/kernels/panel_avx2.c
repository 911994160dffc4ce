// Panels with AVX2: codes of sixteen rows, unpacked once for all columns, a run of groups at a time so that
// they stay in the first-level cache, times up to six vectors of activations held in registers.
//
// Two ways of multiplying, each in lanes of 32 bits with the row as the lane:
//   pairs  of columns: codes less their middle and activations, both as 16-bit numbers (vpmaddwd)
//   fours  of columns: 4-bit codes and 8-bit activations, both as bytes (vpmaddubsw); eight of their sums of two
//          products still fit 16 bits, 8 * 2 * 15 * 127 < 2^15
// The running sums of a column's outputs wait in memory while the others pass by.
#include <immintrin.h>
#include <string.h>

#include "panel.h"
#include "product.h"

#define INLINE static inline __attribute__((always_inline))

enum {
  HALF = 8,     // rows in a vector
  VECTORS = 6,  // of activations in a tile: tokens times parts; with two halves of rows twelve registers
  RUN = MF_PANEL_RUN,
  FOURS = MF_GROUP_SIZE / 4,
};

// Rows become columns. r[i] has the first four words of the rows i and 4 + i, r[4 + i] their last four: so loaded
// the words need not cross the halves of a vector.
INLINE void transpose(__m256i r[8]) {
  for (int i = 0; i < 8; i += 4) {
    const __m256i a = _mm256_unpacklo_epi32(r[i], r[i + 1]), b = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    const __m256i c = _mm256_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm256_unpackhi_epi32(r[i + 2], r[i + 3]);
    r[i] = _mm256_unpacklo_epi64(a, c);
    r[i + 1] = _mm256_unpackhi_epi64(a, c);
    r[i + 2] = _mm256_unpacklo_epi64(b, d);
    r[i + 3] = _mm256_unpackhi_epi64(b, d);
  }
}

// n <= 8 BF16 numbers, zeros after them; reads nothing beyond them.
INLINE __m128i bf16_load(const uint8_t *p, uint32_t n) {
  uint16_t some[8] = {0};
  if (n == 8) return _mm_loadu_si128((const __m128i *)p);
  memcpy(some, p, 2 * (size_t)n);
  return _mm_loadu_si128((const __m128i *)some);
}

// Those of eight rows as columns of floats.
INLINE void bf16_columns(const uint8_t *p, size_t row_bytes, uint32_t n, __m256i r[8]) {
  for (size_t i = 0; i < 4; i++) {
    const __m128i a = bf16_load(p + i * row_bytes, n), b = bf16_load(p + (4 + i) * row_bytes, n);
    r[i] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpacklo_epi64(a, b)), 16);
    r[4 + i] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpackhi_epi64(a, b)), 16);
  }
  transpose(r);
}

typedef enum { PAIRS, FOURS_OF_BYTES } way;

static way way_of(const mf_format *format) {
  return format->narrow && format->bits == 4 ? FOURS_OF_BYTES : PAIRS;
}

// Eight rows' words in the order of the activations, less the middle, as 16-bit numbers; into every second
// vector.
INLINE void spread_pairs(const int bits, const __m256i words[8], __m256i *to) {
  const __m256i mask = _mm256_set1_epi16(bits == 8 ? 255 : 15), middle = _mm256_set1_epi16(bits == 8 ? 128 : 8);
  for (int place = 0; place < 16 / bits; place++) {
    for (int k = 0; k < 8; k++, to += 2) {
      const __m256i shifted = place ? _mm256_srli_epi16(words[k], bits * place) : words[k];
      const __m256i code = place == 16 / bits - 1 ? shifted : _mm256_and_si256(shifted, mask);
      _mm256_store_si256(to, _mm256_sub_epi16(code, middle));
    }
  }
}

// The same as bytes: even columns, then odd ones.
INLINE void spread_bytes(const __m256i words[8], __m256i *to) {
  const __m256i mask = _mm256_set1_epi8(15);
  for (int k = 0; k < 8; k++, to += 2) {
    _mm256_store_si256(to, _mm256_and_si256(words[k], mask));
    _mm256_store_si256(to + FOURS, _mm256_and_si256(_mm256_srli_epi16(words[k], 4), mask));
  }
}

typedef struct {
  uint32_t first, count;
} run;

// Each 32 bytes of a row are eight words, as many vectors of codes as a word has pairs or fours.
INLINE void build_codes(const way way, const int bits, const mf_format *format, mf_rows rows, run groups,
                        __m256i *to) {
  const size_t row_bytes = mf_code_bytes(format);
  const uint8_t *codes = rows.codes + (size_t)groups.first * MF_GROUP_SIZE * bits / 8;
  const int vectors = 2 * 8 * (way == PAIRS ? 16 : 8) / bits;
  for (uint32_t i = 0; i < groups.count * (uint32_t)bits / 4; i++, codes += sizeof(__m256i), to += vectors) {
    for (int half = 0; half < 2; half++) {
      __m256i r[8];
      for (size_t k = 0; k < 8; k++) {
        const uint8_t *at = codes + (HALF * (size_t)half + k % 4) * row_bytes + k / 4 * sizeof(__m128i);
        r[k] = _mm256_loadu2_m128i((const __m128i *)(at + 4 * row_bytes), (const __m128i *)at);
      }
      transpose(r);
      if (way == PAIRS) spread_pairs(bits, r, to + half);
      else spread_bytes(r, to + half);
    }
  }
}

INLINE void build_factors(const mf_format *format, mf_rows rows, float *to) {
  const size_t row_bytes = 2 * (size_t)format->groups;
  const __m256 middle = _mm256_set1_ps((float)mf_middle(format->bits));
  for (uint32_t g = 0; g < format->groups; g += 8) {
    const uint32_t n = format->groups - g < 8 ? format->groups - g : 8;
    for (int half = 0; half < 2; half++) {
      __m256i scales[8], biases[8];
      const size_t first = HALF * (size_t)half * row_bytes + 2 * (size_t)g;
      bf16_columns(rows.scales + first, row_bytes, n, scales);
      bf16_columns(rows.biases + first, row_bytes, n, biases);
      for (uint32_t i = 0; i < n; i++) {
        float *at = to + (g + i) * 2 * MF_PANEL_ROWS + HALF * half;
        const __m256 scale = _mm256_castsi256_ps(scales[i]), bias = _mm256_castsi256_ps(biases[i]);
        _mm256_store_ps(at, scale);
        _mm256_store_ps(at + MF_PANEL_ROWS, _mm256_fmadd_ps(scale, middle, bias));
      }
    }
  }
}

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

// sum += v where the sum is. Left to itself the compiler holds values of a later step until it has run out of
// registers, or adds elsewhere and copies back: eight copies among forty instructions.
#define ADD_WORDS(sum, v) __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(v))
#define ADD_HALVES(sum, v) __asm__ volatile("vpaddw %1, %0, %0" : "+x"(sum) : "x"(v))

INLINE __m256i broadcast(const void *four_bytes) {
  int32_t word;
  memcpy(&word, four_bytes, sizeof word);
  return _mm256_set1_epi32(word);
}

// One group's dots of `count` vectors of 16-bit values.
INLINE void dot_pairs(const int count, const __m256i *codes, const int16_t *const x[VECTORS], sums *s) {
  __m256i a[VECTORS], b[VECTORS];
#pragma GCC unroll 6
  for (int v = 0; v < count; v++) a[v] = b[v] = _mm256_setzero_si256();
#pragma GCC unroll 2
  for (int pair = 0; pair < MF_GROUP_SIZE / 2; pair++) {
    const __m256i low = _mm256_load_si256(codes + 2 * pair), high = _mm256_load_si256(codes + 2 * pair + 1);
#pragma GCC unroll 6
    for (int v = 0; v < count; v++) {
      const __m256i values = broadcast(x[v] + 2 * pair);
      ADD_WORDS(a[v], _mm256_madd_epi16(low, values));
      ADD_WORDS(b[v], _mm256_madd_epi16(high, values));
    }
  }
#pragma GCC unroll 6
  for (int v = 0; v < count; v++) s->dot[v][0] = a[v], s->dot[v][1] = b[v];
}

// The same of vectors of bytes, half a group; onto what the sums are.
INLINE void dot_fours(const int count, const __m256i *codes, const int8_t *const x[VECTORS], sums *s) {
  __m256i a[VECTORS], b[VECTORS];
#pragma GCC unroll 6
  for (int v = 0; v < count; v++) a[v] = b[v] = _mm256_setzero_si256();
#pragma GCC unroll 2
  for (int four = 0; four < FOURS / 2; four++) {
    const __m256i low = _mm256_load_si256(codes + 2 * four), high = _mm256_load_si256(codes + 2 * four + 1);
#pragma GCC unroll 6
    for (int v = 0; v < count; v++) {
      const __m256i values = broadcast(x[v] + 4 * four);
      ADD_HALVES(a[v], _mm256_maddubs_epi16(low, values));
      ADD_HALVES(b[v], _mm256_maddubs_epi16(high, values));
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 6
  for (int v = 0; v < count; v++) {
    s->dot[v][0] = _mm256_add_epi32(s->dot[v][0], _mm256_madd_epi16(a[v], ones));
    s->dot[v][1] = _mm256_add_epi32(s->dot[v][1], _mm256_madd_epi16(b[v], ones));
  }
}

// A tile: some tokens, and a run of groups of a panel.
typedef struct {
  const mf_format *format;
  const __m256i *codes;
  const float *factors;
  run groups;
  const void *x[VECTORS];
  float *lanes[VECTORS];  // of each token: MF_LANES times MF_PANEL_ROWS sums
} tile;

// What one token brings to a tile.
typedef struct {
  const int16_t *x;
  const int8_t *bytes;
  const float *scale, *sum;
  const int32_t *middle;
  float *lanes;
} token;

INLINE void add_group(const int parts, const float *factors, const token *from, uint32_t g, const __m256i (*dots)[2]) {
  float *lane = from->lanes + g % MF_LANES * MF_PANEL_ROWS;
  const __m256 total = _mm256_broadcast_ss(from->sum + g), x_scale = _mm256_broadcast_ss(from->scale + g);
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++, factors += HALF, lane += HALF) {
    __m256 dot = _mm256_cvtepi32_ps(dots[0][half]);
    if (parts == 2) {
      dot = _mm256_fmadd_ps(dot, _mm256_set1_ps(32768.0f), _mm256_cvtepi32_ps(dots[1][half]));
    }
    const __m256 before = g < MF_LANES ? _mm256_setzero_ps() : _mm256_load_ps(lane);
    const __m256 sum = _mm256_fmadd_ps(_mm256_load_ps(factors + MF_PANEL_ROWS), total, before);
    _mm256_store_ps(lane, _mm256_fmadd_ps(dot, _mm256_mul_ps(_mm256_load_ps(factors), x_scale), sum));
  }
}

INLINE void group_pairs(const int parts, const int tokens, const tile *t, uint32_t i, const token *from, sums *s) {
  const size_t g = t->groups.first + i, step = mf_vector_step(t->format);
  const int16_t *x[VECTORS];
#pragma GCC unroll 6
  for (int v = 0; v < tokens * parts; v++) {
    x[v] = from[v / parts].x + (size_t)(v % parts) * step + g * MF_GROUP_SIZE;
  }
  dot_pairs(tokens * parts, t->codes + (size_t)i * MF_GROUP_SIZE, x, s);
}

INLINE void group_fours(const int tokens, const tile *t, uint32_t i, const token *from, sums *s) {
  const size_t g = t->groups.first + i;
  const __m256i *codes = t->codes + (size_t)i * 2 * FOURS;
  const int8_t *x[VECTORS];
#pragma GCC unroll 6
  for (int v = 0; v < tokens; v++) {
    x[v] = from[v].bytes + g * MF_GROUP_SIZE;
    s->dot[v][0] = s->dot[v][1] = _mm256_set1_epi32(-from[v].middle[g]);
  }
  dot_fours(tokens, codes, x, s);
#pragma GCC unroll 6
  for (int v = 0; v < tokens; v++) x[v] += MF_GROUP_SIZE / 2;
  dot_fours(tokens, codes + FOURS, x, s);
}

INLINE void run_tile(const way way, const int parts, const int tokens, const tile *t, ahead *next) {
  token from[VECTORS];
  for (int k = 0; k < tokens; k++) {
    const void *x = t->x[k];
    from[k] = (token){mf_vector_integers(t->format, x), mf_vector_narrow(t->format, x), mf_vector_scales(x),
                      mf_vector_sums(t->format, x), mf_vector_middles(t->format, x, 0), t->lanes[k]};
  }
  for (uint32_t i = 0; i < t->groups.count; i++) {
    const uint32_t g = t->groups.first + i;
    sums s;
    prefetch(next);
    if (way == PAIRS) group_pairs(parts, tokens, t, i, from, &s);
    else group_fours(tokens, t, i, from, &s);
#pragma GCC unroll 6
    for (int k = 0; k < tokens; k++) {
      add_group(parts, t->factors + (size_t)g * 2 * MF_PANEL_ROWS, &from[k], g, s.dot + k * parts);
    }
  }
}

INLINE void run_tokens(const way way, const int parts, uint32_t tokens, const tile *t, ahead *next) {
  if (tokens == 1) run_tile(way, parts, 1, t, next);
  else if (tokens == 2) run_tile(way, parts, 2, t, next);
  else if (tokens == 3) run_tile(way, parts, 3, t, next);
  else if (parts == 1 && tokens == 4) run_tile(way, parts, 4, t, next);
  else if (parts == 1 && tokens == 5) run_tile(way, parts, 5, t, next);
  else if (parts == 1) run_tile(way, parts, 6, t, next);
}

static void run_some(uint32_t tokens, const tile *t, ahead *next) {
  if (way_of(t->format) == FOURS_OF_BYTES) run_tokens(FOURS_OF_BYTES, 1, tokens, t, next);
  else if (t->format->parts == 1) run_tokens(PAIRS, 1, tokens, t, next);
  else run_tokens(PAIRS, 2, tokens, t, next);
}

INLINE void add_lanes(const float *lanes, float *y) {
  for (int half = 0; half < 2; half++) {
    __m256 sum[MF_LANES];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < MF_LANES; i++) {
      sum[i] = _mm256_load_ps(lanes + MF_PANEL_ROWS * i + HALF * half);
    }
#pragma GCC unroll 4
    for (int width = MF_LANES / 2; width; width /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < width; i++) sum[i] = _mm256_add_ps(sum[i], sum[i + width]);
    }
    _mm256_storeu_ps(y + HALF * half, sum[0]);
  }
}

// Sixteen rows times up to MF_PANEL_BATCH columns.
static void run_panel(const mf_format *format, mf_rows rows, const mf_columns *columns, int side, uint32_t row) {
  float *factors = columns->panel, *lanes = factors + (size_t)mf_padded(format->groups) * 2 * MF_PANEL_ROWS;
  __m256i *codes = (__m256i *)(void *)(lanes + (size_t)columns->count * MF_LANES * MF_PANEL_ROWS);
  const uint32_t most = VECTORS / format->parts, tiles = (columns->count + most - 1) / most;
  const uint32_t panel_lines = (uint32_t)(MF_PANEL_ROWS * mf_code_bytes(format) / 64);
  ahead next = {mf_rows_from(format, rows, MF_PANEL_ROWS).codes, panel_lines / (tiles * format->groups) + 1};
  build_factors(format, rows, factors);
  if (format->groups < MF_LANES) memset(lanes, 0, columns->count * sizeof(float) * MF_LANES * MF_PANEL_ROWS);
  for (uint32_t g = 0; g < format->groups; g += RUN) {
    const run groups = {g, format->groups - g < RUN ? format->groups - g : RUN};
    tile t = {.format = format, .codes = codes, .factors = factors, .groups = groups};
    if (way_of(format) == FOURS_OF_BYTES) build_codes(FOURS_OF_BYTES, 4, format, rows, groups, codes);
    else if (format->bits == 4) build_codes(PAIRS, 4, format, rows, groups, codes);
    else build_codes(PAIRS, 8, format, rows, groups, codes);
    for (uint32_t c = 0, i = 0; i < tiles; i++) {
      const uint32_t end = columns->count * (i + 1) / tiles, first = c;
      for (; c < end; c++) {
        t.x[c - first] = columns->at[c].x;
        t.lanes[c - first] = lanes + (size_t)c * MF_LANES * MF_PANEL_ROWS;
      }
      run_some(end - first, &t, &next);
    }
  }
  for (uint32_t c = 0; c < columns->count; c++) {
    add_lanes(lanes + (size_t)c * MF_LANES * MF_PANEL_ROWS, columns->at[c].y[side] + row);
  }
}

void mf_panels_avx2(const mf_format *format, const mf_band *band, const mf_columns *columns) {
  for (uint32_t c = 0; c < columns->count; c += MF_PANEL_BATCH) {
    const uint32_t left = columns->count - c, count = left < MF_PANEL_BATCH ? left : MF_PANEL_BATCH;
    const mf_columns some = {columns->at + c, count, columns->panel};
    for (int side = 0; side < 2; side++) {
      for (uint32_t row = 0; row < band->count; row += MF_PANEL_ROWS) {
        run_panel(format, mf_rows_from(format, band->run[side], row), &some, side, row);
      }
    }
  }
}
