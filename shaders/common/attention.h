// What every attention kernel shares: which keys a query sees, and where their rows lie in the ring.
#ifndef ATTENTION_H
#define ATTENTION_H
#include <metal_stdlib>
#include "numbers.h"
using namespace metal;

enum : uint {
  KEY_BLOCK = 32,  // keys at a time
  DH_MAX = 512,
};

// Below every score, and still a number: differences of it are.
constant float LOWEST = -3.0e38f;

// Keys [first, end) that a query sees.
struct key_range {
  uint first, end;
};

template <typename P>
static inline key_range visible(uint t, constant P &p) {
  const uint end = p.position + t + 1;
  return key_range{p.window != 0 && end > p.window ? end - p.window : 0u, end};
}

// What weighted values are multiplied by beside their weights: 1, or NaN where the parameters make no sense.
template <typename P>
static inline float unit(constant P &p, uint Dh) {
  const uint rows = p.position + p.T - visible(0u, p).first;
  const bool is_valid = rows <= p.R && p.H % p.Hkv == 0 && Dh % 16 == 0 && Dh <= DH_MAX;
  return is_valid ? 1.0f : not_a_number();
}

// The slot of the `ahead`-th key after one at slot `base`. A query sees at most R keys, so that they wrap
// once; the last comparison is for parameters that break this.
static inline uint slot_after(uint base, uint ahead, uint R) {
  const uint slot = base + ahead;
  return min(slot < R ? slot : slot - R, R - 1);
}

static inline float4 load_four(device const float *at) { return float4(*(device const packed_float4 *)at); }
static inline float4 load_four(device const half *at) {
  return float4(half4(*(device const packed_half4 *)at));
}
#endif
