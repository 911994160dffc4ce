// Rotary tables, and what parts gated heads.
#include <math.h>
#include <string.h>

#include "../mf_cpu.h"

// Pairs of one unit of work.
enum { UNIT_PAIRS = 64 };

// The angle is a float32 product, as the models were trained with; its cosine and sine are taken in
// double, whose argument reduction is exact for every position.
void mf_k_rope_table(const mf_task *task) {
  const mf_rope_table_params *p = task->params;
  const float *frequencies = task->buffers[MF_ROPE_TABLE_FREQUENCIES];
  float *table = task->buffers[MF_ROPE_TABLE_TABLE];
  const uint32_t parts = (p->N + UNIT_PAIRS - 1) / UNIT_PAIRS;
  for (uint32_t unit; (unit = mf_take(task, 0, p->T * parts)) < p->T * parts;) {
    const uint32_t t = unit / parts, first = unit % parts * UNIT_PAIRS;
    const uint32_t end = p->N - first < UNIT_PAIRS ? p->N : first + UNIT_PAIRS;
    const float position = (float)(p->position + t);
    for (uint32_t n = first; n < end; n++) {
      const float angle = position * frequencies[n];
      float *pair = table + 2 * ((size_t)t * p->N + n);
      pair[0] = (float)cos((double)angle);
      pair[1] = (float)sin((double)angle);
    }
  }
}

void mf_k_split_gate(const mf_task *task) {
  const mf_split_gate_params *p = task->params;
  const float *pairs = task->buffers[MF_SPLIT_GATE_PAIRS];
  float *q = task->buffers[MF_SPLIT_GATE_Q];
  for (uint32_t t; (t = mf_take(task, 0, p->T)) < p->T;) {
    for (size_t head = (size_t)t * p->H; head < (size_t)(t + 1) * p->H; head++) {
      memcpy(q + head * p->Dh, pairs + head * 2 * p->Dh, p->Dh * sizeof *q);
    }
  }
}
