// Linear attention by the gated delta rule: the convolution before it, its gates, the recurrence and the
// norm after it. Every output is computed by one thread, token after token, so that T tokens give the
// bits of T calls.
#ifndef MF_DELTA_VECTOR_H
#define MF_DELTA_VECTOR_H
#include "norm_vector.h"

// 1 / (1 + e^-x). At e^88 the quotient is 0 to float32 and nothing is infinite.
MF_INLINE vf vf_sigmoid(vf x) {
  const vf one = vf_splat(1);
  return one / (one + vf_exp(vf_min(vf_splat(88.0f), -x)));
}

// Channels of one unit, and taps of the longest kernel.
enum { CONV_CHANNELS = 64, CONV_TAPS_MAX = 8 };

// Row t of a unit's input; rows before the first come from the tail.
MF_INLINE const float *conv_row(const mf_task *task, int64_t t) {
  const mf_causal_conv_params *p = task->params;
  const float *rows = task->buffers[t < 0 ? MF_CAUSAL_CONV_TAIL : MF_CAUSAL_CONV_X];
  return rows + (size_t)(t < 0 ? t + (int64_t)p->J : t) * p->C;
}

// The taps of some channels, a row for each tap, as their vectors need them.
static void part_taps(const mf_task *task, uint32_t first, uint32_t n, float taps[][CONV_CHANNELS]) {
  const mf_causal_conv_params *p = task->params;
  const uint16_t *weight = task->buffers[MF_CAUSAL_CONV_WEIGHT];
  for (uint32_t c = 0; c < n; c++) {
    for (uint32_t k = 0; k < p->K; k++) taps[k][c] = mf_bf16(weight[(size_t)(first + c) * p->K + k]);
  }
}

// The newest J rows of (tail, x) become the tail.
static void keep_tail(const mf_task *task, uint32_t first, uint32_t n) {
  const mf_causal_conv_params *p = task->params;
  float *tail = task->buffers[MF_CAUSAL_CONV_TAIL];
  for (uint32_t j = 0; j < p->J; j++) {
    const float *row = conv_row(task, (int64_t)p->T - p->J + j);
    memmove(tail + (size_t)j * p->C + first, row + first, n * sizeof *tail);
  }
}

void MF_ON_PATH(causal_conv)(const mf_task *task) {
  const mf_causal_conv_params *p = task->params;
  if (p->K == 0 || p->K > CONV_TAPS_MAX || p->J != p->K - 1) {
    mf_fail(task, "causal_conv: %u taps with %u rows before; expected 1 to %d taps and one row less", p->K,
            p->J, CONV_TAPS_MAX);
    return;
  }
  float *out = task->buffers[MF_CAUSAL_CONV_Y];
  const uint32_t units = (p->C + CONV_CHANNELS - 1) / CONV_CHANNELS;
  for (uint32_t unit; (unit = mf_take(task, 0, units)) < units;) {
    float taps[CONV_TAPS_MAX][CONV_CHANNELS] = {{0}};
    const uint32_t first = unit * CONV_CHANNELS;
    const uint32_t n = p->C - first < CONV_CHANNELS ? p->C - first : CONV_CHANNELS;
    part_taps(task, first, n, taps);
    for (uint32_t t = 0; t < p->T; t++) {
      for (uint32_t c = 0; c < n; c += VF) {
        vf sum = vf_splat(0);
        for (uint32_t k = 0; k < p->K; k++) {
          const float *row = conv_row(task, (int64_t)t - p->J + k);
          sum = vf_fma(vf_load(taps[k] + c), vf_load_some(row + first + c, n - c), sum);
        }
        vf_store_some(out + (size_t)t * p->C + first + c, sum * vf_sigmoid(sum), n - c);
      }
    }
    keep_tail(task, first, n);
  }
}

// x / sqrt(sum of squares + eps) * factor, in place.
MF_INLINE void unit_length(float *x, uint32_t n, float eps, float factor) {
  const vf scale = vf_splat(factor / sqrtf(sum_squares(x, n) + eps));
  for (uint32_t i = 0; i < n; i += VF) vf_store_some(x + i, vf_load_some(x + i, n - i) * scale, n - i);
}

void MF_ON_PATH(delta_prepare)(const mf_task *task) {
  const mf_delta_prepare_params *p = task->params;
  if (2 * (uint64_t)p->Hk * p->Dk > p->C) {
    mf_fail(task, "delta_prepare: %u query and key heads of %u do not fit a row of %u", p->Hk, p->Dk, p->C);
    return;
  }
  const uint16_t *a_log = task->buffers[MF_DELTA_PREPARE_A_LOG];
  const uint16_t *dt_bias = task->buffers[MF_DELTA_PREPARE_DT_BIAS];
  const float query_scale = 1.0f / sqrtf((float)p->Dk);
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    float *row = (float *)task->buffers[MF_DELTA_PREPARE_MIXED] + (size_t)t * p->C;
    for (uint32_t h = 0; h < 2 * p->Hk; h++) {
      unit_length(row + (size_t)h * p->Dk, p->Dk, p->eps, h < p->Hk ? query_scale : 1.0f);
    }
    float *alpha = (float *)task->buffers[MF_DELTA_PREPARE_ALPHA] + (size_t)t * p->Hv;
    float *beta = (float *)task->buffers[MF_DELTA_PREPARE_BETA] + (size_t)t * p->Hv;
    for (uint32_t h = 0; h < p->Hv; h++) {
      const float x = alpha[h] + mf_bf16(dt_bias[h]);
      // log(1 + e^x) without an overflow.
      const float softplus = (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
      alpha[h] = -expf(mf_bf16(a_log[h])) * softplus;
      beta[h] = 1.0f / (1.0f + expf(-beta[h]));
    }
  }
}

// Rows of the state at a time, for which a key that was loaded serves, and those that a thread carries
// through all tokens: they stay in its first cache, and their outputs fill whole lines of it, so that
// threads do not take turns with a line.
enum { STATE_ROWS = 4, UNIT_ROWS = 16 };

// What one step needs beside the state.
typedef struct {
  const float *q;
  const float *k;
  float decay;
  float beta;
} mf_delta_step;

// One token for `STATE_ROWS` rows of the state: `v` and `y` point to their values and outputs.
MF_INLINE void delta_rows(const mf_delta_step *s, uint32_t Dk, float *state, const float *v, float *y) {
  const vf decay = vf_splat(s->decay);
  vf seen[STATE_ROWS], out[STATE_ROWS], delta[STATE_ROWS];
  for (int r = 0; r < STATE_ROWS; r++) seen[r] = out[r] = vf_splat(0);
  for (uint32_t i = 0; i < Dk; i += VF) {
    const vf k = vf_load(s->k + i);
    for (int r = 0; r < STATE_ROWS; r++) seen[r] = vf_fma(vf_load(state + r * Dk + i) * decay, k, seen[r]);
  }
  for (int r = 0; r < STATE_ROWS; r++) delta[r] = vf_splat(s->beta * (v[r] - vf_sum(seen[r])));
  for (uint32_t i = 0; i < Dk; i += VF) {
    const vf k = vf_load(s->k + i), q = vf_load(s->q + i);
    for (int r = 0; r < STATE_ROWS; r++) {
      const vf grown = vf_fma(delta[r], k, vf_load(state + r * Dk + i) * decay);
      vf_store(state + r * Dk + i, grown);
      out[r] = vf_fma(grown, q, out[r]);
    }
  }
  for (int r = 0; r < STATE_ROWS; r++) y[r] = vf_sum(out[r]);
}

void MF_ON_PATH(gated_delta)(const mf_task *task) {
  const mf_gated_delta_params *p = task->params;
  const uint32_t Dk = p->Dk, Dv = p->Dv, keys = p->Hk * Dk;
  if (p->Hk == 0 || p->Hv % p->Hk != 0 || Dk % 16 != 0 || Dv % STATE_ROWS != 0 ||
      2 * (uint64_t)p->Hk * Dk + (uint64_t)p->Hv * Dv > p->C) {
    mf_fail(task, "gated_delta: %u value heads of %u for %u key heads of %u in rows of %u", p->Hv, Dv,
            p->Hk, Dk, p->C);
    return;
  }
  const uint32_t blocks = (Dv + UNIT_ROWS - 1) / UNIT_ROWS, units = p->Hv * blocks;
  for (uint32_t unit; (unit = mf_take(task, 0, units)) < units;) {
    const uint32_t h = unit / blocks, first = unit % blocks * UNIT_ROWS;
    const uint32_t rows = Dv - first < UNIT_ROWS ? Dv - first : UNIT_ROWS;
    const uint32_t key = h / (p->Hv / p->Hk) * Dk;
    float *state = (float *)task->buffers[MF_GATED_DELTA_STATE] + ((size_t)h * Dv + first) * Dk;
    for (uint32_t t = 0; t < p->T; t++) {
      const float *row = (const float *)task->buffers[MF_GATED_DELTA_MIXED] + (size_t)t * p->C;
      const size_t at = (size_t)t * p->Hv + h;
      const mf_delta_step step = {row + key, row + keys + key,
                                  expf(((const float *)task->buffers[MF_GATED_DELTA_ALPHA])[at]),
                                  ((const float *)task->buffers[MF_GATED_DELTA_BETA])[at]};
      const float *v = row + 2 * keys + h * Dv + first;
      float *y = (float *)task->buffers[MF_GATED_DELTA_Y] + at * Dv + first;
      for (uint32_t r = 0; r < rows; r += STATE_ROWS) delta_rows(&step, Dk, state + r * Dk, v + r, y + r);
    }
  }
}

void MF_ON_PATH(gated_norm)(const mf_task *task) {
  const mf_gated_norm_params *p = task->params;
  const uint16_t *weight = task->buffers[MF_GATED_NORM_WEIGHT];
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    for (uint32_t h = 0; h < p->H; h++) {
      const size_t at = ((size_t)t * p->H + h) * p->D;
      const float *x = (const float *)task->buffers[MF_GATED_NORM_X] + at;
      const float *gate = (const float *)task->buffers[MF_GATED_NORM_GATE] + at;
      float *y = (float *)task->buffers[MF_GATED_NORM_Y] + at;
      const vf factor = vf_splat(inverse_rms(sum_squares(x, p->D), p->D, p->eps));
      for (uint32_t i = 0; i < p->D; i += VF) {
        const uint32_t n = p->D - i;
        const vf z = vf_load_some(gate + i, n);
        const vf normed = vf_load_some(x + i, n) * factor * vf_from_bf16_some(weight + i, n);
        vf_store_some(y + i, normed * (z * vf_sigmoid(z)), n);
      }
    }
  }
}

void MF_ON_PATH(output_gate)(const mf_task *task) {
  const mf_output_gate_params *p = task->params;
  const uint32_t heads = p->T * p->H;
  for (uint32_t head; (head = mf_take(task, 0, heads)) < heads;) {
    const float *gate = (const float *)task->buffers[MF_OUTPUT_GATE_PAIRS] + ((size_t)head * 2 + 1) * p->Dh;
    float *y = (float *)task->buffers[MF_OUTPUT_GATE_Y] + (size_t)head * p->Dh;
    for (uint32_t i = 0; i < p->Dh; i += VF) {
      const vf g = vf_sigmoid(vf_load_some(gate + i, p->Dh - i));
      vf_store_some(y + i, vf_load_some(y + i, p->Dh - i) * g, p->Dh - i);
    }
  }
}

void MF_ON_PATH(gated_shared)(const mf_task *task) {
  const mf_gated_shared_params *p = task->params;
  const float *gates = task->buffers[MF_GATED_SHARED_GATE];
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    const size_t at = (size_t)t * p->D;
    float *y = (float *)task->buffers[MF_GATED_SHARED_Y] + at;
    const float *routed = (const float *)task->buffers[MF_GATED_SHARED_ROUTED] + at;
    const float *shared = (const float *)task->buffers[MF_GATED_SHARED_SHARED] + at;
    const vf gate = vf_sigmoid(vf_splat(gates[t]));
    for (uint32_t i = 0; i < p->D; i += VF) {
      const uint32_t n = p->D - i;
      vf_store_some(y + i, vf_fma(gate, vf_load_some(shared + i, n), vf_load_some(routed + i, n)), n);
    }
  }
}
#endif
