/** Conversions of bfloat16 and IEEE half precision by bits. */

const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);

/** bfloat16 bits of a value, rounded to nearest even. */
export function bf16FromFloat(value: number): number {
  float[0] = value;
  const bits = word[0]!;
  if (Number.isNaN(value)) return 0x7fc0;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

export function floatFromBf16(bits: number): number {
  word[0] = bits << 16;
  return float[0]!;
}

/** IEEE half-precision bits of a float32 value, rounded to nearest even; infinite from 65520 on. */
export function f16FromFloat(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  float[0] = size;
  const exponent = Math.max(-14, (word[0]! >>> 23) - 127);
  const scaled = size / 2 ** (exponent - 10);
  let units = Math.floor(scaled);
  const rest = scaled - units;
  if (rest > 0.5 || (rest === 0.5 && units % 2 === 1)) units++;
  // A carry out of the fraction moves into the exponent by itself; below 1024 units it is subnormal.
  return sign | (units < 1024 ? units : ((exponent + 14) << 10) + units);
}

export function floatFromF16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}
