// Causal attention with grouped heads over a ring or linear KV cache, as blocks of keys.
//
//   a tile   up to TILE_ROWS rows (token t, head h of one group g), which share every read of K and V
//   a span   SPAN keys, aligned to absolute positions: scores, their softmax and the sum of values
//   a block  up to BLOCK_MAX keys, widened to float32 once for the whole tile
//
// The spans of a row are merged in ascending order. Tile, threads and T decide only who computes what:
// a row's bits depend on its own keys alone. With few tiles (decode) the spans are spread over the
// threads and merged afterwards by the same arithmetic.
#ifndef MF_ATTENTION_VECTOR_H
#define MF_ATTENTION_VECTOR_H
#include "vector.h"

enum { TILE_ROWS = 32, SPAN = 256, BLOCK_MAX = 16, BLOCK_FLOATS = 4096, WIDE = 4 };
// Most floats of scratch that spans may be spread over (64 MiB).
#define SPREAD_FLOATS_MAX ((uint64_t)1 << 24)

// The parameters of both kernels are laid out alike.
typedef mf_attention_f32_params mf_attention_params;

// What every span of one dispatch needs.
typedef struct {
  const mf_attention_params *p;
  const float *q;
  const uint8_t *keys;
  const uint8_t *values;
  float *y;
  float *wide;    // [block, Dh]: a block of half-precision rows, widened
  float *scores;  // [TILE_ROWS, SPAN]
  uint32_t block; // keys of a block: half of a first-level cache
  bool is_half;
} mf_attention;

// Row r of group g: token r / group, head g * group + r % group.
typedef struct {
  uint32_t g;
  uint32_t row;    // first row
  uint32_t rows;
  uint32_t first;  // oldest key that any row sees
  uint32_t end;    // newest key that any row sees, and 1
} mf_tile;

// Softmax state of one row: the maximum, the sum of exponentials, and then Dh weighted values.
typedef struct {
  float top;
  float sum;
} mf_mass;

MF_INLINE uint32_t group_of(const mf_attention_params *p) { return p->H / p->Hkv; }

// Keys [*first, *end) that the query of token t sees.
MF_INLINE void visible(const mf_attention_params *p, uint32_t t, uint32_t *first, uint32_t *end) {
  *end = p->position + t + 1;
  *first = p->window != 0 && *end > p->window ? *end - p->window : 0;
}

static mf_tile tile_at(const mf_attention_params *p, uint32_t index, uint32_t tiles) {
  const uint32_t rows = p->T * group_of(p);
  mf_tile tile = {index / tiles, index % tiles * TILE_ROWS, 0, 0, 0};
  tile.rows = rows - tile.row < TILE_ROWS ? rows - tile.row : TILE_ROWS;
  uint32_t ignored;
  visible(p, tile.row / group_of(p), &tile.first, &ignored);
  visible(p, (tile.row + tile.rows - 1) / group_of(p), &ignored, &tile.end);
  return tile;
}

MF_INLINE size_t query_at(const mf_attention_params *p, const mf_tile *tile, uint32_t r) {
  const uint32_t group = group_of(p), row = tile->row + r;
  return ((size_t)(row / group) * p->H + tile->g * group + row % group) * p->Dh;
}

// Asks for the row of the key u of group g. A row is a small part of a page, which no processor
// foresees: without this, decoding reads at a quarter of the speed.
MF_INLINE void prefetch_row(const mf_attention *a, const uint8_t *cache, uint32_t g, uint32_t u) {
  const mf_attention_params *p = a->p;
  const size_t head_bytes = (size_t)p->Dh * (a->is_half ? 2 : 4);
  const uint8_t *row = cache + ((size_t)(u % p->R) * p->Hkv + g) * head_bytes;
  for (size_t i = 0; i < head_bytes; i += 64) __builtin_prefetch(row + i, 0, 3);
}

// Whether half-precision rows are widened as they are used: two rows read each value only once.
MF_INLINE bool is_narrow(const mf_attention *a, const mf_tile *tile) {
  return a->is_half && tile->rows <= 2;
}

MF_INLINE vf element(const void *row, bool is_narrow, uint32_t d) {
  return is_narrow ? vf_from_f16((const uint16_t *)row + d) : vf_load((const float *)row + d);
}

// Where the block after this one begins.
typedef struct {
  const uint8_t *cache;
  uint32_t u;
} mf_next;

// Rows of the keys u .. u + count - 1 of a tile's group, widened where the tile wants it; meanwhile the
// next block is fetched.
MF_INLINE void load_block(const mf_attention *a, const mf_tile *tile, const uint8_t *cache, uint32_t u,
                          uint32_t count, mf_next next, const void **rows) {
  const mf_attention_params *p = a->p;
  const uint32_t Dh = p->Dh;
  const size_t element_bytes = a->is_half ? 2 : 4;
  const size_t row_bytes = (size_t)p->Hkv * Dh * element_bytes;
  uint32_t slot = u % p->R;
  for (uint32_t i = 0; i < count; i++) {
    const uint8_t *row = cache + slot * row_bytes + (size_t)tile->g * Dh * element_bytes;
    if (++slot == p->R) slot = 0;
    prefetch_row(a, next.cache, tile->g, next.u + i);
    rows[i] = row;
    if (!a->is_half || is_narrow(a, tile)) continue;
    float *wide = a->wide + (size_t)i * Dh;
#pragma GCC unroll 4
    for (uint32_t d = 0; d < Dh; d += VF) vf_store(wide + d, vf_from_f16((const uint16_t *)row + d));
    rows[i] = wide;
  }
}

// Scores of `rows` (1 or 2) queries with four keys.
MF_INLINE void score_four(const float *const *q, uint32_t rows, const void *const *k, bool is_narrow,
                          uint32_t Dh, float (*out)[4]) {
  vf sum[2][4];
  for (uint32_t r = 0; r < rows; r++) {
    for (int i = 0; i < 4; i++) sum[r][i] = vf_splat(0);
  }
  for (uint32_t d = 0; d < Dh; d += VF) {
    vf x[2];
    for (uint32_t r = 0; r < rows; r++) x[r] = vf_load(q[r] + d);
    for (int i = 0; i < 4; i++) {
      const vf key = element(k[i], is_narrow, d);
      for (uint32_t r = 0; r < rows; r++) sum[r][i] = vf_fma(x[r], key, sum[r][i]);
    }
  }
  for (uint32_t r = 0; r < rows; r++) {
    for (int i = 0; i < 4; i++) out[r][i] = vf_sum(sum[r][i]);
  }
}

// Scores of the tile's rows with a block of keys.
MF_INLINE void score_block(const mf_attention *a, const mf_tile *tile, const void **k, bool is_narrow,
                           uint32_t count, float *scores) {
  const uint32_t Dh = a->p->Dh;
  // A short block repeats its last key; the surplus scores are not kept.
  for (uint32_t i = count; i % 4 != 0; i++) k[i] = k[count - 1];
  for (uint32_t r = 0; r < tile->rows; r += 2) {
    const uint32_t rows = tile->rows - r < 2 ? 1 : 2;
    const float *q[2] = {a->q + query_at(a->p, tile, r), NULL};
    if (rows == 2) q[1] = a->q + query_at(a->p, tile, r + 1);
    for (uint32_t i = 0; i < count; i += 4) {
      float out[2][4];
      if (rows == 2) {
        score_four(q, 2, k + i, is_narrow, Dh, out);
      } else {
        score_four(q, 1, k + i, is_narrow, Dh, out);
      }
      const uint32_t kept = count - i < 4 ? count - i : 4;
      for (uint32_t j = 0; j < rows; j++) {
        for (uint32_t n = 0; n < kept; n++) scores[(r + j) * SPAN + i + n] = a->p->scale * out[j][n];
      }
    }
  }
}

// Columns of a span's scores.
typedef struct {
  uint32_t first;
  uint32_t end;
} mf_columns;

// Of the tile's columns turns a row's own scores into exponentials and the others into 0. Sums go by the
// column in the span, so that they do not depend on the tile.
static mf_mass exponentials(float *scores, mf_columns tile, mf_columns row) {
  if (row.first >= row.end) {
    memset(scores + tile.first, 0, (tile.end - tile.first) * sizeof *scores);
    return (mf_mass){-INFINITY, 0};
  }
  const uint32_t first = tile.first / VF * VF, end = (tile.end + VF - 1) / VF * VF;
  for (uint32_t i = first; i < row.first; i++) scores[i] = -INFINITY;
  for (uint32_t i = row.end; i < end; i++) scores[i] = -INFINITY;
  vf top = vf_splat(-INFINITY);
  for (uint32_t i = first; i < end; i += VF) top = vf_max(vf_load(scores + i), top);
  const mf_mass mass = {vf_top(top), 0};
  vf sum = vf_splat(0);
  for (uint32_t i = first; i < end; i += VF) {
    const vf e = vf_exp(vf_load(scores + i) - vf_splat(mass.top));
    vf_store(scores + i, e);
    sum += e;
  }
  return (mf_mass){mass.top, vf_sum(sum)};
}

// Columns of the keys that a row of the tile sees.
MF_INLINE mf_columns row_columns(const mf_attention_params *p, const mf_tile *tile, uint32_t r,
                                 uint32_t base) {
  mf_columns row;
  visible(p, (tile->row + r) / group_of(p), &row.first, &row.end);
  row.first = row.first > base ? row.first - base : 0;
  row.end = row.end > base ? row.end - base : 0;
  if (row.end > SPAN) row.end = SPAN;
  return row;
}

// out[r] += sum over the block of weight[r] * value, on `width` vectors from component d on.
MF_INLINE void add_values(const float *const *weight, uint32_t rows, const void *const *v, bool is_narrow,
                          uint32_t count, float *const *out, uint32_t d, int width) {
  vf sum[2][WIDE];
  for (uint32_t r = 0; r < rows; r++) {
    for (int i = 0; i < width; i++) sum[r][i] = vf_load(out[r] + d + i * VF);
  }
  for (uint32_t u = 0; u < count; u++) {
    vf w[2];
    for (uint32_t r = 0; r < rows; r++) w[r] = vf_splat(weight[r][u]);
    for (int i = 0; i < width; i++) {
      const vf value = element(v[u], is_narrow, d + i * VF);
      for (uint32_t r = 0; r < rows; r++) sum[r][i] = vf_fma(w[r], value, sum[r][i]);
    }
  }
  for (uint32_t r = 0; r < rows; r++) {
    for (int i = 0; i < width; i++) vf_store(out[r] + d + i * VF, sum[r][i]);
  }
}

MF_INLINE void value_block(const mf_attention *a, uint32_t rows, const void *const *v, bool is_narrow,
                           uint32_t count, const float *weights, float *out) {
  const uint32_t Dh = a->p->Dh;
  for (uint32_t r = 0; r < rows; r += 2) {
    const float *w[2] = {weights + r * SPAN, weights + (r + 1) * SPAN};
    float *o[2] = {out + (size_t)r * Dh, out + (size_t)(r + 1) * Dh};
    const bool is_pair = rows - r >= 2;
    uint32_t d = 0;
    for (; d + WIDE * VF <= Dh; d += WIDE * VF) {
      if (is_pair) {
        add_values(w, 2, v, is_narrow, count, o, d, WIDE);
      } else {
        add_values(w, 1, v, is_narrow, count, o, d, WIDE);
      }
    }
    for (; d < Dh; d += VF) {
      if (is_pair) {
        add_values(w, 2, v, is_narrow, count, o, d, 1);
      } else {
        add_values(w, 1, v, is_narrow, count, o, d, 1);
      }
    }
  }
}

// One span of a tile: out[r] = sum of exponential * value, and each row's mass.
static void attend_span(const mf_attention *a, const mf_tile *tile, uint32_t span, mf_mass *mass,
                        float *out) {
  const mf_attention_params *p = a->p;
  const uint32_t base = span * SPAN;
  const uint32_t first = tile->first > base ? tile->first : base;
  const uint32_t end = tile->end - base < SPAN ? tile->end : base + SPAN;
  const uint32_t block = a->block;
  const void *rows[BLOCK_MAX];
  for (uint32_t u = first; u < end; u += block) {
    const uint32_t count = end - u < block ? end - u : block;
    const bool is_last = end - u <= block;
    const mf_next next = {is_last ? a->values : a->keys, is_last ? first : u + block};
    load_block(a, tile, a->keys, u, count, next, rows);
    if (is_narrow(a, tile)) {
      score_block(a, tile, rows, true, count, a->scores + (u - base));
    } else {
      score_block(a, tile, rows, false, count, a->scores + (u - base));
    }
  }
  const mf_columns columns = {first - base, end - base};
  for (uint32_t r = 0; r < tile->rows; r++) {
    mass[r] = exponentials(a->scores + r * SPAN, columns, row_columns(p, tile, r, base));
  }
  memset(out, 0, (size_t)tile->rows * p->Dh * sizeof *out);
  for (uint32_t u = first; u < end; u += block) {
    const uint32_t count = end - u < block ? end - u : block;
    const bool is_last = end - u <= block;
    const mf_next next = {is_last ? a->keys : a->values, u + block};
    load_block(a, tile, a->values, u, count, next, rows);
    if (is_narrow(a, tile)) {
      value_block(a, tile->rows, rows, true, count, a->scores + (u - base), out);
    } else {
      value_block(a, tile->rows, rows, false, count, a->scores + (u - base), out);
    }
  }
}

// Adds a later span to what the spans before it gave.
static void merge(mf_mass *total, float *y, const mf_mass *mass, const float *out, uint32_t Dh) {
  if (mass->sum == 0) return;
  if (total->sum == 0) {
    *total = *mass;
    memcpy(y, out, Dh * sizeof *y);
    return;
  }
  const float top = total->top > mass->top ? total->top : mass->top;
  const vf before = vf_exp(vf_splat(total->top - top));
  const vf now = vf_exp(vf_splat(mass->top - top));
  for (uint32_t d = 0; d < Dh; d += VF) {
    vf_store(y + d, vf_fma(vf_load(out + d), now, vf_load(y + d) * before));
  }
  float sum[VF];
  vf_store(sum, vf_fma(vf_splat(mass->sum), now, vf_splat(total->sum) * before));
  *total = (mf_mass){top, sum[0]};
}

static void finish(float *y, const mf_mass *total, uint32_t Dh) {
  const vf factor = vf_splat(1.0f / total->sum);
  for (uint32_t d = 0; d < Dh; d += VF) vf_store(y + d, vf_load(y + d) * factor);
}

// How a dispatch is cut.
typedef struct {
  uint32_t tiles;     // of one group
  uint32_t all;       // of all groups
  uint32_t tile_rows; // of the largest tile
  uint32_t spans;     // of the tile with the longest range
} mf_cut;

static mf_cut cut_of(const mf_attention_params *p) {
  const uint32_t rows = p->T * group_of(p);
  mf_cut cut = {(rows + TILE_ROWS - 1) / TILE_ROWS, 0, rows < TILE_ROWS ? rows : TILE_ROWS, 0};
  cut.all = cut.tiles * p->Hkv;
  for (uint32_t i = 0; i < cut.tiles; i++) {
    const mf_tile tile = tile_at(p, i, cut.tiles);
    const uint32_t spans = (tile.end - 1) / SPAN - tile.first / SPAN + 1;
    if (spans > cut.spans) cut.spans = spans;
  }
  return cut;
}

// Every thread takes whole tiles; the running result of a row is its output.
static void attend_tiles(const mf_task *task, const mf_attention *a, const mf_cut *cut, float *out) {
  const mf_attention_params *p = a->p;
  mf_mass mass[TILE_ROWS], total[TILE_ROWS];
  for (uint32_t i; (i = mf_take(task, 0, cut->all)) < cut->all;) {
    const mf_tile tile = tile_at(p, i, cut->tiles);
    for (uint32_t r = 0; r < tile.rows; r++) total[r] = (mf_mass){-INFINITY, 0};
    for (uint32_t span = tile.first / SPAN; span <= (tile.end - 1) / SPAN; span++) {
      attend_span(a, &tile, span, mass, out);
      for (uint32_t r = 0; r < tile.rows; r++) {
        merge(&total[r], a->y + query_at(p, &tile, r), &mass[r], out + (size_t)r * p->Dh, p->Dh);
      }
    }
    for (uint32_t r = 0; r < tile.rows; r++) finish(a->y + query_at(p, &tile, r), &total[r], p->Dh);
  }
}

// Every thread takes spans of tiles; `shared` holds a result for each, and then a mass for each.
static void attend_spans(const mf_task *task, const mf_attention *a, const mf_cut *cut, float *shared) {
  const mf_attention_params *p = a->p;
  const uint32_t cells = cut->all * cut->spans;
  const size_t cell_floats = (size_t)cut->tile_rows * p->Dh;
  mf_mass *masses = (mf_mass *)(shared + cells * cell_floats);
  for (uint32_t cell; (cell = mf_take(task, 0, cells)) < cells;) {
    // Neighbouring cells are the groups of one span, neighbours in memory too.
    const mf_tile tile = tile_at(p, cell % cut->all, cut->tiles);
    const uint32_t span = tile.first / SPAN + cell / cut->all;
    if (span > (tile.end - 1) / SPAN) continue;
    attend_span(a, &tile, span, masses + cell * cut->tile_rows, shared + cell * cell_floats);
  }
  mf_barrier(task);
  const uint32_t rows = cut->all * cut->tile_rows;
  for (uint32_t i; (i = mf_take(task, 1, rows)) < rows;) {
    const uint32_t r = i % cut->tile_rows;
    const mf_tile tile = tile_at(p, i / cut->tile_rows, cut->tiles);
    if (r >= tile.rows) continue;
    float *y = a->y + query_at(p, &tile, r);
    mf_mass total = {-INFINITY, 0};
    const uint32_t spans = (tile.end - 1) / SPAN - tile.first / SPAN + 1;
    for (uint32_t s = 0; s < spans; s++) {
      const size_t cell = (size_t)s * cut->all + i / cut->tile_rows;
      merge(&total, y, &masses[cell * cut->tile_rows + r], shared + cell * cell_floats + (size_t)r * p->Dh,
            p->Dh);
    }
    finish(y, &total, p->Dh);
  }
}

static bool is_possible(const mf_task *task, const mf_attention_params *p) {
  if (p->T == 0 || p->Hkv == 0 || p->H % p->Hkv != 0 || p->Dh % 16 != 0 || p->Dh == 0) {
    mf_fail(task, "attention: %u tokens, %u heads over %u, head dim %u: heads must divide evenly and the "
            "head dim be a multiple of 16", p->T, p->H, p->Hkv, p->Dh);
    return false;
  }
  const uint64_t end = (uint64_t)p->position + p->T;
  const uint64_t longest = p->window == 0 ? end : (uint64_t)p->window + p->T - 1;
  const uint64_t needed = longest < end ? longest : end;
  if (end <= UINT32_MAX && needed <= p->R) return true;
  mf_fail(task, "attention: %u tokens from position %u with window %u need %llu cache rows, there are %u",
          p->T, p->position, p->window, (unsigned long long)needed, p->R);
  return false;
}

// A multiple of four, the keys that are scored at once.
static uint32_t block_of(uint32_t Dh) {
  const uint32_t fours = BLOCK_FLOATS / 4 / Dh;
  return 4 * (fours < 1 ? 1 : fours < BLOCK_MAX / 4 ? fours : BLOCK_MAX / 4);
}

MF_INLINE void attend(const mf_task *task, bool is_half) {
  const mf_attention_params *p = task->params;
  if (!is_possible(task, p)) return;
  const mf_cut cut = cut_of(p);
  const uint64_t cells = (uint64_t)cut.all * cut.spans * cut.tile_rows;
  const bool is_spread = cut.spans > 1 && cut.all < 4 * task->threads && task->threads > 1 &&
                         cells * (p->Dh + 2) <= SPREAD_FLOATS_MAX;
  const uint32_t block = block_of(p->Dh);
  const size_t wide_floats = (size_t)block * p->Dh, score_floats = (size_t)TILE_ROWS * SPAN;
  const size_t out_floats = is_spread ? 0 : (size_t)cut.tile_rows * p->Dh;
  float *own = mf_scratch(task, (wide_floats + score_floats + out_floats) * sizeof(float));
  float *shared = is_spread ? mf_shared_scratch(task, cells * (p->Dh + 2) * sizeof(float)) : own;
  if (own == NULL || shared == NULL) {
    if (is_spread) mf_barrier(task);
    return;
  }
  const mf_attention a = {p,
                          task->buffers[MF_ATTENTION_F32_Q],
                          task->buffers[MF_ATTENTION_F32_KEYS],
                          task->buffers[MF_ATTENTION_F32_VALUES],
                          task->buffers[MF_ATTENTION_F32_Y],
                          own,
                          own + wide_floats,
                          block,
                          is_half};
  if (is_spread) {
    attend_spans(task, &a, &cut, shared);
  } else {
    attend_tiles(task, &a, &cut, own + wide_floats + score_floats);
  }
}

void MF_ON_PATH(attention_f32)(const mf_task *task) { attend(task, false); }
void MF_ON_PATH(attention_f16)(const mf_task *task) { attend(task, true); }
#endif
