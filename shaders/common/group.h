// Where a thread stands, and what the threads of a group find out together. Reductions have a fixed order.
#ifndef GROUP_H
#define GROUP_H
#include <metal_stdlib>
using namespace metal;

struct place {
  uint index;       // in the threadgroup
  uint threads;     // of the threadgroup
  uint lane;        // in the SIMD-group
  uint simdgroup;   // in the threadgroup
  uint simdgroups;  // of the threadgroup
};

// Arguments of a kernel that make up its place, and the place.
#define PLACE_ARGUMENTS                                  \
  uint place_index [[thread_index_in_threadgroup]],      \
  uint place_lane [[thread_index_in_simdgroup]],         \
  uint place_simdgroup [[simdgroup_index_in_threadgroup]], \
  uint place_simdgroups [[simdgroups_per_threadgroup]],  \
  uint3 place_threads [[threads_per_threadgroup]]
#define PLACE() \
  place { place_index, place_threads.x, place_lane, place_simdgroup, place_simdgroups }

enum : uint { SIMDGROUPS_MAX = 32 };

// The sum over the threadgroup, in every thread. `partial` holds SIMDGROUPS_MAX values.
template <typename T>
static inline T group_sum(T value, threadgroup T *partial, place at) {
  value = simd_sum(value);
  if (at.lane == 0) partial[at.simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const T sum = simd_sum(at.lane < at.simdgroups ? partial[at.lane] : T(0));
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return sum;
}

static inline uint group_max(uint value, threadgroup uint *partial, place at) {
  value = simd_max(value);
  if (at.lane == 0) partial[at.simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint most = simd_max(at.lane < at.simdgroups ? partial[at.lane] : 0u);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return most;
}

static inline uint group_min(uint value, threadgroup uint *partial, place at) {
  return ~group_max(~value, partial, at);
}
#endif
