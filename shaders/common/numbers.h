// Numbers by their bits: bfloat16, what is finite, and an order of floats in whole numbers. Nothing here
// hangs on how a compiler treats infinities.
#ifndef NUMBERS_H
#define NUMBERS_H
#include <metal_stdlib>
using namespace metal;

static inline float from_bf16(ushort bits) { return as_type<float>(uint(bits) << 16); }

// What a kernel writes where its input makes no sense: it reaches the logits, where it is counted.
static inline float not_a_number() { return as_type<float>(0x7fc00000u); }

static inline float negative_infinity() { return as_type<float>(0xff800000u); }

// Ascends with the value of a finite float, equal for both zeros, at least 1; 0 if it is not finite.
static inline uint order_key(float x) {
  uint bits = as_type<uint>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return 0u;
  if ((bits << 1) == 0u) bits = 0u;
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

// The float that a key other than 0 stands for.
static inline float from_order_key(uint key) {
  return as_type<float>((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key);
}
#endif
