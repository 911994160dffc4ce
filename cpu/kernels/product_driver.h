// What the drivers of products (matmul.c, moe.c) share: choosing a path, refusing what no path can do, and
// the order in which rows meet columns. It knows no instruction set and no kernel of the catalogue.
#ifndef MF_PRODUCT_DRIVER_H
#define MF_PRODUCT_DRIVER_H
#include "product.h"

enum { MF_BAND_BYTES = 128 << 10 };  // codes that stay in the second-level cache while columns pass by

// Parameters that every product has; `activation` is 0 where there is none.
typedef struct {
  uint32_t columns, bits, activation_bits, activation;
} mf_shape;

// Rows to multiply, and what becomes of the products.
typedef struct {
  const mf_product *product;
  mf_format format;
  mf_band band;         // all rows, in pairs
  int lone;             // one more row follows in the first run, as when a matrix of odd height is halved
  int gated;            // y = act(first run's product) * second run's
  uint32_t activation;
  float *y[2];          // of the runs' first rows, output row 0; the second unused where gated
  uint32_t y_stride;
} mf_work;

// Columns that pass by the rows together.
typedef struct {
  mf_column *columns;     // x given, y filled in by mf_work_rows
  const uint32_t *index;  // output row of each; NULL: 0, 1, 2 ...
  uint32_t count;
  float *up;              // where gated: room for a band's rows of each column, else NULL
  void *panel;            // as mf_columns has it
} mf_batch;

const mf_product *mf_product_of(mf_simd simd);
// False, and the dispatch has failed, where no path can do it. Every thread gets the same answer.
int mf_product_begin(const mf_task *task, const char *kernel, const mf_shape *shape, mf_format *format);
// Rows of each run that stay in cache while `columns` columns pass by, at most `rows`.
uint32_t mf_band_rows(const mf_format *format, uint32_t columns, uint32_t rows);
// Pairs first .. last - 1 of the work's rows, and the lone row with the last pair.
void mf_work_rows(const mf_work *work, const mf_batch *batch, uint32_t first, uint32_t last);

static inline size_t mf_batch_panel_bytes(const mf_format *format, uint32_t columns) {
  return columns >= MF_PANEL_COLUMNS ? mf_panel_bytes(format, columns) : 0;
}
static inline size_t mf_whole_lines(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}
// Work on one matrix: its halves are the runs.
static inline void mf_halve(mf_work *work, mf_rows all, uint32_t rows, float *y) {
  const uint32_t half = rows - rows / 2;
  work->band = (mf_band){{all, mf_rows_from(&work->format, all, half)}, rows / 2};
  work->lone = (int)(rows & 1);
  work->y[0] = y;
  work->y[1] = y + half;
}
#endif
