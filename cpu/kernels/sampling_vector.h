// Passes over the logits of a vocabulary, in chunks of a fixed size whose results are joined in order.
// Values that are not finite are counted and take no part.
#ifndef MF_SAMPLING_VECTOR_H
#define MF_SAMPLING_VECTOR_H
#include "ranking.h"
#include "vector.h"

enum { CHUNK = 8192, STRIP = 512, TOP_BLOCK = 64, MASS_STRIP = 256 };

MF_INLINE uint32_t chunks_of(uint32_t n) { return n / CHUNK + (n % CHUNK != 0); }

MF_INLINE vi is_finite(vf x) {
  return ((vi)x & INT32_MAX) < ((vi)vf_splat(INFINITY));
}

// The largest finite value of x[0 .. n - 1], -inf if there is none; adds the others to *bad.
static float finite_top(const float *x, uint32_t n, uint32_t *bad) {
  const vi nothing = (vi)vf_splat(-INFINITY);
  vf top = vf_splat(-INFINITY);
  vi good = (vi)vf_splat(0);
  uint32_t i = 0;
  for (; i + VF <= n; i += VF) {
    const vf a = vf_load(x + i);
    const vi mask = is_finite(a);
    good -= mask;
    top = vf_max((vf)((mask & (vi)a) | (~mask & nothing)), top);
  }
  uint32_t count = 0;
  for (int lane = 0; lane < VF; lane++) count += (uint32_t)good[lane];
  float result = vf_top(top);
  for (; i < n; i++) {
    if (!isfinite(x[i])) continue;
    count++;
    if (x[i] > result) result = x[i];
  }
  *bad += n - count;
  return result;
}

// The first largest finite value of a chunk.
static mf_best best_of_chunk(const float *logits, uint32_t first, uint32_t end) {
  mf_best best = {-INFINITY, MF_NO_ID, 0};
  uint32_t strip = first;
  for (uint32_t i = first; i < end; i += STRIP) {
    const uint32_t n = end - i < STRIP ? end - i : STRIP;
    const float top = finite_top(logits + i, n, &best.bad);
    if ((double)top > best.value) {
      best.value = (double)top;
      strip = i;
    }
  }
  if (best.value == -INFINITY) return best;
  best.id = strip;
  while ((double)logits[best.id] != best.value) best.id++;
  return best;
}

void MF_ON_PATH(argmax)(const mf_task *task) {
  const mf_argmax_params *p = task->params;
  const float *logits = task->buffers[MF_ARGMAX_LOGITS];
  uint32_t *result = task->buffers[MF_ARGMAX_RESULT];
  const uint32_t chunks = chunks_of(p->V);
  mf_best *best = mf_shared_scratch(task, (size_t)p->T * chunks * sizeof *best);
  for (uint32_t i; best != NULL && (i = mf_take(task, 0, p->T * chunks)) < p->T * chunks;) {
    const uint32_t first = i % chunks * CHUNK;
    const uint32_t end = p->V - first < CHUNK ? p->V : first + CHUNK;
    best[i] = best_of_chunk(logits + (size_t)(i / chunks) * p->V, first, end);
  }
  mf_barrier(task);
  for (uint32_t t; best != NULL && (t = mf_take(task, 1, p->T)) < p->T;) {
    mf_join(best + (size_t)t * chunks, chunks, result + 2 * (size_t)t);
  }
}

void MF_ON_PATH(softcap)(const mf_task *task) {
  const mf_softcap_params *p = task->params;
  const float *x = task->buffers[MF_SOFTCAP_X];
  float *y = task->buffers[MF_SOFTCAP_Y];
  const vf cap = vf_splat(p->cap);
  const uint32_t chunks = chunks_of(p->N);
  for (uint32_t chunk; (chunk = mf_take(task, 0, chunks)) < chunks;) {
    const uint32_t first = chunk * CHUNK;
    const uint32_t end = p->N - first < CHUNK ? p->N : first + CHUNK;
    for (uint32_t i = first; i < end; i += VF) {
      vf a = vf_load_some(x + i, end - i);
      // A cap of 0 is none.
      if (p->cap > 0) a = cap * vf_tanh(a / cap);
      vf_store_some(y + i, a, end - i);
    }
  }
}

// Sum of e^(x - top) over the finite values: float32 within a strip, double over strips.
static double mass_of_chunk(const float *x, uint32_t n, float top) {
  double mass = 0;
  for (uint32_t first = 0; first < n; first += MASS_STRIP) {
    const uint32_t end = n - first < MASS_STRIP ? n : first + MASS_STRIP;
    vf sum = vf_splat(0);
    uint32_t i = first;
    for (; i + VF <= end; i += VF) {
      const vf a = vf_load(x + i);
      sum += vf_where(is_finite(a), vf_exp(a - vf_splat(top)));
    }
    mass += (double)vf_sum(sum);
    for (; i < end; i++) {
      if (isfinite(x[i])) mass += exp((double)x[i] - (double)top);
    }
  }
  return mass;
}

// What the threads of one `candidates` dispatch share.
typedef struct {
  double *mass;   // of each chunk
  float *top;     // of each block
  uint32_t *bad;  // of each chunk
} mf_survey;

static void survey_chunk(const mf_candidates_params *p, const float *logits, const mf_survey *s,
                         uint32_t chunk) {
  const uint32_t first = chunk * CHUNK;
  const uint32_t end = p->V - first < CHUNK ? p->V : first + CHUNK;
  s->bad[chunk] = 0;
  for (uint32_t i = first; i < end; i += TOP_BLOCK) {
    const uint32_t n = end - i < TOP_BLOCK ? end - i : TOP_BLOCK;
    s->top[i / TOP_BLOCK] = finite_top(logits + i, n, &s->bad[chunk]);
  }
}

// The C best logits. Each of the C best blocks holds one at least as large as the least of their tops,
// so no block with a smaller top can matter.
static void select_candidates(const mf_task *task, const mf_survey *s, uint32_t blocks) {
  const mf_candidates_params *p = task->params;
  const float *logits = task->buffers[MF_CANDIDATES_LOGITS];
  mf_ranking ranking = {.capacity = p->C};
  for (uint32_t b = 0; b < blocks; b++) mf_rank(&ranking, s->top[b], b);
  const float least = ranking.count < p->C ? -INFINITY : ranking.entries[0].value;
  ranking.count = 0;
  for (uint32_t b = 0; b < blocks; b++) {
    if (s->top[b] < least || s->top[b] == -INFINITY) continue;
    const uint32_t first = b * TOP_BLOCK;
    const uint32_t end = p->V - first < TOP_BLOCK ? p->V : first + TOP_BLOCK;
    for (uint32_t i = first; i < end; i++) {
      if (logits[i] >= least && isfinite(logits[i])) mf_rank(&ranking, logits[i], i);
    }
  }
  mf_sort_ranking(&ranking, task->buffers[MF_CANDIDATES_IDS], task->buffers[MF_CANDIDATES_VALUES]);
}

void MF_ON_PATH(candidates)(const mf_task *task) {
  const mf_candidates_params *p = task->params;
  const float *logits = task->buffers[MF_CANDIDATES_LOGITS];
  float *out = task->buffers[MF_CANDIDATES_MASS];
  const uint32_t chunks = chunks_of(p->V);
  const uint32_t blocks = p->V / TOP_BLOCK + (p->V % TOP_BLOCK != 0);
  uint8_t *shared = mf_shared_scratch(task, chunks * (sizeof(double) + 4) + (size_t)blocks * 4 + 64);
  const bool is_possible = shared != NULL && p->C <= MF_CANDIDATES_MAX;
  if (p->C > MF_CANDIDATES_MAX) {
    mf_fail(task, "candidates: %u asked for, at most %u can be had", p->C, (uint32_t)MF_CANDIDATES_MAX);
  }
  mf_survey s = {NULL, NULL, NULL};
  if (shared != NULL) {
    s.mass = (double *)(void *)shared;
    s.top = (float *)(s.mass + chunks);
    s.bad = (uint32_t *)(s.top + blocks);
  }
  for (uint32_t i; is_possible && (i = mf_take(task, 0, chunks)) < chunks;) {
    survey_chunk(p, logits, &s, i);
  }
  mf_barrier(task);
  uint32_t ignored = 0;
  const float top = is_possible ? finite_top(s.top, blocks, &ignored) : 0;
  // Unit 0 is the selection, which one thread does while the others add up.
  for (uint32_t i; is_possible && (i = mf_take(task, 1, chunks + 1)) <= chunks;) {
    const uint32_t first = (i - 1) * CHUNK;
    if (i == 0) {
      select_candidates(task, &s, blocks);
    } else {
      s.mass[i - 1] = mass_of_chunk(logits + first, p->V - first < CHUNK ? p->V - first : CHUNK, top);
    }
  }
  mf_barrier(task);
  if (!is_possible || mf_take(task, 2, 1) != 0) return;
  double mass = 0;
  uint32_t bad = 0;
  for (uint32_t i = 0; i < chunks; i++) {
    mass += s.mass[i];
    bad += s.bad[i];
  }
  out[0] = top;
  out[1] = (float)mass;
  out[2] = (float)bad;
}
#endif
