#include <metal_stdlib>
#include "../include/mf_kernels.gen.h"
#include "common/group.h"
#include "common/logits.h"
#include "common/numbers.h"
using namespace metal;

// Passes over the logits of a vocabulary. A row belongs to one threadgroup: threadgroups cannot wait for each
// other, and a whole vocabulary is a megabyte.

// result[t] = (argmax of the finite logits[t], number of logits that are not finite); ties to the lower id, id 0
// if none is finite. Exact.
[[max_total_threads_per_threadgroup(1024)]]
kernel void argmax(device const float *logits [[buffer(MF_ARGMAX_LOGITS)]],
                   device uint *result [[buffer(MF_ARGMAX_RESULT)]],
                   constant mf_argmax_params &p [[buffer(MF_ARGMAX_PARAMS)]],
                   uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup uint partial[SIMDGROUPS_MAX];
  const place at = PLACE();
  const uint t = group.x;
  device const float *row = logits + ulong(t) * p.V;
  best_logit best = {0u, 0u, 0u};
  for (uint v = 4 * at.index; v < p.V; v += 4 * at.threads) {
    const four_logits four = load_logits(row, v, p.V);
    for (uint i = 0; i < 4; i++) {
      if (i < four.count) take(best, order_key(four.value[i]), v + i);
    }
  }
  best = group_best(best, partial, at);
  if (at.index != 0) return;
  result[2 * ulong(t)] = best.id;
  result[2 * ulong(t) + 1] = best.bad;
}

// y[i] = cap > 0 ? cap * tanh(x[i] / cap) : x[i]
// Source: arXiv 2408.00118, section 2. Beyond 16 the tangent is 1 to float32, infinities included; what is not
// a number stays so. Tolerance 1e-6 and 1e-6 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void softcap(device const float *x [[buffer(MF_SOFTCAP_X)]],
                    device float *y [[buffer(MF_SOFTCAP_Y)]],
                    constant mf_softcap_params &p [[buffer(MF_SOFTCAP_PARAMS)]],
                    uint3 position [[thread_position_in_grid]]) {
  const uint i = position.x;
  if (i >= p.N) return;
  const float value = x[i];
  const bool is_nan = (as_type<uint>(value) & 0x7fffffffu) > 0x7f800000u;
  const float capped = p.cap * precise::tanh(clamp(value / p.cap, -16.0f, 16.0f));
  y[i] = p.cap > 0.0f && !is_nan ? capped : value;
}

// logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty for id in ids
// Source: arXiv 1909.05858, section 4.1. One threadgroup; each thread walks the whole list and takes the ids that
// are its own by their remainder, so that an id listed twice is penalised twice, in order. Ids beyond the
// vocabulary are passed over. Tolerance 2e-7 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void penalize(device float *logits [[buffer(MF_PENALIZE_LOGITS)]],
                     device const uint *ids [[buffer(MF_PENALIZE_IDS)]],
                     constant mf_penalize_params &p [[buffer(MF_PENALIZE_PARAMS)]],
                     uint index [[thread_index_in_threadgroup]], uint3 threads [[threads_per_threadgroup]]) {
  for (uint i = 0; i < p.N; i++) {
    const uint id = ids[i];
    if (id % threads.x != index || id >= p.V) continue;
    const float logit = logits[id];
    logits[id] = logit > 0.0f ? logit / p.penalty : logit * p.penalty;
  }
}

// Candidates are gathered here before they are ordered; more than can be asked for, so that the threshold need
// not be exact.
enum : uint { GATHERED_MAX = 1024, CANDIDATE_BITS = 12 };

struct candidate_memory {
  threadgroup uint *partial;       // [SIMDGROUPS_MAX]
  threadgroup ulong *gathered;     // [GATHERED_MAX]
  threadgroup atomic_uint *filled;
};

static inline uint count_from(device const float *logits, uint V, uint key, threadgroup uint *partial, place at) {
  uint count = 0u;
  for (uint v = 4 * at.index; v < V; v += 4 * at.threads) {
    const four_logits four = load_logits(logits, v, V);
    for (uint i = 0; i < 4; i++) count += i < four.count && order_key(four.value[i]) >= key ? 1u : 0u;
  }
  return group_sum(count, partial, at);
}

// A key that `wanted` logits reach at least: so many threads have a largest one that does. The lower bits do not
// matter.
static inline uint first_threshold(uint own_key, uint wanted, threadgroup uint *partial, place at) {
  uint low = 0u;
  for (uint bit = 0x80000000u; bit >= 1u << CANDIDATE_BITS; bit >>= 1) {
    const uint count = group_sum(own_key >= (low | bit) ? 1u : 0u, partial, at);
    if (count >= wanted) low |= bit;
  }
  return max(low, 1u);
}

// The keys from which on at most GATHERED_MAX logits come, `wanted` at least, or else the very key of the last
// one wanted, of which there are many.
struct threshold {
  uint key, count;
};

static inline threshold refine(device const float *logits, uint V, uint low, uint top, uint wanted,
                               threadgroup uint *partial, place at) {
  threshold found = {low, count_from(logits, V, low, partial, at)};
  uint high = top + 1;
  while (found.count > GATHERED_MAX && high - found.key > 1) {
    const uint middle = found.key + (high - found.key) / 2;
    const uint count = count_from(logits, V, middle, partial, at);
    if (count >= wanted) {
      found = threshold{middle, count};
    } else {
      high = middle;
    }
  }
  return found;
}

// Gathers the logits from a key on, in any order, and writes those whose rank is below `wanted` in their places.
// Gives their number.
static inline uint write_ranked(device const float *logits, device uint *ids, device float *values, uint V, uint key,
                                uint wanted, candidate_memory memory, place at) {
  if (at.index == 0) atomic_store_explicit(memory.filled, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint v = 4 * at.index; v < V; v += 4 * at.threads) {
    const four_logits four = load_logits(logits, v, V);
    for (uint i = 0; i < 4; i++) {
      const uint own = order_key(four.value[i]);
      if (i >= four.count || own < key) continue;
      const uint next = atomic_fetch_add_explicit(memory.filled, 1u, memory_order_relaxed);
      memory.gathered[next] = ulong(own) << 32 | ulong(~(v + i));
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint count = atomic_load_explicit(memory.filled, memory_order_relaxed);
  for (uint i = at.index; i < count; i += at.threads) {
    const ulong own = memory.gathered[i];
    uint rank = 0u;
    for (uint j = 0; j < count; j++) rank += memory.gathered[j] > own ? 1u : 0u;
    if (rank >= wanted) continue;
    const uint id = ~uint(own & 0xfffffffful);
    ids[rank] = id;
    values[rank] = logits[id];
  }
  return count;
}

// Writes the lowest ids of those whose key is `key`, from place `taken` to `wanted`.
static inline void write_ties(device const float *logits, device uint *ids, device float *values, uint V, uint key,
                              uint2 places, threadgroup uint *partial, place at) {
  uint taken = places.x;
  for (uint first = 0; first < V && taken < places.y; first += at.threads) {
    const uint v = first + at.index;
    const uint is_tie = v < V && order_key(logits[min(v, V - 1)]) == key ? 1u : 0u;
    const uint before = simd_prefix_exclusive_sum(is_tie);
    const uint mine = simd_sum(is_tie);
    if (at.lane == 0) partial[at.simdgroup] = mine;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint others = at.lane < at.simdgroups ? partial[at.lane] : 0u;
    const uint earlier = simd_sum(at.lane < at.simdgroup ? others : 0u);
    const uint rank = taken + earlier + before;
    if (is_tie != 0u && rank < places.y) {
      ids[rank] = v;
      values[rank] = logits[v];
    }
    taken += simd_sum(others);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

static inline float mass_of(device const float *logits, uint V, float top, place at) {
  float mass = 0.0f;
  for (uint v = 4 * at.index; v < V; v += 4 * at.threads) {
    const four_logits four = load_logits(logits, v, V);
    for (uint i = 0; i < 4; i++) {
      if (i < four.count && order_key(four.value[i]) != 0u) mass += precise::exp(four.value[i] - top);
    }
  }
  return mass;
}

// ids, values = C largest of logits, equal ones by ascending id; mass[0] = max; mass[1] = sum_v exp(logits[v] - max);
// mass[2] = number of logits that are not finite. Places that no finite logit fills get id 2^32 - 1 and -inf.
// One threadgroup: the largest logit of each thread bounds the threshold from below, as a rule so well that one
// more pass gathers what is needed; a search by halves is the way out where many logits are alike.
// Ids and values are exact; the mass to 1e-5.
[[max_total_threads_per_threadgroup(1024)]]
kernel void candidates(device const float *logits [[buffer(MF_CANDIDATES_LOGITS)]],
                       device uint *ids [[buffer(MF_CANDIDATES_IDS)]],
                       device float *values [[buffer(MF_CANDIDATES_VALUES)]],
                       device float *mass [[buffer(MF_CANDIDATES_MASS)]],
                       constant mf_candidates_params &p [[buffer(MF_CANDIDATES_PARAMS)]], PLACE_ARGUMENTS) {
  threadgroup uint partial[SIMDGROUPS_MAX];
  threadgroup float partial_mass[SIMDGROUPS_MAX];
  threadgroup ulong gathered[GATHERED_MAX];
  threadgroup atomic_uint filled;
  const place at = PLACE();
  const candidate_memory memory = {partial, gathered, &filled};
  best_logit own = {0u, 0u, 0u};
  for (uint v = 4 * at.index; v < p.V; v += 4 * at.threads) {
    const four_logits four = load_logits(logits, v, p.V);
    for (uint i = 0; i < 4; i++) {
      if (i < four.count) take(own, order_key(four.value[i]), v + i);
    }
  }
  const best_logit best = group_best(own, partial, at);
  const float top = best.key == 0u ? negative_infinity() : from_order_key(best.key);
  const float sum = group_sum(mass_of(logits, p.V, top, at), partial_mass, at);
  const uint wanted = min(min(p.C, uint(MF_CANDIDATES_MAX)), p.V - best.bad);
  if (wanted > 0u) {
    const uint low = first_threshold(own.key, wanted, partial, at);
    const threshold found = refine(logits, p.V, low, best.key, wanted, partial, at);
    const bool has_ties = found.count > GATHERED_MAX;
    const uint least = has_ties ? found.key + 1u : found.key;
    const uint ranked = write_ranked(logits, ids, values, p.V, least, wanted, memory, at);
    if (has_ties) write_ties(logits, ids, values, p.V, found.key, uint2(ranked, wanted), partial, at);
  }
  for (uint i = wanted + at.index; i < p.C; i += at.threads) {
    ids[i] = 0xffffffffu;
    values[i] = negative_infinity();
  }
  if (at.index != 0) return;
  mass[0] = top;
  mass[1] = sum;
  mass[2] = float(best.bad);
}

// Source: the finaliser of SplittableRandom, Steele et al., OOPSLA 2014.
static inline uint top24_of(ulong key, uint id) {
  ulong z = (key ^ ulong(id)) + 0x9e3779b97f4a7c15ul;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ul;
  z = (z ^ z >> 27) * 0x94d049bb133111ebul;
  return uint((z ^ z >> 31) >> 40);
}

// -ln(-ln u), u = (top24 + 0.5) / 2^24. Above a half, where the winners are, u itself is not a float32 but
// w = 1 - u is, and -ln(1 - w) = 2 artanh(w / (2 - w)).
static inline float noise_of(uint top24) {
  if (top24 < 1u << 23) {
    return -precise::log(-precise::log((float(top24) + 0.5f) * 5.96046448e-8f));
  }
  const float w = (float((1u << 24) - 1u - top24) + 0.5f) * 5.96046448e-8f;
  const float s = w / (2.0f - w), q = s * s;
  float sum = fma(q, 1.0f / 15, 1.0f / 13);
  sum = fma(q, sum, 1.0f / 11);
  sum = fma(q, sum, 1.0f / 9);
  sum = fma(q, sum, 1.0f / 7);
  sum = fma(q, sum, 1.0f / 5);
  sum = fma(q, sum, 1.0f / 3);
  sum = fma(q * s, sum, s);
  return -precise::log(2.0f * sum);
}

// At least the noise: -ln u >= 1 - u, and 1 - u >= 2^-k.
static inline float noise_bound(uint top24) {
  const uint rest = (1u << 24) - 1u - top24;
  return float(rest == 0u ? 25u : clz(rest) - 7u) * 0.693147182f + 1e-4f;
}

// result = (argmax_v logits[v] / temperature + g(v), number of logits that are not finite): one draw from the
// whole distribution, whose normaliser is the same for every id and is left out.
// Source: arXiv 1611.01144, eq. 1. The hash is exact; noise is float32, about 1e-6, so that ids nearer than that
// may change places. One threadgroup.
[[max_total_threads_per_threadgroup(1024)]]
kernel void gumbel(device const float *logits [[buffer(MF_GUMBEL_LOGITS)]],
                   device uint *result [[buffer(MF_GUMBEL_RESULT)]],
                   constant mf_gumbel_params &p [[buffer(MF_GUMBEL_PARAMS)]], PLACE_ARGUMENTS) {
  threadgroup uint partial[SIMDGROUPS_MAX];
  const place at = PLACE();
  const ulong key = ulong(p.key_high) << 32 | ulong(p.key_low);
  best_logit best = {0u, 0u, 0u};
  float least = 0.0f;  // what the best id has; it means nothing before there is one
  for (uint v = 4 * at.index; v < p.V; v += 4 * at.threads) {
    const four_logits four = load_logits(logits, v, p.V);
    for (uint i = 0; i < 4; i++) {
      if (i >= four.count) continue;
      if (order_key(four.value[i]) == 0u) {
        best.bad++;
        continue;
      }
      const float scaled = four.value[i] / p.temperature;
      const uint top24 = top24_of(key, v + i);
      // Most ids cannot win whatever their noise, and the logarithms would be most of the work.
      if (best.key != 0u && scaled + noise_bound(top24) < least) continue;
      const float value = scaled + noise_of(top24);
      const uint value_key = max(order_key(value), 1u);
      if (value_key <= best.key) continue;
      best.key = value_key;
      best.id = v + i;
      least = value;
    }
  }
  best = group_best(best, partial, at);
  if (at.index != 0) return;
  result[0] = best.id;
  result[1] = best.bad;
}
