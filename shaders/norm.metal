#include <metal_stdlib>
#include "../include/mf_kernels.gen.h"
#include "common/group.h"
#include "common/numbers.h"
using namespace metal;

// Root-mean-square norms, a threadgroup for each row. A thread keeps to its own components in every pass, so
// that what it reads back is what it wrote. Source: arXiv 1910.07467, eq. 4.

static inline float inverse_rms(float squares, uint D, float eps) {
  return precise::rsqrt(squares / float(D) + eps);
}

// y[t, d] = x[t, d] * rsqrt(mean_d(x[t]^2) + eps) * weight[d]
// Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void rms_norm(device const float *x [[buffer(MF_RMS_NORM_X)]],
                     device const ushort *weight [[buffer(MF_RMS_NORM_WEIGHT)]],
                     device float *y [[buffer(MF_RMS_NORM_Y)]],
                     constant mf_rms_norm_params &p [[buffer(MF_RMS_NORM_PARAMS)]],
                     uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float partial[SIMDGROUPS_MAX];
  const place at = PLACE();
  const uint t = group.x;
  device const float *row = x + ulong(t) * p.D;
  device float *out = y + ulong(t) * p.D;
  float squares = 0.0f;
  for (uint d = at.index; d < p.D; d += at.threads) squares = fma(row[d], row[d], squares);
  const float factor = inverse_rms(group_sum(squares, partial, at), p.D, p.eps);
  for (uint d = at.index; d < p.D; d += at.threads) out[d] = row[d] * factor * from_bf16(weight[d]);
}

// x[t] += branch[t]; y[t] = N(x[t]; weight)
// Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void residual_norm(device float *x [[buffer(MF_RESIDUAL_NORM_X)]],
                          device const float *branch [[buffer(MF_RESIDUAL_NORM_BRANCH)]],
                          device const ushort *weight [[buffer(MF_RESIDUAL_NORM_WEIGHT)]],
                          device float *y [[buffer(MF_RESIDUAL_NORM_Y)]],
                          constant mf_residual_norm_params &p [[buffer(MF_RESIDUAL_NORM_PARAMS)]],
                          uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float partial[SIMDGROUPS_MAX];
  const place at = PLACE();
  const ulong row = ulong(group.x) * p.D;
  float squares = 0.0f;
  for (uint d = at.index; d < p.D; d += at.threads) {
    const float sum = x[row + d] + branch[row + d];
    x[row + d] = sum;
    squares = fma(sum, sum, squares);
  }
  const float factor = inverse_rms(group_sum(squares, partial, at), p.D, p.eps);
  for (uint d = at.index; d < p.D; d += at.threads) y[row + d] = x[row + d] * factor * from_bf16(weight[d]);
}

// x[t] += N(branch[t]; postNorm); shared[t] = N(x[t]; sharedNorm); routed[t] = N(x[t]; routedNorm);
// router[t, d] = x[t, d] * rsqrt(mean_d(x[t]^2) + eps) * routerScale[d] * routerFactor
// Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void sandwich_setup(device float *x [[buffer(MF_SANDWICH_SETUP_X)]],
                           device const float *branch [[buffer(MF_SANDWICH_SETUP_BRANCH)]],
                           device const ushort *post_norm [[buffer(MF_SANDWICH_SETUP_POST_NORM)]],
                           device const ushort *shared_norm [[buffer(MF_SANDWICH_SETUP_SHARED_NORM)]],
                           device const ushort *routed_norm [[buffer(MF_SANDWICH_SETUP_ROUTED_NORM)]],
                           device const ushort *router_scale [[buffer(MF_SANDWICH_SETUP_ROUTER_SCALE)]],
                           device float *shared [[buffer(MF_SANDWICH_SETUP_SHARED)]],
                           device float *routed [[buffer(MF_SANDWICH_SETUP_ROUTED)]],
                           device float *router [[buffer(MF_SANDWICH_SETUP_ROUTER)]],
                           constant mf_sandwich_setup_params &p [[buffer(MF_SANDWICH_SETUP_PARAMS)]],
                           uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float partial[SIMDGROUPS_MAX];
  const place at = PLACE();
  const uint t = group.x;
  const ulong row = ulong(t) * p.D;
  float squares = 0.0f;
  for (uint d = at.index; d < p.D; d += at.threads) squares = fma(branch[row + d], branch[row + d], squares);
  const float post = inverse_rms(group_sum(squares, partial, at), p.D, p.eps);
  squares = 0.0f;
  for (uint d = at.index; d < p.D; d += at.threads) {
    const float sum = fma(branch[row + d] * post, from_bf16(post_norm[d]), x[row + d]);
    x[row + d] = sum;
    squares = fma(sum, sum, squares);
  }
  const float factor = inverse_rms(group_sum(squares, partial, at), p.D, p.eps);
  for (uint d = at.index; d < p.D; d += at.threads) {
    const float normed = x[row + d] * factor;
    shared[row + d] = normed * from_bf16(shared_norm[d]);
    routed[row + d] = normed * from_bf16(routed_norm[d]);
    router[row + d] = normed * from_bf16(router_scale[d]) * p.router_factor;
  }
}

// x[t] = (x[t] + N(N(shared[t]; sharedNorm) + N(routed[t]; routedNorm); sumNorm)) * layerScalar[0]
// Tolerance 1e-6 and 2e-6 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void sandwich_tail(device float *x [[buffer(MF_SANDWICH_TAIL_X)]],
                          device const float *shared [[buffer(MF_SANDWICH_TAIL_SHARED)]],
                          device const float *routed [[buffer(MF_SANDWICH_TAIL_ROUTED)]],
                          device const ushort *shared_norm [[buffer(MF_SANDWICH_TAIL_SHARED_NORM)]],
                          device const ushort *routed_norm [[buffer(MF_SANDWICH_TAIL_ROUTED_NORM)]],
                          device const ushort *sum_norm [[buffer(MF_SANDWICH_TAIL_SUM_NORM)]],
                          device const ushort *layer_scalar [[buffer(MF_SANDWICH_TAIL_LAYER_SCALAR)]],
                          constant mf_sandwich_tail_params &p [[buffer(MF_SANDWICH_TAIL_PARAMS)]],
                          uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  threadgroup float partial[SIMDGROUPS_MAX];
  const place at = PLACE();
  const uint t = group.x;
  const ulong row = ulong(t) * p.D;
  float shared_squares = 0.0f, routed_squares = 0.0f;
  for (uint d = at.index; d < p.D; d += at.threads) {
    shared_squares = fma(shared[row + d], shared[row + d], shared_squares);
    routed_squares = fma(routed[row + d], routed[row + d], routed_squares);
  }
  const float shared_factor = inverse_rms(group_sum(shared_squares, partial, at), p.D, p.eps);
  const float routed_factor = inverse_rms(group_sum(routed_squares, partial, at), p.D, p.eps);
  float squares = 0.0f;
  for (uint d = at.index; d < p.D; d += at.threads) {
    const float sum = fma(shared[row + d] * shared_factor, from_bf16(shared_norm[d]),
                          routed[row + d] * routed_factor * from_bf16(routed_norm[d]));
    squares = fma(sum, sum, squares);
  }
  const float factor = inverse_rms(group_sum(squares, partial, at), p.D, p.eps);
  const float scalar = from_bf16(layer_scalar[0]);
  for (uint d = at.index; d < p.D; d += at.threads) {
    const float sum = fma(shared[row + d] * shared_factor, from_bf16(shared_norm[d]),
                          routed[row + d] * routed_factor * from_bf16(routed_norm[d]));
    x[row + d] = fma(sum * factor, from_bf16(sum_norm[d]), x[row + d]) * scalar;
  }
}
