// Root-mean-square norms of rows, alone and as the two fused steps of a sandwich-normed layer. A row is
// done by one thread, so the same row gives the same bits in a batch of any size.
#ifndef MF_NORM_VECTOR_H
#define MF_NORM_VECTOR_H
#include "vector.h"

// 1 / sqrt(mean of squares + eps).
MF_INLINE float inverse_rms(float sum_squares, uint32_t n, float eps) {
  return 1.0f / sqrtf(sum_squares / (float)n + eps);
}

static float sum_squares(const float *x, uint32_t n) {
  vf sum[4] = {vf_splat(0), vf_splat(0), vf_splat(0), vf_splat(0)};
  uint32_t i = 0;
  for (; i + 4 * VF <= n; i += 4 * VF) {
    for (int j = 0; j < 4; j++) {
      const vf a = vf_load(x + i + j * VF);
      sum[j] = vf_fma(a, a, sum[j]);
    }
  }
  for (; i < n; i += VF) {
    const vf a = vf_load_some(x + i, n - i);
    sum[0] = vf_fma(a, a, sum[0]);
  }
  return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// y = x * factor * weight; y may be x.
static void scale_row(const float *x, float factor, const uint16_t *weight, float *y, uint32_t n) {
  for (uint32_t i = 0; i < n; i += VF) {
    const vf w = vf_from_bf16_some(weight + i, n - i);
    vf_store_some(y + i, vf_load_some(x + i, n - i) * vf_splat(factor) * w, n - i);
  }
}

void MF_ON_PATH(rms_norm)(const mf_task *task) {
  const mf_rms_norm_params *p = task->params;
  const float *x = task->buffers[MF_RMS_NORM_X];
  const uint16_t *weight = task->buffers[MF_RMS_NORM_WEIGHT];
  float *y = task->buffers[MF_RMS_NORM_Y];
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    const float *row = x + (size_t)t * p->D;
    const float factor = inverse_rms(sum_squares(row, p->D), p->D, p->eps);
    scale_row(row, factor, weight, y + (size_t)t * p->D, p->D);
  }
}

void MF_ON_PATH(residual_norm)(const mf_task *task) {
  const mf_residual_norm_params *p = task->params;
  const uint16_t *weight = task->buffers[MF_RESIDUAL_NORM_WEIGHT];
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    const size_t at = (size_t)t * p->D;
    float *x = (float *)task->buffers[MF_RESIDUAL_NORM_X] + at;
    const float *branch = (const float *)task->buffers[MF_RESIDUAL_NORM_BRANCH] + at;
    for (uint32_t i = 0; i < p->D; i += VF) {
      vf_store_some(x + i, vf_load_some(x + i, p->D - i) + vf_load_some(branch + i, p->D - i), p->D - i);
    }
    const float factor = inverse_rms(sum_squares(x, p->D), p->D, p->eps);
    scale_row(x, factor, weight, (float *)task->buffers[MF_RESIDUAL_NORM_Y] + at, p->D);
  }
}

void MF_ON_PATH(sandwich_setup)(const mf_task *task) {
  const mf_sandwich_setup_params *p = task->params;
  void *const *bound = task->buffers;
  const uint32_t D = p->D;
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    const size_t at = (size_t)t * D;
    float *x = (float *)bound[MF_SANDWICH_SETUP_X] + at;
    const float *branch = (const float *)bound[MF_SANDWICH_SETUP_BRANCH] + at;
    const uint16_t *post = bound[MF_SANDWICH_SETUP_POST_NORM];
    const vf branch_factor = vf_splat(inverse_rms(sum_squares(branch, D), D, p->eps));
    for (uint32_t i = 0; i < D; i += VF) {
      const vf b = vf_load_some(branch + i, D - i) * branch_factor;
      const vf w = vf_from_bf16_some(post + i, D - i);
      vf_store_some(x + i, vf_load_some(x + i, D - i) + b * w, D - i);
    }
    const float factor = inverse_rms(sum_squares(x, D), D, p->eps);
    scale_row(x, factor, bound[MF_SANDWICH_SETUP_SHARED_NORM],
              (float *)bound[MF_SANDWICH_SETUP_SHARED] + at, D);
    scale_row(x, factor, bound[MF_SANDWICH_SETUP_ROUTED_NORM],
              (float *)bound[MF_SANDWICH_SETUP_ROUTED] + at, D);
    scale_row(x, factor * p->router_factor, bound[MF_SANDWICH_SETUP_ROUTER_SCALE],
              (float *)bound[MF_SANDWICH_SETUP_ROUTER] + at, D);
  }
}

// The two branches of a row, each ready to be normed.
typedef struct {
  const float *x[2];
  const uint16_t *weight[2];
  vf factor[2];
} mf_branches;

MF_INLINE vf branch_sum(const mf_branches *b, uint32_t i, uint32_t n) {
  const vf first = vf_load_some(b->x[0] + i, n) * b->factor[0] * vf_from_bf16_some(b->weight[0] + i, n);
  const vf second = vf_load_some(b->x[1] + i, n) * b->factor[1] * vf_from_bf16_some(b->weight[1] + i, n);
  return first + second;
}

void MF_ON_PATH(sandwich_tail)(const mf_task *task) {
  const mf_sandwich_tail_params *p = task->params;
  void *const *bound = task->buffers;
  const uint32_t D = p->D;
  const uint16_t *weight = bound[MF_SANDWICH_TAIL_SUM_NORM];
  const vf scalar = vf_splat(mf_bf16(*(const uint16_t *)bound[MF_SANDWICH_TAIL_LAYER_SCALAR]));
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    const size_t at = (size_t)t * D;
    float *x = (float *)bound[MF_SANDWICH_TAIL_X] + at;
    mf_branches b = {
        {(const float *)bound[MF_SANDWICH_TAIL_SHARED] + at,
         (const float *)bound[MF_SANDWICH_TAIL_ROUTED] + at},
        {bound[MF_SANDWICH_TAIL_SHARED_NORM], bound[MF_SANDWICH_TAIL_ROUTED_NORM]},
        {vf_splat(0), vf_splat(0)}};
    for (int j = 0; j < 2; j++) {
      b.factor[j] = vf_splat(inverse_rms(sum_squares(b.x[j], D), D, p->eps));
    }
    // The sum is computed twice rather than stored: a row of scratch would cost more than the arithmetic.
    vf total = vf_splat(0);
    for (uint32_t i = 0; i < D; i += VF) {
      const vf s = branch_sum(&b, i, D - i);
      total = vf_fma(s, s, total);
    }
    const vf factor = vf_splat(inverse_rms(vf_sum(total), D, p->eps));
    for (uint32_t i = 0; i < D; i += VF) {
      const vf s = branch_sum(&b, i, D - i) * factor * vf_from_bf16_some(weight + i, D - i);
      vf_store_some(x + i, (vf_load_some(x + i, D - i) + s) * scalar, D - i);
    }
  }
}
#endif
