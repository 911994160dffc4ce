/** Random affine-quantised matrices for cases of products, shaped like those of real checkpoints. */
import { bf16FromFloat, floatFromBf16 } from "../reference/half.ts";
import type { AffineRows } from "../reference/products.ts";
import type { Random } from "../reference/random.ts";

export interface AffineShape {
  readonly rows: number;
  readonly columns: number;
  readonly bits: number;
}

/**
 * Weights about zero, some tenths wide. As in MLX checkpoints a group hangs on the end of its range that
 * is larger in magnitude, so that about half of the scales are negative.
 */
export function affineMatrix(random: Random, { rows, columns, bits }: AffineShape): AffineRows {
  const groups = (rows * columns) / 64;
  const steps = 2 ** bits - 1;
  const scales = random.bf16(groups, 0.1 / steps, 0.4 / steps);
  const biases = new Uint16Array(groups);
  for (let g = 0; g < groups; g++) {
    if (random.below(2) === 1) scales[g] = scales[g]! | 0x8000;
    const middle = floatFromBf16(scales[g]!) * (steps / 2) * random.uniform(0.8, 1.2);
    biases[g] = bf16FromFloat(-middle);
  }
  return { codes: random.bytes((rows * columns * bits) / 8), scales, biases, bits, columns };
}
