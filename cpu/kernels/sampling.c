// The sampler's passes that need no vectors.
#include <math.h>
#include <stdbool.h>

#include "ranking.h"

// One thread does all: an id listed twice is penalised twice, in order.
void mf_k_penalize(const mf_task *task) {
  const mf_penalize_params *p = task->params;
  float *logits = task->buffers[MF_PENALIZE_LOGITS];
  const uint32_t *ids = task->buffers[MF_PENALIZE_IDS];
  if (mf_take(task, 0, 1) != 0) return;
  for (uint32_t i = 0; i < p->N; i++) {
    if (ids[i] >= p->V) {
      mf_fail(task, "penalize: id %u is not in a vocabulary of %u", ids[i], p->V);
      return;
    }
    float *logit = logits + ids[i];
    *logit = *logit > 0 ? *logit / p->penalty : *logit * p->penalty;
  }
}

enum { NOISE_CHUNK = 8192 };

static uint64_t splitmix64(uint64_t state) {
  uint64_t z = state + 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

// -ln(-ln u), u = (top24 + 0.5) / 2^24.
static double noise(uint32_t top24) { return -log(-log((top24 + 0.5) * 0x1p-24)); }

// At least the noise: -ln u >= 1 - u, and 1 - u >= 2^-k for the k below.
static double noise_bound(uint32_t top24) {
  const uint32_t rest = (1u << 24) - 1 - top24;  // 2^24 (1 - u) - 0.5
  const int k = rest == 0 ? 25 : __builtin_clz(rest) - 7;
  return k * 0.6931471805599454;
}

// The normaliser of the logits is the same for every id and is left out. Everything is in double and
// portable: every path gives the same bits.
static mf_best draw_from_chunk(const mf_gumbel_params *p, const float *logits, uint32_t chunk) {
  const uint64_t key = (uint64_t)p->key_high << 32 | p->key_low;
  const double inverse = 1.0 / (double)p->temperature;
  const uint32_t first = chunk * NOISE_CHUNK;
  const uint32_t end = p->V - first < NOISE_CHUNK ? p->V : first + NOISE_CHUNK;
  mf_best best = {-INFINITY, MF_NO_ID, 0};
  for (uint32_t v = first; v < end; v++) {
    if (!isfinite(logits[v])) {
      best.bad++;
      continue;
    }
    const uint32_t top24 = (uint32_t)(splitmix64(key ^ v) >> 40);
    const double scaled = (double)logits[v] * inverse;
    // Most ids cannot win whatever their noise, and two logarithms each would be most of the work.
    if (scaled + noise_bound(top24) < best.value) continue;
    const double value = scaled + noise(top24);
    if (!(value > best.value)) continue;
    best.value = value;
    best.id = v;
  }
  return best;
}

void mf_k_gumbel(const mf_task *task) {
  const mf_gumbel_params *p = task->params;
  const float *logits = task->buffers[MF_GUMBEL_LOGITS];
  uint32_t *result = task->buffers[MF_GUMBEL_RESULT];
  const uint32_t chunks = p->V / NOISE_CHUNK + (p->V % NOISE_CHUNK != 0);
  mf_best *best = mf_shared_scratch(task, chunks * sizeof *best);
  const bool is_possible = best != NULL && p->temperature > 0 && isfinite(p->temperature);
  if (!(p->temperature > 0) || !isfinite(p->temperature)) {
    mf_fail(task, "gumbel: temperature %g is not above 0", (double)p->temperature);
  }
  for (uint32_t i; is_possible && (i = mf_take(task, 0, chunks)) < chunks;) {
    best[i] = draw_from_chunk(p, logits, i);
  }
  mf_barrier(task);
  if (is_possible && mf_take(task, 1, 1) == 0) mf_join(best, chunks, result);
}
