// The weighted sum of a token's experts.
#ifndef MF_ROUTER_VECTOR_H
#define MF_ROUTER_VECTOR_H
#include "vector.h"

// Components of one unit of work.
enum { REDUCE_WIDTH = 1024 };

void MF_ON_PATH(routed_reduce)(const mf_task *task) {
  const mf_routed_reduce_params *p = task->params;
  const float *experts = task->buffers[MF_ROUTED_REDUCE_EXPERTS];
  const float *weights = task->buffers[MF_ROUTED_REDUCE_WEIGHTS];
  float *y = task->buffers[MF_ROUTED_REDUCE_Y];
  const uint32_t parts = (p->D + REDUCE_WIDTH - 1) / REDUCE_WIDTH;
  for (uint32_t unit; (unit = mf_take(task, 0, p->T * parts)) < p->T * parts;) {
    const uint32_t t = unit / parts, first = unit % parts * REDUCE_WIDTH;
    const uint32_t end = p->D - first < REDUCE_WIDTH ? p->D : first + REDUCE_WIDTH;
    const float *rows = experts + (size_t)t * p->K * p->D;
    for (uint32_t d = first; d < end; d += VF) {
      vf sum = vf_splat(0);
      for (uint32_t k = 0; k < p->K; k++) {
        const vf w = vf_splat(weights[(size_t)t * p->K + k]);
        sum = vf_fma(w, vf_load_some(rows + (size_t)k * p->D + d, end - d), sum);
      }
      vf_store_some(y + (size_t)t * p->D + d, sum, end - d);
    }
  }
}
#endif
