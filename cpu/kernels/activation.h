// Gate activations in float32, as loops that a compiler turns into each path's vectors. Additions and
// products stay apart (no fused ones), so that every path gives the same bits; about 2e-7 relative error.
#ifndef MF_ACTIVATION_H
#define MF_ACTIVATION_H
#include <stdint.h>
#include <string.h>

#include "../mf_cpu.h"

// e^x by e^x = 2^n * e^r, |r| <= ln(2) / 2, Taylor's polynomial to the seventh power (3e-9).
static inline float mf_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the nearest integer
  float shifted = x * 1.44269504f + magic, n = shifted - magic;
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3F800000u;
  float power;
  memcpy(&power, &bits, sizeof power);
  return p * power;
}

static inline void mf_gate(float *restrict y, const float *restrict up, uint32_t count, uint32_t activation) {
  if (activation == MF_ACTIVATION_SILU) {
    for (uint32_t i = 0; i < count; i++) y[i] = y[i] / (1.0f + mf_exp(-y[i])) * up[i];
    return;
  }
  // x * (1 + tanh(u)) / 2 = x / (1 + e^-2u); u = sqrt(2 / pi) * (x + 0.044715 x^3)
  for (uint32_t i = 0; i < count; i++) {
    float x = y[i], u = x + 0.044715f * x * x * x;
    y[i] = x / (1.0f + mf_exp(-1.59576912f * u)) * up[i];
  }
}
#endif
