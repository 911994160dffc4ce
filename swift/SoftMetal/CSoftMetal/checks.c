// What happens before each access of a checked kernel: is it inside what was declared, aligned, ordered
// with the accesses of other threads, and does it read what somebody has written?
#include "internal.h"

#include <stdio.h>
#include <string.h>

typedef struct access {
    worker *w;
    const unsigned char *address;
    size_t size;
    softmetal_access kind;
} access;

static bool updates(softmetal_access kind) {
    return kind == SOFTMETAL_WRITE || kind == SOFTMETAL_ATOMIC_WRITE || kind == SOFTMETAL_ATOMIC_UPDATE;
}
static bool looks(softmetal_access kind) {
    return kind != SOFTMETAL_WRITE && kind != SOFTMETAL_ATOMIC_WRITE;
}
static bool is_atomic(softmetal_access kind) {
    return kind != SOFTMETAL_READ && kind != SOFTMETAL_WRITE;
}

static const char *verb(softmetal_access kind) {
    static const char *const verbs[] = {"reads", "writes", "atomically reads", "atomically writes",
                                        "atomically updates"};
    return verbs[kind];
}

static bool inside(const void *address, size_t size, const void *start, size_t length) {
    size_t offset = (size_t)((const char *)address - (const char *)start);
    return offset < length && size <= length - offset;
}

// ---- names for messages -------------------------------------------------------------------------

typedef struct place { char text[160]; } place;

static void name_binding(const softmetal_binding *b, char *text, size_t capacity) {
    if (b->index < 0) snprintf(text, capacity, "a resident buffer");
    else snprintf(text, capacity, "'%.60s' (buffer %d)", b->name, b->index);
}

// "'y' (buffer 2) at byte 16 of 64" for an address of a region or of threadgroup memory.
static place name_place(const worker *w, const shared_memory *m, const unsigned char *address) {
    place p;
    if (m->space == THREADGROUP_SPACE) {
        const variable *v = softmetal_variable_near(w, address);
        snprintf(p.text, sizeof p.text, "'%.80s' at byte %td of %zu", v->name,
                 address - (const unsigned char *)v->address, v->size);
        return p;
    }
    const region *r = softmetal_region_of(address);
    const unsigned char *origin = r->origin + (address - r->memory.start);
    const softmetal_binding *best = &w->dispatch->bindings[__builtin_ctzll(r->members)];
    for (uint64_t rest = r->members; rest; rest &= rest - 1) {
        const softmetal_binding *b = &w->dispatch->bindings[__builtin_ctzll(rest)];
        if (inside(origin, 1, b->start, b->length)) best = b;
    }
    char name[96];
    name_binding(best, name, sizeof name);
    snprintf(p.text, sizeof p.text, "%s at byte %td of %zu", name, origin - best->start, best->length);
    return p;
}

static _Noreturn void fail_at(const access *a, const char *what) {
    softmetal_size t = a->w->current->info.position;
    softmetal_fail(a->w, "thread (%u, %u, %u) %s %zu bytes %s", t.x, t.y, t.z, verb(a->kind), a->size, what);
}

// ---- races and uninitialised reads --------------------------------------------------------------

static _Noreturn void report_race(const access *a, const shared_memory *m, const unsigned char *byte, bool other_wrote,
                                  uint32_t other, bool other_group) {
    char who[64];
    if (other_group) snprintf(who, sizeof who, "another threadgroup");
    else if (other == MANY) snprintf(who, sizeof who, "several threads");
    else snprintf(who, sizeof who, "thread %u", other - 1);
    place p = name_place(a->w, m, byte);
    const char *remedy = other_group ? "and nothing orders the threadgroups of a dispatch"
                         : m->space == DEVICE_SPACE ? "without a barrier for device memory between them"
                                                    : "without a barrier for threadgroup memory between them";
    softmetal_fail(a->w, "data race on %s: %s by thread %u, %s by %s, %s", p.text,
                   updates(a->kind) ? "written" : "read", a->w->current->info.index, other_wrote ? "written" : "read",
                   who, remedy);
}

// Who accesses, and which accesses of others are ordered before this one.
typedef struct moment {
    uint32_t epoch, simd_epoch, group_epoch, dispatch_epoch;
    uint16_t thread, simdgroup;
} moment;

static bool simdgroup_ordered(const moment *now, uint32_t thread, uint32_t simd_epoch) {
    return thread != MANY && (thread - 1) / SOFTMETAL_SIMD_WIDTH == now->simdgroup && simd_epoch < now->simd_epoch;
}

static void check_against_write(const access *a, const shared_memory *m, const shadow_byte *b, const unsigned char *byte,
                                const moment *now) {
    if (b->write_epoch < now->dispatch_epoch || (b->atomic && is_atomic(a->kind))) return;
    if (b->write_epoch < now->group_epoch) {
        if (m->space == DEVICE_SPACE) report_race(a, m, byte, true, b->writer, true);
    } else if (b->write_epoch == now->epoch && b->writer != now->thread &&
               !simdgroup_ordered(now, b->writer, b->write_simd_epoch)) {
        report_race(a, m, byte, true, b->writer, false);
    }
}

static void check_against_reads(const access *a, const shared_memory *m, const shadow_byte *b, const unsigned char *byte,
                                const moment *now) {
    if (b->first_read_epoch < now->dispatch_epoch) return;
    if (b->first_read_epoch < now->group_epoch && m->space == DEVICE_SPACE)
        report_race(a, m, byte, false, b->reader, true);
    if (b->read_epoch != now->epoch || b->reader == now->thread) return;
    bool ordered = b->reader_simdgroup == now->simdgroup && b->read_simd_epoch < now->simd_epoch;
    if (!ordered) report_race(a, m, byte, false, b->reader, false);
}

static void record_write(shadow_byte *b, const access *a, const moment *now) {
    bool atomic = is_atomic(a->kind);
    bool shared = atomic && b->atomic && b->write_epoch == now->epoch && b->writer != now->thread;
    b->writer = shared ? MANY : now->thread;
    b->atomic = atomic;
    b->write_epoch = now->epoch;
    b->write_simd_epoch = now->simd_epoch;
}

static void record_read(shadow_byte *b, const moment *now) {
    if (b->first_read_epoch < now->dispatch_epoch) b->first_read_epoch = now->epoch;
    if (b->read_epoch != now->epoch) {
        b->reader = now->thread;
        b->reader_simdgroup = now->simdgroup;
    } else {
        if (b->reader != now->thread) b->reader = MANY;
        if (b->reader_simdgroup != now->simdgroup) b->reader_simdgroup = MANY;
    }
    b->read_epoch = now->epoch;
    b->read_simd_epoch = now->simd_epoch;
}

// `empty_before`: bytes written earlier than this epoch hold nothing; 0 if what is old may be read.
static void check_shared(const access *a, const shared_memory *m, uint32_t empty_before) {
    worker *w = a->w;
    moment now = {.epoch = w->epoch[m->space], .simd_epoch = w->current_simdgroup->epoch[m->space],
                  .group_epoch = w->group_epoch, .dispatch_epoch = w->dispatch_epoch,
                  .thread = (uint16_t)(w->current->info.index + 1),
                  .simdgroup = (uint16_t)(w->current->info.index / SOFTMETAL_SIMD_WIDTH)};
    for (size_t i = 0; i < a->size; i++) {
        const unsigned char *byte = a->address + i;
        shadow_byte *b = &m->shadow[byte - m->start];
        check_against_write(a, m, b, byte, &now);
        if (looks(a->kind) && b->write_epoch < empty_before) {
            place p = name_place(w, m, byte);
            char what[256];
            snprintf(what, sizeof what, "of %s, which nothing has written yet", p.text);
            fail_at(a, what);
        }
        if (updates(a->kind)) {
            check_against_reads(a, m, b, byte, &now);
            record_write(b, a, &now);
        } else if (a->kind == SOFTMETAL_READ) {
            record_read(b, &now);
        }
    }
}

static _Noreturn void report_bounds(const access *a) {
    ptrdiff_t offset = 0;
    const region *r = softmetal_region_near(a->address, &offset);
    if (!r) fail_at(a, "of device memory, and no buffer is bound");
    const softmetal_binding *best = &a->w->dispatch->bindings[__builtin_ctzll(r->members)];
    ptrdiff_t at = r->origin + offset - best->start;
    char name[96], what[256];
    name_binding(best, name, sizeof name);
    snprintf(what, sizeof what, "outside every buffer; the closest is %s, at byte %td of %zu", name, at, best->length);
    fail_at(a, what);
}

// ---- threadgroup memory -------------------------------------------------------------------------

static void check_threadgroup_memory(const access *a) {
    worker *w = a->w;
    const variable *v = softmetal_variable_near(w, a->address);
    if (!v) report_bounds(a);
    if (!inside(a->address, a->size, v->address, v->size)) {
        char what[200];
        snprintf(what, sizeof what, "outside '%.80s', at byte %td of %zu", v->name,
                 a->address - (const unsigned char *)v->address, v->size);
        fail_at(a, what);
    }
    shared_memory arena = {.start = w->arena, .length = ARENA_SIZE, .shadow = softmetal_arena_shadow(),
                           .space = THREADGROUP_SPACE};
    check_shared(a, &arena, w->group_epoch);
}

// ---- device memory ------------------------------------------------------------------------------

static _Noreturn void report_read_only(const access *a, const softmetal_binding *b, const unsigned char *origin) {
    char name[96], what[256];
    name_binding(b, name, sizeof name);
    snprintf(what, sizeof what, "of %s at byte %td of %zu, which the dispatch declares to be only read", name,
             origin - b->start, b->length);
    fail_at(a, what);
}

// Which bindings of the region hold the access; reports it if none does, or none that may be written.
static void check_declared(const access *a, const region *r, bool *may_read_old) {
    const unsigned char *origin = r->origin + (a->address - r->memory.start);
    const softmetal_binding *holder = NULL;
    bool may_write = false;
    *may_read_old = false;
    for (uint64_t rest = r->members; rest; rest &= rest - 1) {
        const softmetal_binding *b = &a->w->dispatch->bindings[__builtin_ctzll(rest)];
        if (!inside(origin, a->size, b->start, b->length)) continue;
        holder = b;
        may_write |= b->writes;
        *may_read_old |= b->reads;
    }
    if (!holder) report_bounds(a);
    if (updates(a->kind) && !may_write) report_read_only(a, holder, origin);
}

// What nobody has written is poison in the copy.
static void check_poison(const access *a, const region *r) {
    uintptr_t from = (uintptr_t)a->address / 4 * 4, to = (uintptr_t)a->address + a->size;
    uintptr_t start = (uintptr_t)r->memory.start, end = start + r->memory.length;
    for (uintptr_t at = from; at < to; at += 4) {
        uint32_t value;
        if (at < start || at + 4 > end) continue;
        memcpy(&value, (const void *)at, sizeof value);
        if (value != (uint32_t)SOFTMETAL_POISON) continue;
        place p = name_place(a->w, &r->memory, (const unsigned char *)(at < (uintptr_t)a->address ? (uintptr_t)a->address : at));
        char what[256];
        snprintf(what, sizeof what, "of %s, which nothing has written yet", p.text);
        fail_at(a, what);
    }
}

static void check_device_memory(const access *a) {
    worker *w = a->w;
    const region *r = w->last_region;
    if (!r || !inside(a->address, a->size, r->memory.start, r->memory.length)) {
        r = softmetal_region_of(a->address);
        const softmetal_dispatch *d = w->dispatch;
        size_t image = (size_t)((const char *)d->image_end - (const char *)d->image_start);
        if (!r && inside(a->address, a->size, d->image_start, image) && !updates(a->kind)) return;
        if (!r || !inside(a->address, a->size, r->memory.start, r->memory.length)) report_bounds(a);
        w->last_region = r;
    }
    if (r->plain && a->kind == SOFTMETAL_READ) return;
    bool may_read_old;
    check_declared(a, r, &may_read_old);
    if (r->fresh && looks(a->kind) && may_read_old) check_poison(a, r);
    if (r->memory.shadow) check_shared(a, &r->memory, may_read_old ? 0 : w->dispatch_epoch);
}

void softmetal_check_access(const void *address, size_t size, size_t alignment, softmetal_access kind,
                            const void *program_counter) {
    worker *w = softmetal_this_worker;
    const region *last = w->last_region;
    bool aligned = (uintptr_t)address % alignment == 0;
    // Most accesses read weights.
    if (kind == SOFTMETAL_READ && aligned && last && last->plain &&
        inside(address, size, last->memory.start, last->memory.length))
        return;
    // Private memory, and the scheduler's own data, which the kernel's entry code reads.
    if (inside(address, size, w->stacks, (size_t)STACK_SIZE * SOFTMETAL_MAX_THREADS)) return;
    if (inside(address, size, w, sizeof *w)) return;
    w->failure_pc = program_counter;
    access a = {.w = w, .address = address, .size = size, .kind = kind};
    if (!aligned) {
        char what[80];
        snprintf(what, sizeof what, "at an address that is not a multiple of %zu", alignment);
        fail_at(&a, what);
    }
    if (inside(address, 1, w->arena, ARENA_SIZE)) check_threadgroup_memory(&a);
    else check_device_memory(&a);
    w->failure_pc = NULL;
}

void softmetal_report_misaligned(const char *file, uint32_t line, const void *address, size_t alignment) {
    worker *w = softmetal_this_worker;
    place p = {.text = "a variable of its own"};
    const region *r = softmetal_region_of(address);
    if (inside(address, 1, w->arena, ARENA_SIZE) && softmetal_variable_near(w, address)) {
        const shared_memory arena = {.space = THREADGROUP_SPACE};
        p = name_place(w, &arena, address);
    } else if (r) {
        p = name_place(w, &r->memory, address);
    }
    softmetal_fail(w, "thread %u accesses %s through a pointer to a type that must be aligned to %zu (%s:%u)",
                   w->current->info.index, p.text, alignment, file, line);
}
