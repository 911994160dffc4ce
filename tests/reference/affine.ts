/** Affine dequantization, one value at a time: value = scale * code + bias, rounded to float32. */
export interface AffineMatrix {
  /** Packed little-endian words, `bits` per code. */
  readonly codes: Uint8Array;
  /** BF16, one per group. */
  readonly scales: Uint8Array;
  readonly biases: Uint8Array;
  readonly bits: number;
  readonly groupSize: number;
}

/** The bfloat16 at an index of little-endian bytes. */
export function bfloat16At(bytes: Uint8Array, index: number): number {
  const bits = bytes[2 * index]! | (bytes[2 * index + 1]! << 8);
  return new Float32Array(new Uint32Array([bits << 16]).buffer)[0]!;
}

/** All values of a matrix, row-major. Rows hold whole groups, so groups run through. */
export function dequantize(matrix: AffineMatrix): Float32Array {
  const { codes, scales, biases, bits, groupSize } = matrix;
  const count = (codes.length * 8) / bits;
  const values = new Float32Array(count);
  for (let index = 0; index < count; index += 1) {
    const bit = index * bits;
    const code = (codes[bit >> 3]! >> (bit & 7)) & ((1 << bits) - 1);
    const group = Math.floor(index / groupSize);
    const product = Math.fround(bfloat16At(scales, group) * code);
    values[index] = Math.fround(product + bfloat16At(biases, group));
  }
  return values;
}
