// The one table of handles. A handle is 3 bits of kind, 12 of generation and 17 of index; a place whose
// generations are used up is retired, so that a stale handle is never taken for a live one.
#include "mf_core.h"

#include <stdlib.h>

enum { INDEX_BITS = 17, GENERATION_BITS = 12, KIND_SHIFT = INDEX_BITS + GENERATION_BITS };
#define INDEX_MAX ((1u << INDEX_BITS) - 1)
#define GENERATION_MAX ((1u << GENERATION_BITS) - 1)
#define NONE UINT32_MAX

typedef struct {
  mf_object *object;  // NULL: free or retired
  uint32_t generation;
  uint32_t next_free;
} place;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static place *places;
static uint32_t place_count;
static uint32_t place_capacity;
// Places are used again oldest first, which keeps generations far from their end.
static uint32_t free_first = NONE;
static uint32_t free_last = NONE;

static const char *kind_name(uint32_t kind) {
  static const char *const names[] = {"a device", "a memory", "a buffer", "an event"};
  return kind >= 1 && kind <= 4 ? names[kind - 1] : "nothing known";
}

void mf_handles_lock(void) { pthread_mutex_lock(&lock); }
void mf_handles_unlock(void) { pthread_mutex_unlock(&lock); }

static uint32_t take_place(void) {
  if (free_first != NONE) {
    const uint32_t index = free_first;
    free_first = places[index].next_free;
    if (free_first == NONE) free_last = NONE;
    return index;
  }
  if (place_count > INDEX_MAX) return NONE;
  if (place_count == place_capacity) {
    const uint32_t capacity = place_capacity == 0 ? 256 : 2 * place_capacity;
    place *grown = realloc(places, capacity * sizeof *places);
    if (grown == NULL) return NONE;
    places = grown;
    place_capacity = capacity;
  }
  places[place_count] = (place){NULL, 0, NONE};
  return place_count++;
}

int32_t mf_handle_create(mf_object *object, mf_handle *handle) {
  const char *const name = kind_name(object->kind);
  mf_handles_lock();
  const uint32_t index = take_place();
  if (index != NONE) {
    places[index].object = object;
    *handle = (mf_handle)object->kind << KIND_SHIFT | places[index].generation << INDEX_BITS | index;
  }
  mf_handles_unlock();
  if (index != NONE) return MF_OK;
  mf_object_release(object);
  return mf_error(MF_ERR_MEMORY, "no handle is left for %s: destroy what is no longer used",
                  name);
}

void *mf_handle_find(mf_handle handle, mf_kind kind) {
  const uint32_t found_kind = handle >> KIND_SHIFT;
  const uint32_t index = handle & INDEX_MAX;
  if (found_kind == kind && index < place_count) {
    const place *found = &places[index];
    const uint32_t generation = handle >> INDEX_BITS & GENERATION_MAX;
    if (found->object != NULL && found->object->kind == kind && found->generation == generation)
      return found->object;
  }
  if (handle == 0)
    mf_error(MF_ERR_HANDLE, "0 is no handle; the one of %s was expected", kind_name(kind));
  else if (found_kind != kind && found_kind >= 1 && found_kind <= 4)
    mf_error(MF_ERR_HANDLE, "handle %u is the one of %s; %s was expected", handle,
             kind_name(found_kind), kind_name(kind));
  else
    mf_error(MF_ERR_HANDLE, "handle %u of %s was destroyed or never created", handle, kind_name(kind));
  return NULL;
}

void *mf_handle_acquire(mf_handle handle, mf_kind kind) {
  mf_handles_lock();
  void *object = mf_handle_find(handle, kind);
  if (object != NULL) mf_object_retain(object);
  mf_handles_unlock();
  return object;
}

void mf_handle_remove(mf_handle handle) {
  const uint32_t index = handle & INDEX_MAX;
  place *freed = &places[index];
  freed->object = NULL;
  if (freed->generation == GENERATION_MAX) return;
  freed->generation++;
  freed->next_free = NONE;
  if (free_last == NONE)
    free_first = index;
  else
    places[free_last].next_free = index;
  free_last = index;
}

void mf_object_retain(void *object) {
  atomic_fetch_add_explicit(&((mf_object *)object)->references, 1, memory_order_relaxed);
}

void mf_object_release(void *object) {
  mf_object *released = object;
  if (atomic_fetch_sub_explicit(&released->references, 1, memory_order_acq_rel) == 1)
    released->destroy(released);
}
