// The choice of experts for each token, and the slots that they are in.
#include <math.h>
#include <stdbool.h>

#include "../mf_cpu.h"

// The best expert that comes after (score, id) in the order of choice: larger score, then lower id.
static uint32_t next_best(const float *scores, uint32_t E, float score, uint32_t id, bool is_first) {
  uint32_t best = E;
  for (uint32_t e = 0; e < E; e++) {
    const bool comes_after = is_first || scores[e] < score || (scores[e] == score && e > id);
    if (comes_after && (best == E || scores[e] > scores[best])) best = e;
  }
  return best;
}

static bool choose(const mf_router_topk_params *p, const float *scores, uint32_t *ids, float *weights) {
  for (uint32_t e = 0; e < p->E; e++) {
    if (!isfinite(scores[e])) return false;
  }
  for (uint32_t k = 0; k < p->K; k++) {
    const uint32_t last = k == 0 ? 0 : ids[k - 1];
    ids[k] = next_best(scores, p->E, scores[last], last, k == 0);
  }
  float sum = 0;
  for (uint32_t k = 0; k < p->K; k++) {
    weights[k] = expf(scores[ids[k]] - scores[ids[0]]);
    sum += weights[k];
  }
  for (uint32_t k = 0; k < p->K; k++) weights[k] /= sum;
  return true;
}

void mf_k_router_topk(const mf_task *task) {
  const mf_router_topk_params *p = task->params;
  const float *scores = task->buffers[MF_ROUTER_TOPK_SCORES];
  const uint16_t *scale = task->buffers[MF_ROUTER_TOPK_EXPERT_SCALE];
  uint32_t *ids = task->buffers[MF_ROUTER_TOPK_IDS];
  float *weights = task->buffers[MF_ROUTER_TOPK_WEIGHTS];
  if (p->K > p->E || p->E == 0) {
    mf_fail(task, "router_topk: %u of %u experts cannot be chosen", p->K, p->E);
    return;
  }
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    const size_t at = (size_t)t * p->K;
    const bool is_chosen = choose(p, scores + (size_t)t * p->E, ids + at, weights + at);
    if (!is_chosen) mf_fail(task, "router_topk: a score of token %u is not finite", t);
    for (uint32_t k = 0; k < p->K; k++) {
      // Valid experts all the same, so that nothing behind this reads out of bounds.
      if (!is_chosen) ids[at + k] = k;
      weights[at + k] = is_chosen ? weights[at + k] * mf_bf16(scale[ids[at + k]]) : 0;
    }
  }
}

void mf_k_slot_lookup(const mf_task *task) {
  const mf_slot_lookup_params *p = task->params;
  const uint32_t *ids = task->buffers[MF_SLOT_LOOKUP_IDS], *table = task->buffers[MF_SLOT_LOOKUP_TABLE];
  uint32_t *row = task->buffers[MF_SLOT_LOOKUP_GROUPS];
  // A handful of rows: not worth dividing.
  if (task->thread != 0) return;
  for (uint32_t i = 0; i < p->P; i++, row += 4) {
    const uint32_t id = ids[i], slot = id < p->E ? table[id] : UINT32_MAX;
    row[0] = slot;
    row[1] = i;
    row[2] = 1;
    row[3] = 0;
    if (id >= p->E) {
      mf_fail(task, "slot_lookup: pair %u names expert %u, the layer has %u", i, id, p->E);
    } else if (slot >= p->S) {
      mf_fail(task, "slot_lookup: expert %u of pair %u is in none of %u slots", id, i, p->S);
    }
  }
}
