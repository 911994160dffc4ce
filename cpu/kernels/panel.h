// Many columns at a time: sixteen rows as a panel. The values and results are product.h's, bit for bit.
//
// A panel holds 32-bit words of codes with the row as the lane: for each group its words in order, of
// each word those of the sixteen rows. Then, for each group, sixteen scales and sixteen biases as floats;
// the biases with the middle of the codes times the scale already added.
#ifndef MF_PANEL_H
#define MF_PANEL_H
#include "product.h"

// For bands of whole panels. Builds panels in columns->panel, one after the other.
typedef void mf_panels(const mf_format *format, const mf_band *band, const mf_columns *columns);
mf_panels mf_panels_avx2, mf_panels_avx512;

static inline float *mf_panel_factors(const mf_format *format, void *panel) {
  return (float *)panel + MF_PANEL_ROWS * mf_code_bytes(format) / sizeof(float);
}
#endif
