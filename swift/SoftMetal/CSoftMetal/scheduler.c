// Runs the threads of a threadgroup as fibers, with the barrier and SIMD-group semantics of a GPU.
//
// A thread runs until it returns or has to wait. Then the next thread of the *same* SIMD-group runs, so
// that all lanes meet; when every lane waits at a threadgroup barrier, the next SIMD-group runs; when all
// SIMD-groups wait there, the barrier opens. Nothing is ever waited for that cannot happen: when no thread
// can run and the waiting ones do not agree on where they wait, the kernel has diverged, and that is
// reported as an error instead of hanging.
#define _GNU_SOURCE
#include "internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// ---- workers ------------------------------------------------------------------------------------

_Thread_local worker *softmetal_this_worker;
static pthread_key_t worker_key;
static pthread_once_t worker_key_once = PTHREAD_ONCE_INIT;

static void destroy_worker(void *pointer) {
    worker *w = pointer;
    munmap(w->stacks, (size_t)STACK_SIZE * SOFTMETAL_MAX_THREADS);
    munmap(w->arena, ARENA_SIZE);
    free(w);
}

static void create_worker_key(void) {
    pthread_key_create(&worker_key, destroy_worker);
}

void *softmetal_reserve(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

worker *softmetal_current_worker(void) {
    if (softmetal_this_worker) return softmetal_this_worker;
    pthread_once(&worker_key_once, create_worker_key);
    worker *w = aligned_alloc(64, (sizeof(worker) + 63) / 64 * 64);
    if (!w) abort();
    memset(w, 0, sizeof *w);
    w->stacks = softmetal_reserve((size_t)STACK_SIZE * SOFTMETAL_MAX_THREADS);
    w->arena = softmetal_reserve(ARENA_SIZE);
    for (uint32_t i = 0; i < MAX_SIMDGROUPS; i++)
        w->simdgroups[i].first_thread = i * SOFTMETAL_SIMD_WIDTH;
    pthread_setspecific(worker_key, w);
    return softmetal_this_worker = w;
}

_Noreturn void softmetal_fail(worker *w, const char *format, ...) {
    softmetal_dispatch *d = w->dispatch;
    if (!__atomic_exchange_n(&d->failed, 1, __ATOMIC_ACQ_REL)) {
        int n = snprintf(d->message, sizeof d->message, "%.200s, threadgroup (%u, %u, %u): ", d->kernel_name,
                         w->group.position.x, w->group.position.y, w->group.position.z);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(d->message + n, sizeof d->message - (size_t)n, format, arguments);
        va_end(arguments);
        d->failure_pc = w->failure_pc;
    }
    void *abandoned;
    softmetal_switch(&abandoned, w->main_stack_pointer);
    __builtin_unreachable();
}

// ---- choosing the next thread -------------------------------------------------------------------

static uint32_t next_random(worker *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 17;
    w->random ^= w->random << 5;
    return w->random;
}

// One member of a non-empty set.
static uint32_t choose(worker *w, uint32_t set) {
    if (w->dispatch->order == SOFTMETAL_ORDER_FORWARD) return (uint32_t)__builtin_ctz(set);
    if (w->dispatch->order == SOFTMETAL_ORDER_REVERSE) return 31 - (uint32_t)__builtin_clz(set);
    uint32_t start = next_random(w) % 32, rotated = set >> start;
    return rotated ? start + (uint32_t)__builtin_ctz(rotated) : (uint32_t)__builtin_ctz(set);
}

static uint32_t lowest(uint32_t set) { return (uint32_t)__builtin_ctz(set); }

// No lane of the SIMD-group can run, and some wait to exchange values: let them.
static void finish_exchange(worker *w, simdgroup *s) {
    gpu_thread *threads = &w->threads[s->first_thread];
    uint32_t line = s->exchange_line, together = s->at_exchange;
    if (s->exchange_diverged) {
        line = UINT32_MAX;
        for (uint32_t rest = s->at_exchange; rest; rest &= rest - 1) {
            uint32_t lane = lowest(rest);
            if (threads[lane].line < line) line = threads[lane].line, together = 0;
            if (threads[lane].line == line) together |= 1u << lane;
        }
    }
    // Lanes that returned, or that already wait at the barrier, are simply inactive. Lanes waiting at two
    // different SIMD operations have diverged; the earlier one in the source goes first, which is what a
    // GPU does for structured code, but nothing a kernel should rely on.
    if (together != s->at_exchange && !w->dispatch->allow_divergent_simd) {
        uint32_t other = lowest(s->at_exchange & ~together);
        softmetal_fail(w, "the lanes of SIMD-group %u diverged: lanes %08x wait at the SIMD operation of line "
                    "%u, lane %u at that of line %u", s->first_thread / SOFTMETAL_SIMD_WIDTH, together, line,
                    other, threads[other].line);
    }
    softmetal_exchange *e = &s->exchange[s->turn];
    softmetal_combine combine = threads[lowest(together)].combine;
    e->active = together;
    if (combine) combine(e);
    // The next meeting uses the other exchange. It cannot end before all lanes have left this one.
    s->turn ^= 1;
    s->at_exchange &= ~together;
    for (uint32_t rest = s->at_exchange; rest; rest &= rest - 1)
        s->exchange[s->turn].lane[lowest(rest)] = e->lane[lowest(rest)];
    s->runnable = together;
    // Those that stay have not been compared with one another.
    s->exchange_diverged = s->at_exchange != 0;
}

// All threads wait at the barrier or have returned. Returns false when all have returned.
static bool open_barrier(worker *w) {
    if (w->barrier_arrivals == 0) return false;
    if (w->barrier_arrivals != w->thread_count)
        softmetal_fail(w, "only %u of %u threads reached the threadgroup_barrier of line %u; the others returned",
                    w->barrier_arrivals, w->thread_count, w->barrier_line);
    for (uint32_t i = 0; i < w->simdgroup_count; i++) {
        w->simdgroups[i].runnable = w->simdgroups[i].at_barrier;
        w->simdgroups[i].at_barrier = 0;
    }
    w->pending = UINT32_MAX >> (MAX_SIMDGROUPS - w->simdgroup_count);
    w->barrier_arrivals = 0;
    if (w->dispatch->checked) {
        if (w->barrier_flags & SOFTMETAL_MEM_DEVICE) w->epoch[DEVICE_SPACE] = softmetal_next_epoch();
        if (w->barrier_flags & SOFTMETAL_MEM_THREADGROUP) w->epoch[THREADGROUP_SPACE] = softmetal_next_epoch();
    }
    return true;
}

// Takes the next thread that can run out of its set; null when the threadgroup has finished.
static gpu_thread *next_thread(worker *w) {
    for (;;) {
        simdgroup *s = w->current_simdgroup;
        if (s->runnable) {
            uint32_t lane = choose(w, s->runnable);
            s->runnable &= ~(1u << lane);
            return w->current = &w->threads[s->first_thread + lane];
        }
        if (s->at_exchange) {
            finish_exchange(w, s);
            continue;
        }
        w->pending &= ~(1u << (s->first_thread / SOFTMETAL_SIMD_WIDTH));
        if (!w->pending && !open_barrier(w)) return NULL;
        w->current_simdgroup = &w->simdgroups[choose(w, w->pending)];
    }
}

// ---- fibers -------------------------------------------------------------------------------------

static void fiber_main(void);

static fiber *take_fiber(worker *w) {
    fiber *f = w->free_fibers;
    if (f) {
        w->free_fibers = f->next_free;
    } else {
        uint32_t index = w->fiber_count++;
        char *stack = w->stacks + (size_t)STACK_SIZE * index;
        mprotect(stack, PAGE_SIZE, PROT_NONE);
        // Different fibers start at different offsets in a page, or all would compete for the same few
        // cache sets.
        f = &w->fibers[index];
        f->stack_top = stack + STACK_SIZE - (index % 32) * 128;
    }
    f->stack_pointer = softmetal_prepare_stack(f->stack_top, fiber_main);
    return f;
}

static void release_fiber(worker *w, fiber *f) {
    f->next_free = w->free_fibers;
    w->free_fibers = f;
}

static void release_all_fibers(worker *w) {
    w->free_fibers = NULL;
    for (uint32_t i = w->fiber_count; i-- > 0;) release_fiber(w, &w->fibers[i]);
    for (uint32_t i = 0; i < SOFTMETAL_MAX_THREADS; i++) w->threads[i].fiber = NULL;
}

static void start_thread(worker *w, gpu_thread *t) {
    uint32_t index = (uint32_t)(t - w->threads);
    softmetal_size size = w->group.size;
    t->info.group = &w->group;
    t->info.index = index;
    // Divisions are most of what a short thread costs; few groups have more than one dimension.
    bool flat = size.y == 1 && size.z == 1;
    t->info.position.x = flat ? index : index % size.x;
    t->info.position.y = flat ? 0 : index / size.x % size.y;
    t->info.position.z = flat ? 0 : index / size.x / size.y;
}

// What every fiber executes: one GPU thread after another.
static void fiber_main(void) {
    worker *w = softmetal_this_worker;
    for (;;) {
        gpu_thread *t = w->current;
        fiber *mine = t->fiber;
        start_thread(w, t);
        w->dispatch->kernel(&t->info);
        t->fiber = NULL;
        w->current_simdgroup->returned |= 1u << (t->info.index % SOFTMETAL_SIMD_WIDTH);

        gpu_thread *next = next_thread(w);
        if (next && !next->fiber) {      // a thread that has not started: go on here
            next->fiber = mine;
            continue;
        }
        release_fiber(w, mine);          // nobody takes it before the switch below
        void *abandoned;
        softmetal_switch(&abandoned, next ? next->fiber->stack_pointer : w->main_stack_pointer);
    }
}

// Lets the other threads run until the calling one can go on.
static void wait_for_others(worker *w) {
    gpu_thread *self = w->current;
    gpu_thread *next = next_thread(w);
    if (next == self) return;
    if (!next->fiber) next->fiber = take_fiber(w);
    softmetal_switch(&self->fiber->stack_pointer, next->fiber->stack_pointer);
}

// ---- services for kernels -----------------------------------------------------------------------

static uint32_t lane_bit(const gpu_thread *t) {
    return 1u << (t->info.index % SOFTMETAL_SIMD_WIDTH);
}

static void threadgroup_barrier(uint32_t memory_flags, uint32_t line) {
    worker *w = softmetal_this_worker;
    if (w->barrier_arrivals == 0) {
        w->barrier_line = line;
        w->barrier_flags = memory_flags;
    } else if (w->barrier_line != line) {
        softmetal_fail(w, "divergent barriers: some threads wait at the threadgroup_barrier of line %u, "
                    "thread %u at that of line %u", w->barrier_line, w->current->info.index, line);
    }
    w->barrier_arrivals++;
    w->current->line = line;
    w->current_simdgroup->at_barrier |= lane_bit(w->current);
    wait_for_others(w);
}

static const softmetal_exchange *simd_exchange(const softmetal_lane_value *value, softmetal_combine combine,
                                            uint32_t line) {
    worker *w = softmetal_this_worker;
    simdgroup *s = w->current_simdgroup;
    s->exchange[s->turn].lane[w->current->info.index % SOFTMETAL_SIMD_WIDTH] = *value;
    if (!s->at_exchange) s->exchange_line = line;
    s->exchange_diverged = s->at_exchange ? s->exchange_diverged | (s->exchange_line != line) : 0;
    s->at_exchange |= lane_bit(w->current);
    w->current->combine = combine;
    w->current->line = line;
    wait_for_others(w);
    return &s->exchange[s->turn ^ 1];    // the one that has just been finished
}

static void simdgroup_barrier(uint32_t memory_flags, uint32_t line) {
    static const softmetal_lane_value nothing;
    worker *w = softmetal_this_worker;
    uint32_t *epoch = w->current_simdgroup->epoch, before[SPACES];
    memcpy(before, epoch, sizeof before);
    simd_exchange(&nothing, NULL, line);
    // The first lane to leave opens the next epoch for all.
    if (memory_flags & SOFTMETAL_MEM_DEVICE) epoch[DEVICE_SPACE] = before[DEVICE_SPACE] + 1;
    if (memory_flags & SOFTMETAL_MEM_THREADGROUP) epoch[THREADGROUP_SPACE] = before[THREADGROUP_SPACE] + 1;
}

static uint32_t lane_index(void) {
    return softmetal_this_worker->current->info.index % SOFTMETAL_SIMD_WIDTH;
}

static void fail(const char *message) {
    softmetal_fail(softmetal_this_worker, "%s", message);
}

static void fail_at(const char *file, uint32_t line, const char *message) {
    worker *w = softmetal_this_worker;
    softmetal_fail(w, "thread %u: %s (%s:%u)", w->current->info.index, message, file, line);
}

const softmetal_services *softmetal_scheduler_services(void) {
    static const softmetal_services services = {
        .threadgroup_barrier = threadgroup_barrier,
        .simdgroup_barrier = simdgroup_barrier,
        .simd_exchange = simd_exchange,
        .lane_index = lane_index,
        .threadgroup_variable = softmetal_threadgroup_variable,
        .check_access = softmetal_check_access,
        .fail = fail,
        .misaligned = softmetal_report_misaligned,
        .fail_at = fail_at,
    };
    return &services;
}

// ---- the grid -----------------------------------------------------------------------------------

static uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void set_up_group(worker *w, uint64_t linear) {
    softmetal_dispatch *d = w->dispatch;
    softmetal_group *g = &w->group;
    g->position.x = (uint32_t)(linear % d->grid_groups.x);
    g->position.y = (uint32_t)(linear / d->grid_groups.x % d->grid_groups.y);
    g->position.z = (uint32_t)(linear / d->grid_groups.x / d->grid_groups.y);
    g->size.x = min(d->group_size.x, d->grid_threads.x - g->position.x * d->group_size.x);
    g->size.y = min(d->group_size.y, d->grid_threads.y - g->position.y * d->group_size.y);
    g->size.z = min(d->group_size.z, d->grid_threads.z - g->position.z * d->group_size.z);

    w->thread_count = g->size.x * g->size.y * g->size.z;
    w->simdgroup_count = (w->thread_count + SOFTMETAL_SIMD_WIDTH - 1) / SOFTMETAL_SIMD_WIDTH;
    for (uint32_t i = 0; i < w->simdgroup_count; i++) {
        simdgroup *s = &w->simdgroups[i];
        uint32_t lanes = min(SOFTMETAL_SIMD_WIDTH, w->thread_count - s->first_thread);
        s->runnable = UINT32_MAX >> (32 - lanes);
        s->at_exchange = s->at_barrier = s->returned = 0;
        memset(s->epoch, 0, sizeof s->epoch);
    }
    w->pending = UINT32_MAX >> (MAX_SIMDGROUPS - w->simdgroup_count);
    w->current_simdgroup = &w->simdgroups[choose(w, w->pending)];
    w->barrier_arrivals = 0;
}

// The n-th threadgroup to run, as a position in the grid.
static uint64_t ordered(const softmetal_dispatch *d, uint64_t n, uint64_t count) {
    if (d->order == SOFTMETAL_ORDER_FORWARD) return n;
    if (d->order == SOFTMETAL_ORDER_REVERSE) return count - 1 - n;
    return (n * 2654435761u + d->seed) % count;  // the factor is prime, so this is a permutation
}

static void run_group(worker *w, uint64_t linear) {
    set_up_group(w, linear);
    softmetal_reset_threadgroup_memory(w);
    if (w->dispatch->checked) {
        w->group_epoch = softmetal_next_epoch();
        for (int i = 0; i < SPACES; i++) w->epoch[i] = w->group_epoch;
    }
    gpu_thread *first = next_thread(w);
    first->fiber = take_fiber(w);
    softmetal_switch(&w->main_stack_pointer, first->fiber->stack_pointer);
}

void softmetal_run(softmetal_dispatch *d) {
    worker *w = softmetal_current_worker();
    uint64_t count = (uint64_t)d->grid_groups.x * d->grid_groups.y * d->grid_groups.z;
    w->dispatch = d;
    w->random = d->seed * 2654435761u | 1;
    w->last_region = NULL;
    w->failure_pc = NULL;
    memcpy(w->buffers, d->buffers, sizeof w->buffers);
    w->group.buffers = w->buffers;
    w->group.threadgroup_memory = w->threadgroup_arguments;
    w->group.dispatch_size = d->group_size;
    w->group.grid_groups = d->grid_groups;
    w->group.grid_threads = d->grid_threads;
    if (d->checked) w->dispatch_epoch = softmetal_next_epoch();

    while (!__atomic_load_n(&d->failed, __ATOMIC_ACQUIRE)) {
        uint64_t n = __atomic_fetch_add(&d->next_group, 1, __ATOMIC_RELAXED);
        if (n >= count) break;
        run_group(w, ordered(d, n, count));
    }
    if (d->failed) release_all_fibers(w);
    w->dispatch = NULL;
}
