// The binary interface between the three parts of the software GPU:
//
//   * compiled kernels   (C++ made from Metal source, see ../Metal/MSL)
//   * the scheduler      (C, this target)
//   * the `Metal` module (Swift)
//
// A *threadgroup* runs on one OS thread. Its GPU threads are fibers of that OS thread, so they never
// run at the same time; different threadgroups run in parallel on different OS threads.
#ifndef SOFTMETAL_H
#define SOFTMETAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SOFTMETAL_SIMD_WIDTH = 32,
    SOFTMETAL_MAX_THREADS = 1024,           // per threadgroup
    SOFTMETAL_MAX_BUFFERS = 31,             // [[buffer(0)]] ... [[buffer(30)]]
    SOFTMETAL_MAX_THREADGROUP_MEMORY = 32768,
    SOFTMETAL_MAX_THREADGROUP_ARGUMENTS = 31,
};

typedef struct softmetal_size {
    uint32_t x, y, z;
} softmetal_size;

// What a kernel can learn about its threadgroup.
typedef struct softmetal_group {
    void *const *buffers;                // by [[buffer(n)]]
    void *const *threadgroup_memory;     // by [[threadgroup(n)]]
    softmetal_size position;                // of this threadgroup in the grid
    softmetal_size size;                    // threads in this threadgroup (smaller at a ragged edge)
    softmetal_size dispatch_size;           // threads in a full threadgroup
    softmetal_size grid_groups;             // threadgroups in the grid
    softmetal_size grid_threads;            // threads in the grid
} softmetal_group;

typedef struct softmetal_thread {
    const softmetal_group *group;
    softmetal_size position;                // in the threadgroup
    uint32_t index;                      // in the threadgroup
} softmetal_thread;

typedef void (*softmetal_kernel)(const softmetal_thread *);

// ---- services that the scheduler offers to running kernels --------------------------------------

// A meeting of the lanes of a SIMD-group: each brings a value and sees everyone else's.
typedef struct softmetal_lane_value {
    _Alignas(32) unsigned char bytes[32];
} softmetal_lane_value;

typedef struct softmetal_exchange {
    softmetal_lane_value lane[SOFTMETAL_SIMD_WIDTH];
    _Alignas(32) unsigned char result[256];  // filled by the combine function, if there is one
    uint32_t active;                         // bit per lane that takes part
} softmetal_exchange;

// Runs once per meeting, after the last lane has arrived.
typedef void (*softmetal_combine)(softmetal_exchange *);

enum {                                   // memory flags of a barrier; values as in metal::mem_flags
    SOFTMETAL_MEM_DEVICE = 1,
    SOFTMETAL_MEM_THREADGROUP = 2,
};

typedef enum softmetal_access {
    SOFTMETAL_READ,
    SOFTMETAL_WRITE,
    SOFTMETAL_ATOMIC_READ,
    SOFTMETAL_ATOMIC_WRITE,
    SOFTMETAL_ATOMIC_UPDATE,
} softmetal_access;

typedef struct softmetal_services {
    void (*threadgroup_barrier)(uint32_t memory_flags, uint32_t line);
    void (*simdgroup_barrier)(uint32_t memory_flags, uint32_t line);
    const softmetal_exchange *(*simd_exchange)(const softmetal_lane_value *, softmetal_combine, uint32_t line);
    uint32_t (*lane_index)(void);
    void *(*threadgroup_variable)(uint32_t id, const char *name, size_t size, size_t alignment);
    void (*check_access)(const void *address, size_t size, size_t alignment, softmetal_access,
                         const void *program_counter);
    void (*fail)(const char *message);   // ends the dispatch; does not return
    void (*misaligned)(const char *file, uint32_t line, const void *address, size_t alignment);
    void (*fail_at)(const char *file, uint32_t line, const char *message);
} softmetal_services;

const softmetal_services *softmetal_scheduler_services(void);

// ---- running a grid -----------------------------------------------------------------------------

typedef enum softmetal_order {              // in which order runnable threads and threadgroups are picked
    SOFTMETAL_ORDER_FORWARD,
    SOFTMETAL_ORDER_REVERSE,
    SOFTMETAL_ORDER_SHUFFLE,
} softmetal_order;

// What a dispatch may touch, for checked runs.
typedef struct softmetal_binding {
    unsigned char *start;
    size_t length;
    int32_t index;                       // [[buffer(index)]], or -1: made resident with useResource
    const char *name;                    // of the kernel's parameter
    bool reads, writes;                  // writes alone: the old content is nobody's business
    bool isolated;                       // lies in a copy of its own, with nothing around it
    bool fresh;                          // pages of it may never have been written
    // Set by softmetal_run_checked: which bytes, from start on, were written. Empty if none were.
    size_t written_from, written_to;
} softmetal_binding;

enum {
    SOFTMETAL_MAX_BINDINGS = 64,
    // What memory holds that nobody has written: NaN as float and as both of its halves.
    SOFTMETAL_POISON = (int)0xFFA5FFD3,
};

// Whether memory is anonymous and private, so that its untouched pages can be told; makes its pages small.
bool softmetal_is_anonymous(const void *start, size_t length);
// To be called before such memory is given back.
void softmetal_forget(const void *start, size_t length);

typedef struct softmetal_dispatch {
    softmetal_kernel kernel;
    const char *kernel_name;
    void *const *buffers;                               // SOFTMETAL_MAX_BUFFERS entries
    const size_t *threadgroup_lengths;                  // SOFTMETAL_MAX_THREADGROUP_ARGUMENTS entries
    softmetal_size grid_groups, grid_threads, group_size;
    softmetal_order order;
    uint32_t seed;                                      // for SOFTMETAL_ORDER_SHUFFLE
    bool allow_divergent_simd;
    bool checked;                                       // the kernel was compiled with memory checks
    softmetal_binding *bindings;                        // what it may touch, if so
    size_t binding_count;
    const void *image_start, *image_end;                // the kernel's own constants

    // Set by softmetal_run.
    uint64_t next_group;
    uint32_t failed;
    char message[512];
    const void *failure_pc;                             // where, when a memory check failed
} softmetal_dispatch;

// Runs threadgroups until none is left. Call it from as many OS threads at once as should work on the
// dispatch. The caller looks at `failed` when all have returned.
void softmetal_run(softmetal_dispatch *);

// The same for a checked dispatch, on the calling thread alone.
void softmetal_run_checked(softmetal_dispatch *);

// Around a dispatch, which survives that pages of mapped files are gone.
void softmetal_watch_pages(void);
void softmetal_unwatch_pages(void);
// Whether memory has pages that turned out to be gone; its owner lets them go.
bool softmetal_has_lost(const void *start, size_t length);
void softmetal_forget_lost(const void *start, size_t length);

#ifdef __cplusplus
}
#endif
#endif
