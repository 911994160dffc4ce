// Hands each vector kernel to its implementation for the task's instruction set.
#include "../mf_cpu.h"

#define EACH_VECTOR_KERNEL(X) \
  X(rms_norm)                 \
  X(sandwich_setup)           \
  X(sandwich_tail)            \
  X(qkv_epilogue_f32)         \
  X(qkv_epilogue_f16)         \
  X(attention_f32)            \
  X(attention_f16)            \
  X(routed_reduce)            \
  X(argmax)                   \
  X(softcap)                  \
  X(candidates)               \
  X(residual_norm)            \
  X(qk_epilogue_f32)          \
  X(qk_epilogue_f16)          \
  X(output_gate)              \
  X(causal_conv)              \
  X(delta_prepare)            \
  X(gated_delta)              \
  X(gated_norm)               \
  X(gated_shared)

#if defined(__x86_64__)
#define DEFINE(name)                                         \
  void mf_##name##_portable(const mf_task *task);            \
  void mf_##name##_avx2(const mf_task *task);                \
  void mf_##name##_avx512(const mf_task *task);              \
  void mf_k_##name(const mf_task *task) {                    \
    if (task->simd == MF_SIMD_AVX512) {                      \
      mf_##name##_avx512(task);                              \
    } else if (task->simd == MF_SIMD_AVX2) {                 \
      mf_##name##_avx2(task);                                \
    } else {                                                 \
      mf_##name##_portable(task);                            \
    }                                                        \
  }
#elif defined(__aarch64__)
#define DEFINE(name)                                         \
  void mf_##name##_portable(const mf_task *task);            \
  void mf_##name##_neon(const mf_task *task);                \
  void mf_k_##name(const mf_task *task) {                    \
    if (task->simd == MF_SIMD_NEON) {                        \
      mf_##name##_neon(task);                                \
    } else {                                                 \
      mf_##name##_portable(task);                            \
    }                                                        \
  }
#else
#define DEFINE(name)                              \
  void mf_##name##_portable(const mf_task *task); \
  void mf_k_##name(const mf_task *task) { mf_##name##_portable(task); }
#endif

EACH_VECTOR_KERNEL(DEFINE)
