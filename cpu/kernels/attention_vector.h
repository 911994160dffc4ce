// Causal attention with grouped heads over a ring or linear KV cache, as blocks of keys.
//
//   a tile   up to TILE_ROWS rows (token t, head h of one group g), which share every read of K and V
//   a span   SPAN keys, aligned to absolute positions: scores, their softmax and the sum of values
//   a block  up to BLOCK_MAX keys, widened to float32 once for the whole tile
//   a few    up to FEW rows, whose sums with four keys, or with WIDE vectors of values, fill the registers
//
// The spans of a row are merged in ascending order. Tile, threads and T decide only who computes what:
// a row's bits depend on its own keys alone. With few tiles (decode) spans are given to the threads one
// by one and merged afterwards by the same arithmetic.
#ifndef MF_ATTENTION_VECTOR_H
#define MF_ATTENTION_VECTOR_H
#include "vector.h"

enum { TILE_ROWS = 32, SPAN = 256, BLOCK_MAX = 16, BLOCK_FLOATS = 4096, FEW = 3, WIDE = 4, STEP = 16 };
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
  float *wide;    // a block of half-precision keys, or a part of its values, widened
  float *scores;  // [TILE_ROWS, SPAN]
  uint32_t block; // keys of a block: half of a first-level cache. Values are taken by BLOCK_MAX
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

// How the elements of a block are kept.
typedef enum {
  FLOATS,       // as they are used
  HALVES,       // to be widened
  HALVES_KEPT,  // to be widened, and stored for the rows that follow
  WIDENED,      // that were stored so
} mf_form;

// The rows of a block's keys or values, and those of the block after it.
typedef struct {
  const uint8_t *rows[BLOCK_MAX];
  const uint8_t *next[BLOCK_MAX];
  uint32_t count;
  mf_form form;  // for the first rows of a tile
  float *wide;
} mf_block;

// Where the block after this one begins.
typedef struct {
  const uint8_t *cache;
  uint32_t u;
} mf_next;

// Rows of the keys u .. u + count - 1 of group g.
MF_INLINE void list_rows(const mf_attention *a, uint32_t g, mf_next from, uint32_t count,
                         const uint8_t **rows) {
  const mf_attention_params *p = a->p;
  const size_t head_bytes = (size_t)p->Dh * (a->is_half ? 2 : 4);
  uint32_t slot = from.u % p->R;
  for (uint32_t i = 0; i < count; i++) {
    rows[i] = from.cache + ((size_t)slot * p->Hkv + g) * head_bytes;
    if (++slot == p->R) slot = 0;
  }
}

// Rows that are computed together where `left` are left; four go as two and two.
MF_INLINE uint32_t few_of(uint32_t left) { return left == 4 ? 2 : left < FEW ? left : FEW; }

// Rows of the next block that are asked for during one part of the work on this block. A row is a small
// part of a page, which no processor foresees; and asked for all at once they would keep the loads waiting.
typedef struct {
  const uint8_t *const *rows;
  uint32_t count;
  uint32_t element_bytes;
} mf_ahead;

MF_INLINE mf_ahead ahead_of(const mf_attention *a, const mf_block *b, uint32_t part, uint32_t parts) {
  const uint32_t first = b->count * part / parts, end = b->count * (part + 1) / parts;
  return (mf_ahead){b->next + first, end - first, a->is_half ? 2 : 4};
}

MF_INLINE void ask(mf_ahead ahead, uint32_t d) {
  for (uint32_t i = 0; i < ahead.count; i++) {
    __builtin_prefetch(ahead.rows[i] + (size_t)d * ahead.element_bytes, 0, 3);
  }
}

// Scores of `rows` queries with four keys. Widened keys lie in turn in `wide`, [Dh / VF, 4, VF].
MF_INLINE void score_four(const float *const *queries, uint32_t rows, mf_form form,
                          const uint8_t *const *keys, float *wide, uint32_t Dh, mf_ahead ahead,
                          vf_quad *out) {
  const float *q[FEW];
  const uint8_t *k[4];
  vf sum[FEW][4];
  for (uint32_t r = 0; r < rows; r++) {
    q[r] = queries[r];
    for (int i = 0; i < 4; i++) sum[r][i] = vf_splat(0);
  }
  for (int i = 0; i < 4; i++) k[i] = keys[i];
  for (uint32_t step = 0; step < Dh; step += STEP) {
    ask(ahead, step);
    for (uint32_t n = 0; n < STEP; n += VF, wide += 4 * VF) {
      const uint32_t d = step + n;
      vf x[FEW];
      for (uint32_t r = 0; r < rows; r++) x[r] = vf_load(q[r] + d);
      for (int i = 0; i < 4; i++) {
        const vf key = form == WIDENED  ? vf_load(wide + i * VF)
                       : form == FLOATS ? vf_load((const float *)k[i] + d)
                                        : vf_from_f16((const uint16_t *)k[i] + d);
        if (form == HALVES_KEPT) vf_store(wide + i * VF, key);
        for (uint32_t r = 0; r < rows; r++) sum[r][i] = vf_fma(x[r], key, sum[r][i]);
      }
    }
  }
  for (uint32_t r = 0; r < rows; r++) out[r] = vf_sum_four(sum[r]);
}

// Compiles `call` for every number of rows and every form.
#define MF_EACH_ROWS(call, form)                                 \
  do {                                                           \
    if (rows == 3) call(3, form);                                \
    else if (rows == 2) call(2, form);                           \
    else call(1, form);                                          \
  } while (0)
#define MF_EACH(call)                                            \
  do {                                                           \
    if (form == FLOATS) MF_EACH_ROWS(call, FLOATS);              \
    else if (form == HALVES) MF_EACH_ROWS(call, HALVES);         \
    else if (form == HALVES_KEPT) MF_EACH_ROWS(call, HALVES_KEPT); \
    else MF_EACH_ROWS(call, WIDENED);                            \
  } while (0)

static void score_few(const float *const *q, uint32_t rows, mf_form form, const uint8_t *const *k,
                      float *wide, uint32_t Dh, mf_ahead ahead, vf_quad *out) {
#define MF_SCORE(n, form) score_four(q, n, form, k, wide, Dh, ahead, out)
  MF_EACH(MF_SCORE);
#undef MF_SCORE
}

// Scores of the tile's rows with a block of keys.
static void score_block(const mf_attention *a, const mf_tile *tile, mf_block *b, float *scores) {
  const uint32_t Dh = a->p->Dh, fours = (b->count + 3) / 4;
  const uint32_t parts = fours * ((tile->rows + FEW - 1) / FEW);
  // A short block repeats its last key; the surplus scores are not kept.
  for (uint32_t i = b->count; i < fours * 4; i++) b->rows[i] = b->rows[b->count - 1];
  mf_form form = b->form;
  for (uint32_t r = 0, rows, part = 0; r < tile->rows; r += rows) {
    rows = few_of(tile->rows - r);
    const float *q[FEW];
    for (uint32_t j = 0; j < rows; j++) q[j] = a->q + query_at(a->p, tile, r + j);
    for (uint32_t i = 0; i < b->count; i += 4) {
      vf_quad out[FEW];
      score_few(q, rows, form, b->rows + i, b->wide + (size_t)i * Dh, Dh, ahead_of(a, b, part++, parts),
                out);
      const uint32_t kept = b->count - i < 4 ? b->count - i : 4;
      for (uint32_t j = 0; j < rows; j++) {
        const vf_quad scaled = a->p->scale * out[j];
        float *to = scores + (r + j) * SPAN + i;
        if (kept == 4) {
          memcpy(to, &scaled, sizeof scaled);
        } else {
          memcpy(to, &scaled, kept * sizeof *to);
        }
      }
    }
    if (form == HALVES_KEPT) form = WIDENED;
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
MF_INLINE void add_values(const mf_block *b, uint32_t rows, mf_form form, const float *weights, float *out,
                          uint32_t Dh, uint32_t d, int width) {
  vf sum[FEW][WIDE];
  for (uint32_t r = 0; r < rows; r++) {
    for (int i = 0; i < width; i++) sum[r][i] = vf_load(out + (size_t)r * Dh + d + i * VF);
  }
  float *wide = b->wide;
  for (uint32_t u = 0; u < b->count; u++, wide += WIDE * VF) {
    vf w[FEW];
    for (uint32_t r = 0; r < rows; r++) w[r] = vf_splat(weights[r * SPAN + u]);
    for (int i = 0; i < width; i++) {
      const uint32_t at = d + i * VF;
      const vf value = form == WIDENED  ? vf_load(wide + i * VF)
                       : form == FLOATS ? vf_load((const float *)b->rows[u] + at)
                                        : vf_from_f16((const uint16_t *)b->rows[u] + at);
      if (form == HALVES_KEPT) vf_store(wide + i * VF, value);
      for (uint32_t r = 0; r < rows; r++) sum[r][i] = vf_fma(w[r], value, sum[r][i]);
    }
  }
  for (uint32_t r = 0; r < rows; r++) {
    for (int i = 0; i < width; i++) vf_store(out + (size_t)r * Dh + d + i * VF, sum[r][i]);
  }
}

MF_INLINE void add_few(const mf_block *b, uint32_t rows, mf_form form, const float *weights, float *out,
                       uint32_t Dh, uint32_t d, int width) {
#define MF_ADD(n, form) add_values(b, n, form, weights, out, Dh, d, width)
  MF_EACH(MF_ADD);
#undef MF_ADD
}

// All rows of the tile, on `width` vectors from component d on.
MF_INLINE void value_part(const mf_attention *a, const mf_tile *tile, const mf_block *b,
                          const float *weights, float *out, uint32_t d, int width) {
  const uint32_t Dh = a->p->Dh, parts = (tile->rows + FEW - 1) / FEW;
  mf_form form = b->form;
  for (uint32_t r = 0, rows, part = 0; r < tile->rows; r += rows) {
    rows = few_of(tile->rows - r);
    const mf_ahead ahead = ahead_of(a, b, part++, parts);
    for (int i = 0; i < width * VF; i += 64 / ahead.element_bytes) ask(ahead, d + i);
    add_few(b, rows, form, weights + r * SPAN, out + (size_t)r * Dh, Dh, d, width);
    if (form == HALVES_KEPT) form = WIDENED;
  }
}

static void value_block(const mf_attention *a, const mf_tile *tile, const mf_block *b, const float *weights,
                        float *out) {
  const uint32_t Dh = a->p->Dh;
  uint32_t d = 0;
  for (; d + WIDE * VF <= Dh; d += WIDE * VF) value_part(a, tile, b, weights, out, d, WIDE);
  for (; d < Dh; d += VF) value_part(a, tile, b, weights, out, d, 1);
}

// One span of a tile: out[r] = sum of exponential * value, and each row's mass.
static void attend_span(const mf_attention *a, const mf_tile *tile, uint32_t span, mf_mass *mass,
                        float *out) {
  const mf_attention_params *p = a->p;
  const uint32_t base = span * SPAN;
  const uint32_t first = tile->first > base ? tile->first : base;
  const uint32_t end = tile->end - base < SPAN ? tile->end : base + SPAN;
  const uint32_t block = a->block;
  mf_block b = {.form = !a->is_half ? FLOATS : tile->rows <= FEW ? HALVES : HALVES_KEPT, .wide = a->wide};
  for (uint32_t u = first; u < end; u += block) {
    const bool is_last = end - u <= block;
    b.count = is_last ? end - u : block;
    list_rows(a, tile->g, (mf_next){a->keys, u}, b.count, b.rows);
    list_rows(a, tile->g, (mf_next){is_last ? a->values : a->keys, is_last ? first : u + block}, b.count,
              b.next);
    score_block(a, tile, &b, a->scores + (u - base));
  }
  const mf_columns columns = {first - base, end - base};
  for (uint32_t r = 0; r < tile->rows; r++) {
    mass[r] = exponentials(a->scores + r * SPAN, columns, row_columns(p, tile, r, base));
  }
  memset(out, 0, (size_t)tile->rows * p->Dh * sizeof *out);
  for (uint32_t u = first; u < end; u += BLOCK_MAX) {
    const bool is_last = end - u <= BLOCK_MAX;
    b.count = is_last ? end - u : BLOCK_MAX;
    list_rows(a, tile->g, (mf_next){a->values, u}, b.count, b.rows);
    list_rows(a, tile->g, (mf_next){is_last ? a->keys : a->values, u + BLOCK_MAX}, b.count, b.next);
    value_block(a, tile, &b, a->scores + (u - base), out);
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
  // One tile a group: span after span, the groups side by side, is also how memory is read best.
  const bool is_spread = cut.spans > 1 && (cut.tiles == 1 || cut.all < 4 * task->threads) &&
                         cells * (p->Dh + 2) <= SPREAD_FLOATS_MAX;
  const uint32_t block = block_of(p->Dh);
  const size_t key_floats = (size_t)block * p->Dh, value_floats = (size_t)BLOCK_MAX * WIDE * VF;
  const size_t wide_floats = key_floats > value_floats ? key_floats : value_floats, score_floats = (size_t)TILE_ROWS * SPAN;
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
