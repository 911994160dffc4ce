// embed_affine: rows of a quantised table as floats. One float32 rounding for scale * code + bias, one for
// the multiplier, on every path.
#include <math.h>
#include <string.h>

#include "../mf_cpu.h"

static float bf16_at(const uint8_t *array, size_t index) {
  uint16_t bits;
  memcpy(&bits, array + 2 * index, sizeof bits);
  return mf_bf16(bits);
}

// One group. A product of a BF16 scale and a code of 8 bits is exact, so that only the sum rounds.
static void dequantise(const uint8_t *codes, uint32_t bits, const float factors[3], float *y) {
  const float scale = factors[0], bias = factors[1], multiplier = factors[2];
  if (bits == 8) {
    for (int i = 0; i < MF_GROUP_SIZE; i++) y[i] = (scale * (float)codes[i] + bias) * multiplier;
    return;
  }
  for (int i = 0; i < MF_GROUP_SIZE / 2; i++) {
    y[2 * i] = (scale * (float)(codes[i] & 15) + bias) * multiplier;
    y[2 * i + 1] = (scale * (float)(codes[i] >> 4) + bias) * multiplier;
  }
}

void mf_k_embed_affine(const mf_task *task) {
  const mf_embed_affine_params *p = task->params;
  if ((p->bits != 4 && p->bits != 8) || p->D % MF_GROUP_SIZE) {
    if (task->thread == 0) {
      mf_fail(task, "embed_affine expects 4 or 8 bits and columns in groups of 64, found %u and %u", p->bits, p->D);
    }
    return;
  }
  const uint32_t *ids = task->buffers[MF_EMBED_AFFINE_IDS];
  const uint8_t *codes = task->buffers[MF_EMBED_AFFINE_CODES];
  const uint8_t *scales = task->buffers[MF_EMBED_AFFINE_SCALES], *biases = task->buffers[MF_EMBED_AFFINE_BIASES];
  float *y = task->buffers[MF_EMBED_AFFINE_Y];
  const size_t groups = p->D / MF_GROUP_SIZE, group_bytes = MF_GROUP_SIZE * p->bits / 8;
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    if (ids[t] >= p->V) {
      mf_fail(task, "embed_affine: token %u has id %u, the vocabulary %u entries", t, ids[t], p->V);
      continue;
    }
    for (size_t g = 0; g < groups; g++) {
      const size_t at = ids[t] * groups + g;
      const float factors[3] = {bf16_at(scales, at), bf16_at(biases, at), p->multiplier};
      dequantise(codes + at * group_bytes, p->bits, factors, y + (size_t)t * p->D + g * MF_GROUP_SIZE);
    }
  }
}
