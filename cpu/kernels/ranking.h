// Choosing the best of many values: larger first, and of equals the lower id.
#ifndef MF_RANKING_H
#define MF_RANKING_H
#include <math.h>

#include "../mf_cpu.h"

// The id where there is none.
#define MF_NO_ID UINT32_MAX

// The best value of one chunk, and how many of its values were not finite.
typedef struct {
  double value;
  uint32_t id;
  uint32_t bad;
} mf_best;

// Joins the chunks of a row: (best id, number of values that are not finite); id 0 if none is finite.
static inline void mf_join(const mf_best *best, uint32_t chunks, uint32_t *result) {
  mf_best all = {-INFINITY, 0, 0};
  for (uint32_t i = 0; i < chunks; i++) {
    all.bad += best[i].bad;
    if (!(best[i].value > all.value)) continue;
    all.value = best[i].value;
    all.id = best[i].id;
  }
  result[0] = all.id;
  result[1] = all.bad;
}

typedef struct {
  float value;
  uint32_t id;
} mf_ranked;

// The best `capacity` entries so far, as a heap whose root is the worst of them.
typedef struct {
  uint32_t capacity;
  uint32_t count;
  mf_ranked entries[MF_CANDIDATES_MAX];
} mf_ranking;

static inline int mf_is_better(mf_ranked a, mf_ranked b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

static inline void mf_sink(mf_ranked *heap, uint32_t count, mf_ranked entry) {
  uint32_t at = 0;
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= count) break;
    if (child + 1 < count && mf_is_better(heap[child], heap[child + 1])) child++;
    if (!mf_is_better(entry, heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = entry;
}

static inline void mf_rank(mf_ranking *ranking, float value, uint32_t id) {
  const mf_ranked entry = {value, id};
  mf_ranked *heap = ranking->entries;
  if (ranking->count == ranking->capacity) {
    if (ranking->capacity > 0 && mf_is_better(entry, heap[0])) mf_sink(heap, ranking->count, entry);
    return;
  }
  uint32_t at = ranking->count++;
  while (at > 0 && mf_is_better(heap[(at - 1) / 2], entry)) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = entry;
}

// Empties the ranking in descending order; places that no entry fills get MF_NO_ID and -inf.
static inline void mf_sort_ranking(mf_ranking *ranking, uint32_t *ids, float *values) {
  for (uint32_t i = ranking->count; i < ranking->capacity; i++) {
    ids[i] = MF_NO_ID;
    values[i] = -INFINITY;
  }
  for (uint32_t left = ranking->count; left > 0; left--) {
    ids[left - 1] = ranking->entries[0].id;
    values[left - 1] = ranking->entries[0].value;
    mf_sink(ranking->entries, left - 1, ranking->entries[left - 1]);
  }
  ranking->count = 0;
}
#endif
