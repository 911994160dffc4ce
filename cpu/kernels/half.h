// IEEE half precision by bits, for paths without an instruction for it.
#ifndef MF_HALF_H
#define MF_HALF_H
#include <stdint.h>
#include <string.h>

static inline float mf_from_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  uint32_t bits;
  float value;
  if (rest >= 0x7c00) {  // infinite or NaN
    bits = 0x7f800000 | (rest & 0x3ff) << 13;
  } else if (rest >= 0x400) {
    bits = (rest << 13) + ((127 - 15) << 23);
  } else {  // subnormal: a whole number of 2^-24
    value = (float)rest * 0x1p-24f;
    memcpy(&bits, &value, sizeof bits);
  }
  bits |= sign;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest even; infinite from 65520 on.
static inline uint16_t mf_to_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (bits < 0x38800000) {  // below 2^-14: adding 1/2 leaves the value's units of 2^-24 in the last bits
    float size;
    memcpy(&size, &bits, sizeof size);
    size += 0.5f;
    memcpy(&bits, &size, sizeof bits);
    return (uint16_t)(sign | (bits - 0x3f000000));
  }
  // A carry out of the fraction moves into the exponent by itself.
  bits += 0xfff + (bits >> 13 & 1);
  return (uint16_t)(sign | ((bits >> 13) - ((127 - 15) << 10)));
}
#endif
