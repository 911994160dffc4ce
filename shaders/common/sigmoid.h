// 1 / (1 + e^-x). At e^80 the quotient is 0 to float32 and nothing is infinite.
#ifndef SIGMOID_H
#define SIGMOID_H
#include <metal_stdlib>
using namespace metal;

static inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(min(-x, 80.0f))); }
#endif
