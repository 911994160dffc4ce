// The part of the drivers that chooses a path and leads rows past columns; see product_driver.h.
#include "product_driver.h"

#if defined(__x86_64__)
// Zen 4 is said to lose a fifth of its speed from 1536 bytes on, Zen 3 does not care; on Sapphire Rapids, whose memory is
// farther, 3072 are worth a fifth to a quarter of decode's products (docs/performance.md).
size_t mf_ahead_bytes = 384;

__attribute__((constructor)) static void choose_ahead(void) {
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) mf_ahead_bytes = 3072;
}
#endif

const mf_product *mf_product_of(mf_simd simd) {
  switch (simd) {
#if defined(__x86_64__)
  case MF_SIMD_AVX2:
    return &mf_product_avx2;
  case MF_SIMD_AVX512:
    return &mf_product_avx512;
#elif defined(__aarch64__)
  case MF_SIMD_NEON:
    return &mf_product_neon;
#endif
  default:
    return &mf_product_portable;
  }
}

int mf_product_begin(const mf_task *task, const char *kernel, const mf_shape *shape, mf_format *format) {
  const char *wanted = NULL;
  uint32_t found = 0;
  if (shape->bits != 4 && shape->bits != 8) {
    wanted = "4 or 8 bits a code", found = shape->bits;
  } else if (shape->activation_bits != 8 && shape->activation_bits != 16 && shape->activation_bits != 32) {
    wanted = "activations of 8, 16 or 32 bits", found = shape->activation_bits;
  } else if (shape->columns == 0 || shape->columns % MF_GROUP_SIZE) {
    wanted = "columns in whole groups of 64", found = shape->columns;
  } else if (shape->activation > MF_ACTIVATION_SILU) {
    wanted = "a gate activation of the catalogue", found = shape->activation;
  }
  if (wanted) {
    if (task->thread == 0) mf_fail(task, "%s expects %s, found %u", kernel, wanted, found);
    return 0;
  }
  *format = (mf_format){.groups = shape->columns / MF_GROUP_SIZE,
                        .bits = shape->bits,
                        .parts = shape->activation_bits == 32 ? 2 : 1,
                        .narrow = shape->activation_bits == 8};
  return 1;
}

uint32_t mf_band_rows(const mf_format *format, uint32_t columns, uint32_t rows) {
  const uint32_t cached = (uint32_t)(MF_BAND_BYTES / (2 * mf_code_bytes(format))) / MF_LANES * MF_LANES;
  const uint32_t most = columns == 1 ? 1024 : cached < MF_LANES ? MF_LANES : cached;
  return most < rows ? most : rows;
}

// One band of at most mf_band_rows pairs.
static void multiply_band(const mf_work *work, const mf_batch *batch, const mf_band *band, uint32_t first) {
  for (uint32_t c = 0; c < batch->count; c++) {
    size_t row = batch->index ? batch->index[c] : c, at = row * work->y_stride + first;
    batch->columns[c].y[0] = work->y[0] + at;
    batch->columns[c].y[1] = work->gated ? batch->up + (size_t)c * band->count : work->y[1] + at;
  }
  const mf_columns columns = {batch->columns, batch->count, batch->panel};
  work->product->multiply(&work->format, band, &columns);
  for (uint32_t c = 0; work->gated && c < batch->count; c++) {
    work->product->gate(batch->columns[c].y[0], batch->columns[c].y[1], band->count, work->activation);
  }
}

// A pair of the lone row and itself.
static void multiply_lone(const mf_work *work, const mf_batch *batch) {
  const uint32_t row = work->band.count;
  const mf_rows rows = mf_rows_from(&work->format, work->band.run[0], row);
  const mf_band band = {{rows, rows}, 1};
  mf_work alone = *work;
  alone.y[1] = alone.y[0];
  multiply_band(&alone, batch, &band, row);
}

void mf_work_rows(const mf_work *work, const mf_batch *batch, uint32_t first, uint32_t last) {
  const uint32_t step = mf_band_rows(&work->format, batch->count, last - first);
  for (uint32_t row = first; row < last;) {
    const uint32_t count = last - row < step ? last - row : step;
    const mf_band band = {{mf_rows_from(&work->format, work->band.run[0], row),
                           mf_rows_from(&work->format, work->band.run[1], row)},
                          count};
    multiply_band(work, batch, &band, row);
    row += count;
  }
  if (work->lone && last == work->band.count) multiply_lone(work, batch);
}
