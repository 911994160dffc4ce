// Checked dispatches. Each binding that the program declared is copied to a place of its own with nothing
// around it, so that an index which runs into the neighbouring tensor of the same file is out of bounds.
// The kernel works on the copies; what it has written is copied back. Bindings that overlap and of which
// one is written share a copy. Memory whose extent is not declared stays where it is.
#define _GNU_SOURCE
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 16384 };              // a copy keeps its address modulo this: alignment is checked too
static const size_t GAP = (size_t)64 << 20;  // address space on both sides of a copy

// A place for a copy, kept for the next dispatch.
typedef struct slot {
    unsigned char *reservation;
    size_t capacity;
    shadow_byte *shadow;
    size_t shadow_capacity;              // in bytes of the region
} slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot slots[SOFTMETAL_MAX_BINDINGS];
static region regions[SOFTMETAL_MAX_BINDINGS];
static size_t region_count;
static shadow_byte *arena_shadow;
static uint32_t last_epoch;

// ---- shadows ------------------------------------------------------------------------------------

uint32_t softmetal_next_epoch(void) { return ++last_epoch; }

shadow_byte *softmetal_arena_shadow(void) {
    if (!arena_shadow) arena_shadow = softmetal_reserve(ARENA_SIZE * sizeof *arena_shadow);
    return arena_shadow;
}

static void drop_shadow(slot *s) {
    if (s->shadow) munmap(s->shadow, s->shadow_capacity * sizeof *s->shadow);
    s->shadow = NULL;
    s->shadow_capacity = 0;
}

// Epochs are 32 bits; long before they are used up, everything that mentions one is forgotten.
static void renew_epochs(void) {
    if (last_epoch < (uint32_t)1 << 30) return;
    for (int i = 0; i < SOFTMETAL_MAX_BINDINGS; i++) drop_shadow(&slots[i]);
    if (arena_shadow) munmap(arena_shadow, ARENA_SIZE * sizeof *arena_shadow);
    arena_shadow = NULL;
    last_epoch = 0;
}

static shadow_byte *shadow_for(slot *s, size_t length) {
    if (s->shadow_capacity < length) {
        drop_shadow(s);
        s->shadow = softmetal_reserve(length * sizeof *s->shadow);
        s->shadow_capacity = length;
    }
    return s->shadow;
}

// ---- regions ------------------------------------------------------------------------------------

static unsigned char *place_for(slot *s, const unsigned char *origin, size_t length) {
    size_t needed = length + ALIGNMENT;
    if (s->capacity < needed) {
        if (s->reservation) munmap(s->reservation, 2 * GAP + s->capacity);
        s->capacity = (needed + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        s->reservation = softmetal_reserve(2 * GAP + s->capacity);
    }
    uintptr_t start = ((uintptr_t)s->reservation + GAP) / ALIGNMENT * ALIGNMENT;
    return (unsigned char *)start + (uintptr_t)origin % ALIGNMENT;
}

static bool overlap(const region *r, const softmetal_binding *b) {
    return r->origin < b->start + b->length && b->start < r->origin + r->memory.length;
}

static bool any_writes(const softmetal_dispatch *d, const region *r) {
    for (uint64_t rest = r->members; rest; rest &= rest - 1)
        if (d->bindings[__builtin_ctzll(rest)].writes) return true;
    return false;
}

static void include(region *r, unsigned char *start, size_t length) {
    unsigned char *end = r->origin + r->memory.length;
    if (end < start + length) end = start + length;
    if (start < r->origin) r->origin = start;
    r->memory.length = (size_t)(end - r->origin);
}

// Puts a binding into a region of its own, or together with those it overlaps if any of them is written.
static void add_binding(softmetal_dispatch *d, size_t index) {
    const softmetal_binding *b = &d->bindings[index];
    region joined = {.memory = {.length = b->length, .space = DEVICE_SPACE}, .origin = b->start,
                     .members = (uint64_t)1 << index, .fresh = b->fresh};
    for (size_t i = 0; i < region_count;) {
        region *r = &regions[i];
        if (!overlap(r, b) || !(b->writes || any_writes(d, r))) { i++; continue; }
        include(&joined, r->origin, r->memory.length);
        joined.members |= r->members;
        joined.fresh |= r->fresh;
        *r = regions[--region_count];
    }
    regions[region_count++] = joined;
}

static bool is_isolated(const softmetal_dispatch *d, const region *r) {
    for (uint64_t rest = r->members; rest; rest &= rest - 1)
        if (!d->bindings[__builtin_ctzll(rest)].isolated) return false;
    return true;
}

// The content of a copy: that of the original, and poison where the original is fresh or where only
// writing is declared.
static void fill(const softmetal_dispatch *d, region *r) {
    bool is_written = any_writes(d, r);
    if (r->fresh) r->fresh = softmetal_fresh_copy(r->memory.start, r->origin, r->memory.length, is_written);
    else memcpy(r->memory.start, r->origin, r->memory.length);
    const softmetal_binding *first = &d->bindings[__builtin_ctzll(r->members)];
    bool alone = (r->members & (r->members - 1)) == 0;
    if (alone && !first->reads) softmetal_poison(r->memory.start, r->memory.length);
}

static void prepare(softmetal_dispatch *d, void **buffers) {
    region_count = 0;
    for (size_t i = 0; i < d->binding_count; i++) add_binding(d, i);
    for (size_t i = 0; i < region_count; i++) {
        region *r = &regions[i];
        slot *s = &slots[i];
        r->memory.start = r->origin;
        if (is_isolated(d, r)) {
            r->memory.start = place_for(s, r->origin, r->memory.length);
            fill(d, r);
        } else {
            r->fresh = false;
        }
        r->memory.shadow = any_writes(d, r) ? shadow_for(s, r->memory.length) : NULL;
        r->plain = !r->memory.shadow && !r->fresh && (r->members & (r->members - 1)) == 0;
        for (uint64_t rest = r->members; rest; rest &= rest - 1) {
            const softmetal_binding *b = &d->bindings[__builtin_ctzll(rest)];
            if (b->isolated && b->index >= 0) buffers[b->index] = r->memory.start + (b->start - r->origin);
        }
    }
}

// Copies back what was written, and notes for each binding where that was.
static void finish(softmetal_dispatch *d, uint32_t first_epoch) {
    for (size_t i = 0; i < region_count; i++) {
        const region *r = &regions[i];
        if (!r->memory.shadow) continue;
        for (size_t at = 0; at < r->memory.length; at++) {
            if (r->memory.shadow[at].write_epoch < first_epoch) continue;
            r->origin[at] = r->memory.start[at];
            softmetal_fresh_mark_written(r->origin + at);
            for (uint64_t rest = r->members; rest; rest &= rest - 1) {
                softmetal_binding *b = &d->bindings[__builtin_ctzll(rest)];
                size_t offset = (size_t)(r->origin + at - b->start);
                if (!b->writes || offset >= b->length) continue;
                if (b->written_to == 0) b->written_from = offset;
                b->written_to = offset + 1;
            }
        }
    }
}

void softmetal_run_checked(softmetal_dispatch *d) {
    pthread_mutex_lock(&lock);
    renew_epochs();
    uint32_t first_epoch = last_epoch + 1;
    void *const *buffers = d->buffers;
    void *places[SOFTMETAL_MAX_BUFFERS];
    memcpy(places, buffers, sizeof places);
    prepare(d, places);
    d->buffers = places;
    softmetal_run(d);
    d->buffers = buffers;
    finish(d, first_epoch);
    region_count = 0;
    pthread_mutex_unlock(&lock);
}

void softmetal_forget(const void *start, size_t length) {
    pthread_mutex_lock(&lock);
    softmetal_fresh_forget(start, length);
    pthread_mutex_unlock(&lock);
}

// ---- looking up ---------------------------------------------------------------------------------

static size_t offset_in(const region *r, const void *address) {
    return (size_t)((const unsigned char *)address - r->memory.start);
}

const region *softmetal_region_of(const void *address) {
    for (size_t i = 0; i < region_count; i++)
        if (offset_in(&regions[i], address) < regions[i].memory.length) return &regions[i];
    return NULL;
}

// The region that ends or starts closest to the address.
const region *softmetal_region_near(const void *address, ptrdiff_t *offset) {
    const region *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < region_count; i++) {
        ptrdiff_t at = (ptrdiff_t)offset_in(&regions[i], address);
        size_t length = regions[i].memory.length;
        size_t distance = at < 0 ? (size_t)-at : (size_t)at < length ? 0 : (size_t)at - length;
        if (distance < best_distance) best = &regions[i], best_distance = distance, *offset = at;
    }
    return best;
}
