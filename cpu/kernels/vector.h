// Vectors of float32 in the instruction set of the including file, under one set of names.
//
// A kernel written against these names is compiled once for each path by vector_*.c; knows no kernel.
// VF is the number of lanes. Arithmetic is written with the compiler's vector operators; what they
// cannot say (fused products, conversions, sums over lanes) is here. The order of every sum over lanes
// is fixed, so a path always gives the same bits.
#ifndef MF_VECTOR_H
#define MF_VECTOR_H
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "../mf_cpu.h"
#include "half.h"

#define MF_INLINE static inline __attribute__((always_inline))
#define MF_JOIN_(name, path) name##_##path
#define MF_JOIN(name, path) MF_JOIN_(name, path)
// The name of a kernel's implementation on this path.
#define MF_ON_PATH(name) MF_JOIN(mf_##name, MF_PATH)

#if defined(MF_PATH_AVX512)
#include <immintrin.h>
#define MF_PATH avx512
#define VF 16
typedef __m512 vf;
MF_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
MF_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
MF_INLINE vf vf_splat(float a) { return _mm512_set1_ps(a); }
MF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
// A NaN in b stays.
MF_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
MF_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
MF_INLINE vf vf_from_bf16(const uint16_t *p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
MF_INLINE vf vf_from_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
MF_INLINE void vf_to_f16(uint16_t *p, vf a) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(MF_PATH_AVX2)
#include <immintrin.h>
#define MF_PATH avx2
#define VF 8
typedef __m256 vf;
MF_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
MF_INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
MF_INLINE vf vf_splat(float a) { return _mm256_set1_ps(a); }
MF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
MF_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
MF_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
MF_INLINE vf vf_from_bf16(const uint16_t *p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
MF_INLINE vf vf_from_f16(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
MF_INLINE void vf_to_f16(uint16_t *p, vf a) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(MF_PATH_NEON)
#include <arm_neon.h>
#define MF_PATH neon
#define VF 4
typedef float32x4_t vf;
MF_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
MF_INLINE void vf_store(float *p, vf a) { vst1q_f32(p, a); }
MF_INLINE vf vf_splat(float a) { return vdupq_n_f32(a); }
MF_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
MF_INLINE vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
MF_INLINE vf vf_min(vf a, vf b) { return vminq_f32(a, b); }
MF_INLINE vf vf_from_bf16(const uint16_t *p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
MF_INLINE vf vf_from_f16(const uint16_t *p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
MF_INLINE void vf_to_f16(uint16_t *p, vf a) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

#else
#define MF_PATH portable
#define VF 4
typedef float vf __attribute__((vector_size(4 * VF)));
MF_INLINE vf vf_load(const float *p) {
  vf a;
  memcpy(&a, p, sizeof a);
  return a;
}
MF_INLINE void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
MF_INLINE vf vf_splat(float a) { return (vf){a, a, a, a}; }
MF_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
MF_INLINE vf vf_max(vf a, vf b) {
  for (int i = 0; i < VF; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
  return b;
}
MF_INLINE vf vf_min(vf a, vf b) {
  for (int i = 0; i < VF; i++) b[i] = a[i] < b[i] ? a[i] : b[i];
  return b;
}
MF_INLINE vf vf_from_bf16(const uint16_t *p) {
  return (vf){mf_bf16(p[0]), mf_bf16(p[1]), mf_bf16(p[2]), mf_bf16(p[3])};
}
MF_INLINE vf vf_from_f16(const uint16_t *p) {
  return (vf){mf_from_f16(p[0]), mf_from_f16(p[1]), mf_from_f16(p[2]), mf_from_f16(p[3])};
}
MF_INLINE void vf_to_f16(uint16_t *p, vf a) {
  for (int i = 0; i < VF; i++) p[i] = mf_to_f16(a[i]);
}
#endif

// Lanes as whole numbers; a comparison of vf gives all ones or zero in each.
typedef int32_t vi __attribute__((vector_size(4 * VF)));

// The lanes of `a` where `mask` is all ones, 0 elsewhere.
MF_INLINE vf vf_where(vi mask, vf a) { return (vf)(mask & (vi)a); }

// Sum over the lanes: halves added until one is left.
MF_INLINE float vf_sum(vf a) {
  float lane[VF];
  vf_store(lane, a);
  for (int half = VF / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) lane[i] += lane[i + half];
  }
  return lane[0];
}

typedef float vf_quad __attribute__((vector_size(16)));

// Lane n: the sum of a[n], as vf_sum adds.
MF_INLINE vf_quad vf_sum_four(const vf *a) {
  vf_quad sum[4];
  for (int n = 0; n < 4; n++) {
    vf_quad part[VF / 4];
    memcpy(part, a + n, sizeof *a);
    for (int half = VF / 8; half > 0; half /= 2) {
      for (int i = 0; i < half; i++) part[i] += part[i + half];
    }
    sum[n] = part[0];
  }
#if defined(MF_PATH_AVX2) || defined(MF_PATH_AVX512)
  // Lanes in turn of two vectors: 0 0 1 1 and 2 2 3 3.
  const __m128 first = _mm_unpacklo_ps(sum[0], sum[1]) + _mm_unpackhi_ps(sum[0], sum[1]);
  const __m128 second = _mm_unpacklo_ps(sum[2], sum[3]) + _mm_unpackhi_ps(sum[2], sum[3]);
  return _mm_movelh_ps(first, second) + _mm_movehl_ps(second, first);
#else
  vf_quad all;
  for (int n = 0; n < 4; n++) all[n] = (sum[n][0] + sum[n][2]) + (sum[n][1] + sum[n][3]);
  return all;
#endif
}

// Largest lane; a NaN may be lost.
MF_INLINE float vf_top(vf a) {
  float lane[VF];
  vf_store(lane, a);
  for (int half = VF / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  }
  return lane[0];
}

// The first min(n, VF) elements, 0 behind them: reads nothing beyond n.
MF_INLINE vf vf_load_some(const float *p, uint32_t n) {
  if (n >= VF) return vf_load(p);
  float lane[VF] = {0};
  memcpy(lane, p, n * sizeof *p);
  return vf_load(lane);
}
MF_INLINE void vf_store_some(float *p, vf a, uint32_t n) {
  if (n >= VF) {
    vf_store(p, a);
    return;
  }
  float lane[VF];
  vf_store(lane, a);
  memcpy(p, lane, n * sizeof *p);
}
MF_INLINE vf vf_from_bf16_some(const uint16_t *p, uint32_t n) {
  if (n >= VF) return vf_from_bf16(p);
  uint16_t lane[VF] = {0};
  memcpy(lane, p, n * sizeof *p);
  return vf_from_bf16(lane);
}
MF_INLINE void vf_to_f16_some(uint16_t *p, vf a, uint32_t n) {
  if (n >= VF) {
    vf_to_f16(p, a);
    return;
  }
  uint16_t lane[VF];
  vf_to_f16(lane, a);
  memcpy(p, lane, n * sizeof *p);
}

// e^x - 1 on |x| <= ln 2 / 2, to about a unit in the last place: x + x^2 * polynomial.
// Coefficients: Taylor's up to x^7, whose next term is below 2^-27 of x there.
MF_INLINE vf vf_expm1_small(vf x) {
  vf p = vf_splat(1.0f / 5040);
  p = vf_fma(p, x, vf_splat(1.0f / 720));
  p = vf_fma(p, x, vf_splat(1.0f / 120));
  p = vf_fma(p, x, vf_splat(1.0f / 24));
  p = vf_fma(p, x, vf_splat(1.0f / 6));
  p = vf_fma(p, x, vf_splat(0.5f));
  return vf_fma(x * x, p, x);
}

// x = n ln 2 + r with |r| <= ln 2 / 2 for |x| <= 88: gives r and 2^n. ln 2 is subtracted in two parts.
MF_INLINE vf vf_reduce(vf x, vf *power) {
  const vf shift = vf_splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const vf shifted = vf_fma(x, vf_splat(1.44269504f), shift);
  const vf n = shifted - shift;
  *power = (vf)(((vi)shifted - (vi)shift + 127) << 23);
  vf r = vf_fma(n, vf_splat(-0.693359375f), x);
  return vf_fma(n, vf_splat(2.12194440e-4f), r);
}

// e^x for x <= 88, relative error below 2e-7; 0 below -87.3, so that e^-inf = 0; NaN stays NaN.
MF_INLINE vf vf_exp(vf x) {
  const vi vanishes = x < vf_splat(-87.3f);
  vf power;
  const vf r = vf_reduce(vf_max(vf_splat(-87.3f), x), &power);
  const vf y = vf_fma(power, vf_expm1_small(r), power);
  return vf_where(~vanishes, y);
}

// tanh x by (e^2|x| - 1) / (e^2|x| + 1), relative error below 4e-7 down to the smallest x.
MF_INLINE vf vf_tanh(vf x) {
  const vi sign = (vi)x & INT32_MIN;
  const vf size = (vf)((vi)x & INT32_MAX);
  vf power;
  const vf r = vf_reduce(vf_min(vf_splat(40.0f), size + size), &power);
  const vf minus1 = vf_fma(power, vf_expm1_small(r), power - vf_splat(1.0f));
  const vf y = minus1 / (minus1 + vf_splat(2.0f));
  return (vf)((vi)y | sign);
}
#endif
