// Walking a row of logits: every thread of one threadgroup takes four in a row, then the next four as far on
// as all threads take together.
#ifndef LOGITS_H
#define LOGITS_H
#include <metal_stdlib>
#include "group.h"
#include "numbers.h"
using namespace metal;

// Up to four logits from some id on.
struct four_logits {
  float4 value;
  uint count;
};

static inline four_logits load_logits(device const float *logits, uint first, uint V) {
  device const float *from = logits + first;
  const uint count = min(4u, V - first);
  if (count == 4) return four_logits{float4(*(device const packed_float4 *)from), 4};
  const float x = from[0];
  return four_logits{float4(x, count > 1 ? from[1] : x, count > 2 ? from[2] : x, x), count};
}

// The best of a thread's logits so far: by key, then the lower id; and how many are not finite.
struct best_logit {
  uint key, id, bad;
};

static inline void take(thread best_logit &best, uint key, uint id) {
  if (key == 0u) best.bad++;
  if (key <= best.key) return;
  best.key = key;
  best.id = id;
}

// The best of the threadgroup, in every thread; id 0 if none is finite.
static inline best_logit group_best(best_logit best, threadgroup uint *partial, place at) {
  const uint bad = group_sum(best.bad, partial, at);
  const uint key = group_max(best.key, partial, at);
  const uint id = group_min(best.key == key ? best.id : 0xffffffffu, partial, at);
  return best_logit{key, key == 0u ? 0u : id, bad};
}
#endif
