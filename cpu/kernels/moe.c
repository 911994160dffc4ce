// routed_gate and routed_down: experts in slots of a slab, each with the pairs routed to it. It divides
// experts among threads; where they come from and what is routed where, it does not know.
//
// A unit is a whole expert, or a part of its rows where there are few experts. Threads never wait for each
// other: each makes the vectors of its unit's pairs ready itself, the cost of a handful of rows.
#include "product_driver.h"

enum {
  BATCH = 128,       // pairs at a time
  PART_ROWS_LEAST = 32,
};

typedef struct {
  uint32_t slot, first, count, zero;
} group;

// Where an array lies in a slot.
typedef struct {
  uint32_t codes, scales, biases;
} place;

typedef struct {
  const char *kernel;
  mf_work work;          // its rows without the slot; y, strides, gate
  const uint8_t *slab;
  uint32_t S, slot_bytes;
  const group *groups;
  const uint32_t *pairs;
  uint32_t A, P;
  uint64_t pair_limit;   // T * K
  uint32_t rows;         // of each matrix
  place places[2];       // gate and up; or down alone
  const float *x;
  uint32_t pairs_per_x;  // K where the pairs of a token share a vector, else 1
  uint64_t x_count;
} routed;

static int array_fits(const routed *r, uint32_t offset, uint64_t bytes) {
  return bytes <= r->slot_bytes && offset <= r->slot_bytes - bytes;
}

static const char *check_places(const routed *r) {
  const uint64_t codes = (uint64_t)r->rows * mf_code_bytes(&r->work.format);
  const uint64_t factors = (uint64_t)r->rows * r->work.format.groups * 2;
  for (int i = 0; i <= r->work.gated; i++) {
    const place *at = &r->places[i];
    if (!array_fits(r, at->codes, codes)) return "codes";
    if (!array_fits(r, at->scales, factors)) return "scales";
    if (!array_fits(r, at->biases, factors)) return "biases";
  }
  return NULL;
}

// Says what is wrong with the lists once, on thread 0. Every thread gets the same answer.
static int check(const mf_task *task, const routed *r) {
  const int speak = task->thread == 0;
  const char *outside = check_places(r);
  if (outside) {
    if (speak) {
      mf_fail(task, "%s: the %s of an expert reach beyond its slot of %u bytes", r->kernel, outside, r->slot_bytes);
    }
    return 0;
  }
  for (uint32_t a = 0; a < r->A; a++) {
    const group *g = &r->groups[a];
    if (g->slot >= r->S) {
      if (speak) mf_fail(task, "%s: group %u names slot %u, the slab has %u", r->kernel, a, g->slot, r->S);
      return 0;
    }
    if (g->count > r->P || g->first > r->P - g->count) {
      if (speak) mf_fail(task, "%s: group %u has pairs %u + %u, the list %u", r->kernel, a, g->first, g->count, r->P);
      return 0;
    }
    for (uint32_t i = 0; i < g->count; i++) {
      const uint32_t pair = r->pairs[g->first + i];
      if (pair < r->pair_limit) continue;
      if (speak) mf_fail(task, "%s: group %u has pair %u, tokens and ranks end at %llu", r->kernel, a, pair,
                         (unsigned long long)r->pair_limit);
      return 0;
    }
  }
  return 1;
}

// Parts of experts, about eight a thread: who comes late or loses its core for a moment holds the others up by one.
static uint32_t parts_of(const routed *r, uint32_t threads) {
  const uint32_t wanted = (8 * threads + r->A - 1) / r->A, most = r->rows / PART_ROWS_LEAST;
  return wanted < most ? wanted : most ? most : 1;
}

static uint32_t longest(const routed *r) {
  uint32_t most = 1;
  for (uint32_t a = 0; a < r->A; a++) most = r->groups[a].count > most ? r->groups[a].count : most;
  return most < BATCH ? most : BATCH;
}

// A thread's memory. `ready` says whose vectors it holds: a group's index, or NONE.
enum { NONE = -1 };
typedef struct {
  uint8_t *vectors;
  mf_column *columns;
  void *panel;
  float *up;
  int64_t ready;
} desk;

static void lay_out(const routed *r, const mf_format *format, desk *desk, const uint32_t *pairs, uint32_t count) {
  const size_t bytes = mf_vector_bytes(format), width = (size_t)format->groups * MF_GROUP_SIZE;
  if (r->x_count == 1) {
    if (desk->ready == NONE) r->work.product->prepare(format, r->x, desk->vectors);
    for (uint32_t i = 0; i < count; i++) desk->columns[i].x = desk->vectors;
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    uint8_t *vector = desk->vectors + i * bytes;
    r->work.product->prepare(format, r->x + pairs[i] / r->pairs_per_x * width, vector);
    desk->columns[i].x = vector;
  }
}

static mf_rows rows_in(const uint8_t *slot, place at) {
  return (mf_rows){slot + at.codes, slot + at.scales, slot + at.biases};
}

// Where a part of `rows` begins: at whole panels.
static uint32_t part_begin(uint64_t rows, uint32_t part, uint32_t parts) {
  return part == parts ? (uint32_t)rows : (uint32_t)(rows * part / parts) / MF_PANEL_ROWS * MF_PANEL_ROWS;
}

// One part (of part[1]) of one group's expert.
static void run_part(const routed *r, desk *desk, uint32_t a, const uint32_t part[2]) {
  const group *g = &r->groups[a];
  const uint8_t *slot = r->slab + (size_t)g->slot * r->slot_bytes;
  mf_work work = r->work;
  if (work.gated) {
    work.band = (mf_band){{rows_in(slot, r->places[0]), rows_in(slot, r->places[1])}, r->rows};
  } else {
    mf_halve(&work, rows_in(slot, r->places[0]), r->rows, r->work.y[0]);
  }
  const uint32_t first = part_begin(work.band.count, part[0], part[1]);
  const uint32_t last = part_begin(work.band.count, part[0] + 1, part[1]);
  for (uint32_t done = 0; done < g->count;) {
    const uint32_t count = g->count - done < BATCH ? g->count - done : BATCH;
    const uint32_t *pairs = r->pairs + g->first + done;
    // A vector that several groups share is laid out once, for whatever they are.
    work.format.wide = r->x_count > 1 && count >= MF_PANEL_COLUMNS;
    if (desk->ready != (int64_t)a || count < g->count) lay_out(r, &work.format, desk, pairs, count);
    desk->ready = a;
    const mf_batch batch = {desk->columns, pairs, count, desk->up, desk->panel};
    mf_work_rows(&work, &batch, first, last);
    done += count;
  }
}

static void run(const mf_task *task, const routed *r) {
  if (r->A == 0 || r->rows == 0 || !check(task, r)) return;
  const uint32_t batch = longest(r), parts = parts_of(r, task->threads);
  const size_t vectors = (r->x_count == 1 ? 1 : batch) * mf_vector_bytes(&r->work.format);
  const size_t columns = mf_whole_lines(batch * sizeof(mf_column));
  const size_t panel = mf_batch_panel_bytes(&r->work.format, batch);
  const uint32_t band = mf_band_rows(&r->work.format, batch == 1 ? 1 : 2, r->rows);
  const uint32_t band_alone = mf_band_rows(&r->work.format, 1, r->rows);
  const size_t up_rows = (size_t)batch * band > band_alone ? (size_t)batch * band : band_alone;
  uint8_t *own = mf_scratch(task, vectors + columns + panel + (r->work.gated ? up_rows * sizeof(float) : 0));
  if (!own) return;
  uint8_t *rest = own + vectors + columns;
  desk desk = {own, (mf_column *)(void *)(own + vectors), panel ? rest : NULL, NULL, NONE};
  if (r->work.gated) desk.up = (float *)(void *)(rest + panel);
  // Every group has as many parts, and those of one expert follow each other.
  for (uint32_t u; (u = mf_take(task, 0, r->A * parts)) < r->A * parts;) {
    run_part(r, &desk, u / parts, (uint32_t[]){u % parts, parts});
  }
}

void mf_k_routed_gate(const mf_task *task) {
  const mf_routed_gate_params *p = task->params;
  const mf_shape shape = {p->D, p->bits, p->activation_bits, p->activation};
  void *const *b = task->buffers;
  routed r = {
      .kernel = "routed_gate",
      .work = {.product = mf_product_of(task->simd),
               .gated = 1,
               .activation = p->activation,
               .y = {b[MF_ROUTED_GATE_HIDDEN], NULL},
               .y_stride = p->F},
      .slab = b[MF_ROUTED_GATE_SLAB],
      .S = p->S,
      .slot_bytes = p->slot_bytes,
      .groups = b[MF_ROUTED_GATE_GROUPS],
      .pairs = b[MF_ROUTED_GATE_PAIRS],
      .A = p->A,
      .P = p->P,
      .pair_limit = (uint64_t)p->T * p->K,
      .rows = p->F,
      .places = {{p->gate_codes, p->gate_scales, p->gate_biases}, {p->up_codes, p->up_scales, p->up_biases}},
      .x = b[MF_ROUTED_GATE_X],
      .pairs_per_x = p->K,
      .x_count = p->T,
  };
  if (mf_product_begin(task, r.kernel, &shape, &r.work.format)) run(task, &r);
}

void mf_k_routed_down(const mf_task *task) {
  const mf_routed_down_params *p = task->params;
  const mf_shape shape = {p->F, p->bits, p->activation_bits, 0};
  void *const *b = task->buffers;
  routed r = {
      .kernel = "routed_down",
      .work = {.product = mf_product_of(task->simd), .y = {b[MF_ROUTED_DOWN_Y], NULL}, .y_stride = p->D},
      .slab = b[MF_ROUTED_DOWN_SLAB],
      .S = p->S,
      .slot_bytes = p->slot_bytes,
      .groups = b[MF_ROUTED_DOWN_GROUPS],
      .pairs = b[MF_ROUTED_DOWN_PAIRS],
      .A = p->A,
      .P = p->P,
      .pair_limit = (uint64_t)p->T * p->K,
      .rows = p->D,
      .places = {{p->codes, p->scales, p->biases}, {0, 0, 0}},
      .x = b[MF_ROUTED_DOWN_HIDDEN],
      .pairs_per_x = 1,
      .x_count = (uint64_t)p->T * p->K,
  };
  if (mf_product_begin(task, r.kernel, &shape, &r.work.format)) run(task, &r);
}
