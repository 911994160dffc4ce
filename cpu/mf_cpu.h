// Inside the CPU device: what a kernel is given, and the few services it may use.
//
// A dispatch is run by every thread of the pool at once; threads share its work by taking units. Each
// output element is computed by one thread in one fixed order, so that results do not depend on how many
// threads there are. A kernel allocates nothing itself and never blocks except in mf_barrier.
#ifndef MF_CPU_H
#define MF_CPU_H
#include <stddef.h>
#include <stdint.h>

#include "mf.h"
#include "mf_kernels.gen.h"

typedef enum { MF_SIMD_PORTABLE, MF_SIMD_AVX2, MF_SIMD_AVX512, MF_SIMD_NEON } mf_simd;

typedef struct mf_dispatch mf_dispatch;

typedef struct {
  void *const *buffers;  // bound memory in catalogue order, the offset already added
  const void *params;    // the kernel's generated struct
  uint32_t thread;       // 0 .. threads - 1
  uint32_t threads;
  mf_simd simd;          // instruction set to use: forced or found at device creation
  mf_dispatch *dispatch;
} mf_task;

typedef void (*mf_kernel_fn)(const mf_task *task);

enum { MF_PHASE_COUNT = 4 };

// The next unit of `phase` (0 .. MF_PHASE_COUNT - 1) that no thread has taken yet; count or more when
// none is left. Every phase starts at unit 0 in every dispatch.
uint32_t mf_take(const mf_task *task, uint32_t phase, uint32_t count);
// Returns when every thread of the dispatch has come here; writes before it are seen after it.
void mf_barrier(const mf_task *task);
// This thread's scratch memory, 64-byte aligned, undefined contents; the same region at every call of a
// dispatch, so ask once for all. NULL (and the dispatch fails) when memory cannot be had.
void *mf_scratch(const mf_task *task, size_t bytes);
// One region for all threads of the dispatch, 64-byte aligned; every thread asks for the same size.
void *mf_shared_scratch(const mf_task *task, size_t bytes);
// Marks the command list as failed with a sentence, e.g. for a slot beyond the slab. The kernel returns
// normally (and still takes part in its barriers).
void mf_fail(const mf_task *task, const char *format, ...);

#define MF_DECLARE(name, buffers, bytes) void mf_k_##name(const mf_task *task);
MF_KERNEL_LIST(MF_DECLARE)
#undef MF_DECLARE

static inline float mf_bf16(uint16_t bits) {
  union {
    uint32_t u;
    float f;
  } v = {(uint32_t)bits << 16};
  return v.f;
}
#endif
