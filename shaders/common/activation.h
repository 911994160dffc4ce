// Gate activations of gated feed-forward networks. Source: arXiv 2002.05202; GELU by tanh: arXiv 1606.08415.
#ifndef ACTIVATION_H
#define ACTIVATION_H
#include <metal_stdlib>
#include "../../include/mf_kernels.gen.h"
using namespace metal;

// act(gate) * up. x * (1 + tanh(u)) / 2 = x / (1 + e^-2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3).
static inline float gated(float gate, float up, uint activation) {
  const float cubic = fma(0.044715f * gate * gate, gate, gate);
  const float exponent = activation == MF_ACTIVATION_SILU ? -gate : -1.59576912f * cubic;
  // At e^80 the quotient is 0 to float32 and nothing is infinite.
  return gate / (1.0f + precise::exp(min(exponent, 80.0f))) * up;
}
#endif
