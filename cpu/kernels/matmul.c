// matmul_affine and gated_matmul_affine: dividing rows among threads. The arithmetic is product.h's.
#include "product_driver.h"

enum {
  UNIT_BYTES = 1 << 20,     // codes of one stream in a unit: starting a stream costs about 1 us
  UNIT_ROWS_LEAST = 16,     // pairs
  PREPARE_ALONE = 8 << 10,  // values that a thread makes ready sooner alone than through a barrier
};

typedef struct {
  uint32_t T;
  const float *x;
  int alone;  // each thread makes the vectors for itself
} tokens;

// Every token's vector made ready; NULL where memory cannot be had.
static const uint8_t *make_vectors(const mf_task *task, const mf_work *work, const tokens *in, uint8_t *own) {
  const size_t bytes = mf_vector_bytes(&work->format), I = (size_t)work->format.groups * MF_GROUP_SIZE;
  if (in->alone) {
    for (uint32_t t = 0; own && t < in->T; t++) work->product->prepare(&work->format, in->x + t * I, own + t * bytes);
    return own;
  }
  uint8_t *shared = mf_shared_scratch(task, in->T * bytes);
  if (shared) {
    for (uint32_t t; (t = mf_take(task, 0, in->T)) < in->T;) {
      work->product->prepare(&work->format, in->x + t * I, shared + t * bytes);
    }
  }
  mf_barrier(task);
  return shared;
}

// Pairs of rows in a unit: eight units a thread, sixteen where they take long; long streams, whole lines of output.
static uint32_t unit_rows(const mf_format *format, uint32_t rows, uint32_t threads) {
  const uint32_t units = threads * (format->wide ? 16 : 8), longest = (uint32_t)(UNIT_BYTES / mf_code_bytes(format)) + 1;
  const uint32_t fair = (rows + units - 1) / units, least = fair < longest ? fair : longest;
  return (least + UNIT_ROWS_LEAST - 1) / UNIT_ROWS_LEAST * UNIT_ROWS_LEAST;
}

static void run(const mf_task *task, mf_work *work, const float *x, uint32_t T) {
  work->format.wide = T >= MF_PANEL_COLUMNS;
  const uint32_t rows = work->band.count, unit = rows ? unit_rows(&work->format, rows, task->threads) : 1;
  const uint32_t units = rows ? (rows + unit - 1) / unit : 1;
  const int alone = (uint64_t)T * work->format.groups * MF_GROUP_SIZE <= PREPARE_ALONE;
  const tokens in = {T, x, alone};
  const size_t vector_bytes = mf_vector_bytes(&work->format), vectors = alone ? T * vector_bytes : 0;
  const size_t columns = mf_whole_lines(T * sizeof(mf_column)), panel = mf_batch_panel_bytes(&work->format, T);
  const size_t up = work->gated ? (size_t)T * mf_band_rows(&work->format, T, unit) * sizeof(float) : 0;
  uint8_t *own = mf_scratch(task, vectors + columns + panel + up);
  const uint8_t *ready = make_vectors(task, work, &in, own);
  if (!own || !ready) return;
  mf_column *column = (mf_column *)(void *)(own + vectors);
  for (uint32_t t = 0; t < T; t++) column[t].x = ready + t * vector_bytes;
  uint8_t *rest = own + vectors + columns;
  const mf_batch batch = {column, NULL, T, up ? (float *)(void *)(rest + panel) : NULL, panel ? rest : NULL};
  for (uint32_t u; (u = mf_take(task, 1, units)) < units;) {
    const uint32_t first = u * unit;
    mf_work_rows(work, &batch, first, rows - first < unit ? rows : first + unit);
  }
}

void mf_k_matmul_affine(const mf_task *task) {
  const mf_matmul_affine_params *p = task->params;
  const mf_shape shape = {p->I, p->bits, p->activation_bits, 0};
  mf_work work = {.product = mf_product_of(task->simd), .y_stride = p->O};
  if (!mf_product_begin(task, "matmul_affine", &shape, &work.format) || p->T == 0 || p->O == 0) return;
  void *const *b = task->buffers;
  const mf_rows all = {b[MF_MATMUL_AFFINE_CODES], b[MF_MATMUL_AFFINE_SCALES], b[MF_MATMUL_AFFINE_BIASES]};
  mf_halve(&work, all, p->O, b[MF_MATMUL_AFFINE_Y]);
  run(task, &work, b[MF_MATMUL_AFFINE_X], p->T);
}

void mf_k_gated_matmul_affine(const mf_task *task) {
  const mf_gated_matmul_affine_params *p = task->params;
  const mf_shape shape = {p->I, p->bits, p->activation_bits, p->activation};
  mf_format format;
  if (!mf_product_begin(task, "gated_matmul_affine", &shape, &format) || p->T == 0 || p->F == 0) return;
  void *const *b = task->buffers;
  const mf_rows gate = {b[MF_GATED_MATMUL_AFFINE_GATE_CODES], b[MF_GATED_MATMUL_AFFINE_GATE_SCALES],
                        b[MF_GATED_MATMUL_AFFINE_GATE_BIASES]};
  const mf_rows up = {b[MF_GATED_MATMUL_AFFINE_UP_CODES], b[MF_GATED_MATMUL_AFFINE_UP_SCALES],
                      b[MF_GATED_MATMUL_AFFINE_UP_BIASES]};
  mf_work work = {
      .product = mf_product_of(task->simd),
      .format = format,
      .band = {{gate, up}, p->F},
      .gated = 1,
      .activation = p->activation,
      .y = {b[MF_GATED_MATMUL_AFFINE_Y], NULL},
      .y_stride = p->F,
  };
  run(task, &work, b[MF_GATED_MATMUL_AFFINE_X], p->T);
}
