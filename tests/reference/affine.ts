import { floatFromBf16 } from "./half.ts";

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

/** Little-endian bfloat16 bytes as floats. */
export function bfloat16s(bytes: Uint8Array): Float32Array {
  return Float32Array.from({ length: bytes.length / 2 }, (_, index) =>
    floatFromBf16(bytes[2 * index]! | (bytes[2 * index + 1]! << 8)),
  );
}

/** All values of a matrix, row-major. Rows hold whole groups, so groups run through. */
export function dequantize(matrix: AffineMatrix): Float32Array {
  const { codes, bits, groupSize } = matrix;
  const scales = bfloat16s(matrix.scales);
  const biases = bfloat16s(matrix.biases);
  const values = new Float32Array((codes.length * 8) / bits);
  for (let index = 0; index < values.length; index += 1) {
    const bit = index * bits;
    const code = (codes[bit >> 3]! >> (bit & 7)) & ((1 << bits) - 1);
    const group = Math.floor(index / groupSize);
    values[index] = Math.fround(scales[group]! * code) + biases[group]!;
  }
  return values;
}
