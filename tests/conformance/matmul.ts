/** Cases of the products of all tokens with one matrix, or with a gate and an up projection. */
import { gatedMatmulAffine, matmulAffine } from "../../src/kernels/matmul.ts";
import { ACTIVATION } from "../../src/kernels/spec.ts";
import { gated, matmul } from "../reference/products.ts";
import { createRandom } from "../reference/random.ts";
import { affineMatrix } from "./affine.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

interface Shape {
  readonly T: number;
  readonly I: number;
  readonly O: number;
  readonly bits: number;
}

/** What an emulated or instrumented run, and every token alone, would take too long for. */
const isHeavy = ({ T, I, O }: Shape): boolean => T * I * O > 2e6;

type Inputs = (shape: Shape) => Float32Array<ArrayBuffer>;

const normals: Inputs = ({ T, I }) => createRandom(T * I).normals(T * I);

/** One element far above all others, as hidden states have them. */
const outlier: Inputs = (shape) => {
  const x = normals(shape);
  for (let t = 0; t < shape.T; t++) x[t * shape.I + ((7 * t) % shape.I)] = 60;
  return x;
};

/** Whole groups of zeros, and groups of very different size. */
const uneven: Inputs = (shape) =>
  normals(shape).map((value, i) => value * [0, 1e-3, 1, 30][Math.floor(i / 64) % 4]!);

const nameOf = ({ T, I, O, bits }: Shape, activationBits: number): string =>
  `${T} x ${I} times ${O}, ${bits} bits, activations of ${activationBits}`;

/** Every precision; arrays begin at 2 modulo 4, where packed weights may lie. */
function matmulCases(shape: Shape, inputs: Inputs = normals, what = ""): ConformanceCase[] {
  return [32, 16, 8].map((activationBits) =>
    defineCase(
      matmulAffine,
      nameOf(shape, activationBits) + what,
      () => {
        const { T, I, O, bits } = shape;
        const random = createRandom(I * 31 + O + bits);
        const matrix = affineMatrix(random, { rows: O, columns: I, bits });
        const x = inputs(shape);
        const { codes, scales, biases } = matrix;
        return {
          params: { T, I, O, bits, activationBits },
          inputs: { x, codes, scales, biases },
          expected: { y: matmul(x, matrix, { T, O }) },
          offsetBytes: { codes: 2, scales: 6, biases: 10 },
        };
      },
      { isHeavy: isHeavy(shape) },
    ),
  );
}

function gatedCases(shape: Shape, activation: number): ConformanceCase[] {
  return [32, 16, 8].map((activationBits) =>
    defineCase(
      gatedMatmulAffine,
      `${nameOf(shape, activationBits)}, ${activation}`,
      () => {
        const { T, I, O: F, bits } = shape;
        const random = createRandom(I * 37 + F + bits);
        const gate = affineMatrix(random, { rows: F, columns: I, bits });
        const up = affineMatrix(random, { rows: F, columns: I, bits });
        const x = normals(shape);
        const [g, u] = [matmul(x, gate, { T, O: F }), matmul(x, up, { T, O: F })];
        return {
          params: { T, I, F, bits, activation, activationBits },
          inputs: {
            x,
            gateCodes: gate.codes,
            gateScales: gate.scales,
            gateBiases: gate.biases,
            upCodes: up.codes,
            upScales: up.scales,
            upBiases: up.biases,
          },
          expected: { y: gated(g, u, activation) },
          offsetBytes: { gateCodes: 2, gateScales: 2, upCodes: 14, upBiases: 6 },
        };
      },
      { isHeavy: isHeavy(shape) },
    ),
  );
}

/** Columns of real matrices: odd numbers of groups, whole and broken runs of sixteen and of eight. */
const columns = [64, 128, 192, 320, 704, 1024, 2112, 2816];

const wide = [
  [704, 4],
  [2112, 8],
  [2816, 4],
  [2816, 8],
  [4096, 4],
  [8192, 4],
] as const;

export const matmulAffineCases: readonly ConformanceCase[] = [
  ...columns.flatMap((I) => [4, 8].flatMap((bits) => matmulCases({ T: 1, I, O: 67, bits }))),
  ...[2, 3, 5, 8, 33].flatMap((T) => matmulCases({ T, I: 704, O: 50, bits: 4 })),
  ...matmulCases({ T: 17, I: 2112, O: 19, bits: 8 }),
  ...[15, 16].flatMap((T) => matmulCases({ T, I: 64, O: 65, bits: 8 })),
  ...matmulCases({ T: 67, I: 128, O: 150, bits: 4 }),
  ...matmulCases({ T: 7, I: 2816, O: 33, bits: 4 }),
  ...matmulCases({ T: 2, I: 4096, O: 37, bits: 4 }),
  ...matmulCases({ T: 1, I: 8192, O: 41, bits: 4 }),
  ...[1, 2, 3].flatMap((O) => matmulCases({ T: 30, I: 192, O, bits: 4 })),
  ...[4, 8].flatMap((bits) => matmulCases({ T: 3, I: 384, O: 100, bits }, outlier, ", outliers")),
  ...[4, 8].flatMap((bits) => matmulCases({ T: 3, I: 1280, O: 64, bits }, uneven, ", uneven")),
  ...matmulCases({ T: 1, I: 384, O: 1500, bits: 4 }),
  // Two tiles of tokens and two of rows, each with a ragged end, over the columns of real matrices.
  ...wide.flatMap(([I, bits]) => matmulCases({ T: 65, I, O: 130, bits })),
  ...gatedCases({ T: 1, I: 2816, O: 75, bits: 4 }, ACTIVATION.geluTanh),
  ...gatedCases({ T: 1, I: 384, O: 128, bits: 8 }, ACTIVATION.silu),
  ...gatedCases({ T: 5, I: 320, O: 99, bits: 4 }, ACTIVATION.geluTanh),
  ...gatedCases({ T: 33, I: 704, O: 70, bits: 4 }, ACTIVATION.geluTanh),
  ...gatedCases({ T: 9, I: 192, O: 133, bits: 8 }, ACTIVATION.silu),
  ...gatedCases({ T: 3, I: 2816, O: 19, bits: 8 }, ACTIVATION.geluTanh),
  ...[4, 8].flatMap((bits) => gatedCases({ T: 65, I: 2816, O: 65, bits }, ACTIVATION.geluTanh)),
];
