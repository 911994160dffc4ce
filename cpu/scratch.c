// Scratch memory of a dispatch: one region for each of its threads and one that they share. Regions grow
// and stay, so that a kernel seldom waits for an allocation.
#include "mf_core.h"

#include <stdlib.h>

enum { STEP_BYTES = 4096 };

static void *new_region(size_t *bytes) {
  if (*bytes > SIZE_MAX / 2) return NULL;
  *bytes = (*bytes + STEP_BYTES) / STEP_BYTES * STEP_BYTES;
  void *contents = NULL;
  return posix_memalign(&contents, MF_LINE_BYTES, *bytes) == 0 ? contents : NULL;
}

void *mf_scratch(const mf_task *task, size_t bytes) {
  mf_region *region = &task->dispatch->scratch[task->thread];
  if (region->contents != NULL && region->bytes >= bytes) return region->contents;
  free(region->contents);
  region->bytes = bytes;
  region->contents = new_region(&region->bytes);
  if (region->contents == NULL) mf_fail(task, "%zu bytes of scratch memory could not be had", bytes);
  return region->contents;
}

static void *grow_shared(const mf_task *task, size_t bytes) {
  mf_dispatch *dispatch = task->dispatch;
  void *contents = atomic_load_explicit(&dispatch->shared, memory_order_relaxed);
  if (contents != NULL && atomic_load_explicit(&dispatch->shared_bytes, memory_order_relaxed) >= bytes)
    return contents;
  if (atomic_load_explicit(&dispatch->shared_failed, memory_order_relaxed)) return NULL;
  free(contents);
  size_t size = bytes;
  contents = new_region(&size);
  atomic_store_explicit(&dispatch->shared, contents, memory_order_relaxed);
  atomic_store_explicit(&dispatch->shared_bytes, contents == NULL ? 0 : size, memory_order_release);
  if (contents != NULL) return contents;
  atomic_store_explicit(&dispatch->shared_failed, true, memory_order_relaxed);
  mf_fail(task, "%zu bytes of shared scratch memory could not be had", bytes);
  return NULL;
}

void *mf_shared_scratch(const mf_task *task, size_t bytes) {
  mf_dispatch *dispatch = task->dispatch;
  // Only the first of a dispatch's threads that ask can find too little: the others see its region.
  if (atomic_load_explicit(&dispatch->shared_bytes, memory_order_acquire) >= bytes && bytes > 0)
    return atomic_load_explicit(&dispatch->shared, memory_order_relaxed);
  pthread_mutex_lock(&dispatch->shared_lock);
  void *contents = grow_shared(task, bytes);
  pthread_mutex_unlock(&dispatch->shared_lock);
  return contents;
}

void mf_dispatch_destroy(mf_dispatch *dispatch) {
  for (int i = 0; i < MF_THREADS_MAX; i++) free(dispatch->scratch[i].contents);
  free(atomic_load(&dispatch->shared));
  pthread_mutex_destroy(&dispatch->shared_lock);
}
