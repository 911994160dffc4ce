// Threadgroup memory, and the checks that kernels compiled with MTL_SHADER_VALIDATION=1 perform on each access.
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

// ---- threadgroup memory -------------------------------------------------------------------------

void softmetal_reset_threadgroup_memory(worker *w) {
    if (w->shadow) memset(w->shadow, 0, w->arena_used * sizeof *w->shadow);
    memset(w->variables, 0, w->variable_count * sizeof *w->variables);
    w->arena_used = w->arena_charged = 0;
    w->variable_count = 0;
    w->memory_epoch = 1;
    // The encoder has checked that these fit; softmetal_fail cannot be used before a thread runs.
    for (int i = 0; i < SOFTMETAL_MAX_THREADGROUP_ARGUMENTS; i++) {
        size_t length = w->dispatch->threadgroup_lengths[i];
        w->threadgroup_arguments[i] =
            length ? softmetal_allocate_threadgroup_memory(w, "a [[threadgroup]] argument", length, 16) : NULL;
    }
}

void *softmetal_allocate_threadgroup_memory(worker *w, const char *name, size_t size, size_t alignment) {
    size_t offset = (w->arena_used + alignment - 1) / alignment * alignment;
    w->arena_charged += size;
    if (w->arena_charged > SOFTMETAL_MAX_THREADGROUP_MEMORY || offset + size + ARENA_GAP > ARENA_SIZE)
        softmetal_fail(w, "%s needs %zu bytes, which makes %zu bytes of threadgroup memory; the limit is %d",
                    name, size, w->arena_charged, SOFTMETAL_MAX_THREADGROUP_MEMORY);
    w->arena_used = offset + size + ARENA_GAP;
    // All ones is NaN for every floating-point type, so reading what nobody wrote shows in the results.
    memset(w->arena + offset, 0xFF, size);
    if (w->shadow)
        for (size_t i = 0; i < size; i++) w->shadow[offset + i].allocated = 1;
    return w->arena + offset;
}

// The first thread that comes to the declaration allocates the variable for the whole threadgroup.
void *softmetal_threadgroup_variable(uint32_t id, const char *name, size_t size, size_t alignment) {
    worker *w = softmetal_current_worker();
    if (id >= MAX_VARIABLES) softmetal_fail(w, "more than %d threadgroup variables", MAX_VARIABLES);
    variable *v = &w->variables[id];
    if (!v->address) {
        v->address = softmetal_allocate_threadgroup_memory(w, name, size, alignment < 16 ? 16 : alignment);
        v->size = size;
        v->name = name;
        if (id >= w->variable_count) w->variable_count = id + 1;
    }
    return v->address;
}

// ---- checks -------------------------------------------------------------------------------------

void softmetal_prepare_checks(worker *w) {
    if (!w->shadow) w->shadow = softmetal_reserve(ARENA_SIZE * sizeof *w->shadow);
}

static const char *verb(softmetal_access access) {
    return access == SOFTMETAL_READ ? "reads" : access == SOFTMETAL_WRITE ? "writes" : "atomically updates";
}

// The variable that holds a byte of the arena, or the last one before it.
static const variable *variable_near(const worker *w, const unsigned char *address) {
    static const variable unknown = {.name = "threadgroup memory"};
    const variable *best = &unknown;
    for (uint32_t i = 0; i < w->variable_count; i++) {
        const variable *v = &w->variables[i];
        if (v->address && (const unsigned char *)v->address <= address && v->address >= best->address) best = v;
    }
    return best;
}

static _Noreturn void report_race(worker *w, const unsigned char *byte, bool other_wrote, uint32_t other, bool write) {
    const variable *v = variable_near(w, byte);
    char who[32];
    if (other == MANY) snprintf(who, sizeof who, "several threads");
    else snprintf(who, sizeof who, "thread %u", other - 1);
    softmetal_fail(w, "data race on '%s' + %td bytes: %s by thread %u, %s by %s, without a barrier for threadgroup "
                "memory between them", v->name, byte - (const unsigned char *)v->address,
                write ? "written" : "read", w->current->info.index, other_wrote ? "written" : "read", who);
}

// Two accesses conflict when nothing orders them: no threadgroup barrier since the first one and, inside one
// SIMD-group, no simdgroup barrier either.
static void check_race(worker *w, size_t offset, size_t size, bool write) {
    uint16_t me = (uint16_t)(w->current->info.index + 1);
    uint16_t my_simdgroup = (uint16_t)(w->current->info.index / SOFTMETAL_SIMD_WIDTH);
    uint32_t epoch = w->memory_epoch, simd_epoch = w->current_simdgroup->memory_epoch;
    for (size_t i = offset; i < offset + size; i++) {
        shadow_byte *b = &w->shadow[i];
        if (b->writer && b->writer != me && b->write_epoch == epoch) {
            bool ordered = (b->writer - 1) / SOFTMETAL_SIMD_WIDTH == my_simdgroup && b->write_simd_epoch < simd_epoch;
            if (!ordered) report_race(w, w->arena + i, true, b->writer, write);
        }
        bool read_in_this_epoch = b->reader && b->read_epoch == epoch;
        if (write) {
            if (read_in_this_epoch && b->reader != me) {
                bool ordered = b->reader_simdgroup == my_simdgroup && b->read_simd_epoch < simd_epoch;
                if (!ordered) report_race(w, w->arena + i, false, b->reader, write);
            }
            b->writer = me;
            b->write_epoch = epoch;
            b->write_simd_epoch = simd_epoch;
        } else if (!read_in_this_epoch) {
            b->reader = me;
            b->reader_simdgroup = my_simdgroup;
            b->read_epoch = epoch;
            b->read_simd_epoch = simd_epoch;
        } else {
            if (b->reader != me) b->reader = MANY;
            if (b->reader_simdgroup != my_simdgroup) b->reader_simdgroup = MANY;
            b->read_simd_epoch = simd_epoch;
        }
    }
}

static bool inside(const void *address, size_t size, const void *start, size_t length) {
    size_t offset = (size_t)((const char *)address - (const char *)start);
    return offset < length && size <= length - offset;
}

static void check_threadgroup_memory(worker *w, const void *address, size_t size, softmetal_access access) {
    size_t offset = (size_t)((const unsigned char *)address - w->arena);
    for (size_t i = 0; i < size; i++) {
        if (w->shadow[offset + i].allocated) continue;
        const variable *v = variable_near(w, address);
        softmetal_fail(w, "thread %u %s %zu bytes outside '%s', at byte offset %td of %zu", w->current->info.index,
                    verb(access), size, v->name, (const char *)address - (const char *)v->address, v->size);
    }
    if (access != SOFTMETAL_ATOMIC) check_race(w, offset, size, access == SOFTMETAL_WRITE);
}

static _Noreturn void report_bounds(worker *w, const void *address, size_t size, softmetal_access access) {
    const softmetal_range *best = NULL;     // the buffer that ends or starts closest to the address
    ptrdiff_t best_offset = 0;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < w->dispatch->range_count; i++) {
        const softmetal_range *r = &w->dispatch->ranges[i];
        ptrdiff_t offset = (const char *)address - (const char *)r->start;
        size_t distance = offset < 0 ? (size_t)-offset : (size_t)offset < r->length ? 0 : (size_t)offset - r->length;
        if (distance < best_distance) best = r, best_distance = distance, best_offset = offset;
    }
    softmetal_size p = w->current->info.position;
    if (!best)
        softmetal_fail(w, "thread (%u, %u, %u) %s %zu bytes at %p, and no buffer is bound", p.x, p.y, p.z,
                    verb(access), size, address);
    softmetal_fail(w, "thread (%u, %u, %u) %s %zu bytes outside every buffer; the closest is buffer(%d), at byte "
                "offset %td of %zu", p.x, p.y, p.z, verb(access), size, best->index, best_offset, best->length);
}

void softmetal_check_access(const void *address, size_t size, size_t alignment, softmetal_access access,
                         const void *program_counter) {
    worker *w = softmetal_current_worker();
    softmetal_dispatch *d = w->dispatch;
    // Private memory, and the scheduler's own data, which the kernel's entry code reads.
    if (inside(address, size, w->stacks, (size_t)STACK_SIZE * SOFTMETAL_MAX_THREADS)) return;
    if (inside(address, size, w, sizeof *w)) return;
    w->failure_pc = program_counter;
    if ((uintptr_t)address % alignment)
        softmetal_fail(w, "thread %u %s %zu bytes at an address that is not a multiple of %zu",
                    w->current->info.index, verb(access), size, alignment);
    if (w->last_range && inside(address, size, w->last_range->start, w->last_range->length)) return;
    if (inside(address, size, w->arena, ARENA_SIZE)) {
        check_threadgroup_memory(w, address, size, access);
    } else {
        const softmetal_range *r = d->ranges, *end = r + d->range_count;
        while (r < end && !inside(address, size, r->start, r->length)) r++;
        size_t image_size = (size_t)((const char *)d->image_end - (const char *)d->image_start);
        if (r < end) w->last_range = r;
        else if (!inside(address, size, d->image_start, image_size)) report_bounds(w, address, size, access);
    }
    w->failure_pc = NULL;
}
