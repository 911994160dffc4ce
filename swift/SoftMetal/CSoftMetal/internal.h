#pragma once
#include "include/softmetal.h"

enum {
    STACK_SIZE = 128 * 1024,             // address space; only touched pages become memory
    PAGE_SIZE = 4096,
    ARENA_SIZE = 2 * SOFTMETAL_MAX_THREADGROUP_MEMORY,  // room for the gaps between variables
    ARENA_GAP = 32,                      // unowned bytes between two variables: overruns land here
    MAX_VARIABLES = 64,
    MAX_SIMDGROUPS = SOFTMETAL_MAX_THREADS / SOFTMETAL_SIMD_WIDTH,
};

enum { DEVICE_SPACE, THREADGROUP_SPACE, SPACES };  // memories that barriers order

// A stack to run one GPU thread on. A fiber whose thread returns without ever waiting is used again for
// the next thread, so a kernel without barriers runs entirely on one stack.
typedef struct fiber {
    void *stack_pointer;                 // valid while the fiber is not running
    void *stack_top;
    struct fiber *next_free;
} fiber;

typedef struct gpu_thread {
    softmetal_thread info;
    fiber *fiber;                        // null before the thread starts and after it returns
    uint32_t line;                       // where it waits
    softmetal_combine combine;              // and for what, at a SIMD operation
} gpu_thread;

// Every lane is in exactly one of the four sets, or is the one that runs now.
typedef struct simdgroup {
    uint32_t first_thread;
    uint32_t runnable, at_exchange, at_barrier, returned;
    uint32_t epoch[SPACES];              // simdgroup barriers passed
    uint32_t exchange_line;              // of the first lane that waits to exchange
    uint32_t exchange_diverged;          // whether a later one waits at another
    uint32_t turn;                       // which of the two exchanges is being filled
    softmetal_exchange exchange[2];
} simdgroup;

// Last accesses of one byte that threads share. Epochs are numbers of one counter that only grows: they tell
// in which dispatch, threadgroup and interval between two barriers something happened.
typedef struct shadow_byte {
    uint32_t write_epoch, write_simd_epoch;
    uint32_t read_epoch, read_simd_epoch;
    uint32_t first_read_epoch;           // of this dispatch
    uint16_t writer, reader;             // thread index + 1
    uint16_t reader_simdgroup;
    bool atomic;                         // the write was an atomic one
} shadow_byte;

enum { MANY = 0xFFFF };                  // several threads, several SIMD-groups

// Memory that kernels of a checked run share: a threadgroup variable, or a region of device memory.
typedef struct shared_memory {
    unsigned char *start;                // where kernels see it
    size_t length;
    shadow_byte *shadow;                 // null: nobody writes to it
    uint32_t space;
} shared_memory;

// A binding, or several that overlap and of which one is written.
typedef struct region {
    shared_memory memory;
    unsigned char *origin;               // where the caller has it; equal to memory.start when in place
    uint64_t members;                    // bit per binding
    bool fresh;                          // some of it is poison, because nobody has written it
    bool plain;                          // one binding that is only read, and nothing else to check
} region;

typedef struct variable {
    void *address;
    size_t size;
    const char *name;
} variable;

// One OS thread and the threadgroup it runs.
typedef struct worker {
    softmetal_dispatch *dispatch;
    softmetal_group group;
    void *main_stack_pointer;
    uint32_t random;

    gpu_thread *current;
    simdgroup *current_simdgroup;
    uint32_t thread_count, simdgroup_count;
    uint32_t pending;                    // SIMD-groups that have not reached the barrier or the end
    uint32_t barrier_arrivals, barrier_line, barrier_flags;
    uint32_t epoch[SPACES];              // changes with each barrier for that memory
    uint32_t dispatch_epoch, group_epoch;  // the first of the dispatch and of the threadgroup

    unsigned char *arena;                // threadgroup memory
    size_t arena_used, arena_charged;    // bytes handed out, with and without the gaps
    void *buffers[SOFTMETAL_MAX_BUFFERS];
    void *threadgroup_arguments[SOFTMETAL_MAX_THREADGROUP_ARGUMENTS];
    variable variables[MAX_VARIABLES + SOFTMETAL_MAX_THREADGROUP_ARGUMENTS];
    uint32_t variable_count;             // highest used index + 1

    const region *last_region;
    const void *failure_pc;

    char *stacks;
    uint32_t fiber_count;
    fiber *free_fibers;
    fiber fibers[SOFTMETAL_MAX_THREADS];
    gpu_thread threads[SOFTMETAL_MAX_THREADS];
    simdgroup simdgroups[MAX_SIMDGROUPS];
} worker;

// Kernels come to it for every barrier and every checked access, so it is placed where it is found with one
// instruction, also in a library that is loaded at run time. (glibc keeps some room for that.)
extern _Thread_local worker *softmetal_this_worker
    __attribute__((tls_model("initial-exec"), visibility("hidden")));
worker *softmetal_current_worker(void);  // makes one for a new OS thread
void *softmetal_reserve(size_t size);       // zeroed pages that become memory when touched

// Records the error, abandons the threadgroup and goes back to softmetal_run.
_Noreturn void softmetal_fail(worker *, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Threadgroup memory (threadgroup_memory.c).
void softmetal_reset_threadgroup_memory(worker *);
void *softmetal_threadgroup_variable(uint32_t id, const char *name, size_t size, size_t alignment);
void *softmetal_allocate_threadgroup_memory(worker *, const char *name, size_t size, size_t alignment);
const variable *softmetal_variable_near(const worker *, const unsigned char *address);

// Checks of each access (checks.c) and the regions that they know (isolation.c). One checked dispatch runs
// at a time in the process.
uint32_t softmetal_next_epoch(void);
void softmetal_check_access(const void *address, size_t size, size_t alignment, softmetal_access,
                            const void *program_counter);
void softmetal_report_misaligned(const char *file, uint32_t line, const void *address, size_t alignment);
shadow_byte *softmetal_arena_shadow(void);
const region *softmetal_region_of(const void *address);
const region *softmetal_region_near(const void *address, ptrdiff_t *offset);

// Bytes that nobody has written (fresh.c).
void softmetal_poison(void *memory, size_t length);
bool softmetal_fresh_copy(unsigned char *copy, const unsigned char *origin, size_t length, bool is_written);
void softmetal_fresh_mark_written(const void *address);
void softmetal_fresh_forget(const void *start, size_t length);

// Saves the callee-saved registers and the stack pointer, continues on another stack (fiber.c).
void softmetal_switch(void **save_stack_pointer, void *load_stack_pointer);
// A stack pointer that makes softmetal_switch enter `entry` on a fresh stack.
void *softmetal_prepare_stack(void *top, void (*entry)(void));
