/** Cases of the embedding lookup. */
import { embedAffine } from "../../src/kernels/embed.ts";
import { embed } from "../reference/products.ts";
import { createRandom } from "../reference/random.ts";
import { affineMatrix } from "./affine.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

interface Shape {
  readonly T: number;
  readonly D: number;
  readonly V: number;
  readonly bits: number;
}

function embedCase({ T, D, V, bits }: Shape, multiplier: number): ConformanceCase {
  return defineCase(embedAffine, `${T} of ${V} rows of ${D}, ${bits} bits`, () => {
    const random = createRandom(T * 4096 + D + bits);
    const table = affineMatrix(random, { rows: V, columns: D, bits });
    // The last row too: nothing beyond the table may be read.
    const ids = Uint32Array.from({ length: T }, (_, t) => (t === 0 ? V - 1 : random.below(V)));
    const { codes, scales, biases } = table;
    return {
      params: { T, D, V, bits, multiplier: Math.fround(multiplier) },
      inputs: { ids, codes, scales, biases },
      expected: { y: embed(ids, table, Math.fround(multiplier)) },
      offsetBytes: { codes: 2, scales: 6, biases: 10 },
    };
  });
}

export const embedCases: readonly ConformanceCase[] = [
  embedCase({ T: 1, D: 2816, V: 5, bits: 4 }, Math.sqrt(2816)),
  embedCase({ T: 3, D: 2816, V: 7, bits: 8 }, Math.sqrt(2816)),
  embedCase({ T: 9, D: 704, V: 17, bits: 4 }, 1),
  embedCase({ T: 3, D: 64, V: 2, bits: 8 }, 8),
  embedCase({ T: 4, D: 320, V: 9, bits: 8 }, Math.sqrt(320)),
];
