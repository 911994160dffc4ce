/** Cases of the routed experts' products, over lists as the cache cuts them. */
import { routedDown, routedGate } from "../../src/kernels/moe.ts";
import { ACTIVATION } from "../../src/kernels/spec.ts";
import { type AffineRows, gated, matmul } from "../reference/products.ts";
import { createRandom, type Random } from "../reference/random.ts";
import { affineMatrix, type AffineShape } from "./affine.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

interface Routing {
  readonly T: number;
  readonly K: number;
  /** Experts, one in each slot, in reverse order. */
  readonly E: number;
}

interface RoutedShape extends Routing {
  readonly D: number;
  readonly F: number;
  readonly bits: number;
  readonly activation: number;
}

/** Who takes which pair, and the lists that say so. */
function route(random: Random, { T, K, E }: Routing) {
  const expertOf = Array.from({ length: T }, () => random.distinct(E, K)).flat();
  const pairs: number[] = [];
  const groups: number[] = [];
  for (let expert = 0; expert < E; expert++) {
    const own = expertOf.flatMap((other, pair) => (other === expert ? [pair] : []));
    if (own.length > 0) groups.push(E - 1 - expert, pairs.length, own.length, 0);
    pairs.push(...own);
  }
  return { expertOf, pairs: Uint32Array.from(pairs), groups: Uint32Array.from(groups) };
}

/** Experts in a slab, the arrays of each at the same even, otherwise careless offsets. */
function slabOf(random: Random, E: number, shapes: readonly AffineShape[]) {
  const experts = Array.from({ length: E }, () =>
    shapes.map((shape) => affineMatrix(random, shape)),
  );
  const arraysOf = (matrices: readonly AffineRows[]) =>
    matrices.flatMap(({ codes, scales, biases }) => [
      codes,
      new Uint8Array(scales.buffer),
      new Uint8Array(biases.buffer),
    ]);
  let slotBytes = 2;
  const offsets = arraysOf(experts[0]!).map(({ length }) => {
    const offset = slotBytes;
    slotBytes += length;
    return offset;
  });
  const slab = random.bytes(E * slotBytes);
  for (const [expert, matrices] of experts.entries()) {
    for (const [i, bytes] of arraysOf(matrices).entries()) {
      slab.set(bytes, (E - 1 - expert) * slotBytes + offsets[i]!);
    }
  }
  return { experts, slab, slotBytes, offsets };
}

const nameOf = ({ T, K, E, D, F, bits }: RoutedShape, activationBits: number): string =>
  `${T} tokens, ${K} of ${E} experts of ${F} x ${D}, ${bits} bits, activations of ${activationBits}`;

/** Row `row` of a matrix of `width` columns, as a product of one token. */
const times = (
  x: Float32Array,
  [row, width]: readonly [number, number],
  w: AffineRows,
  O: number,
) => matmul(x.subarray(row * width, (row + 1) * width), w, { T: 1, O });

/** What an emulated or instrumented run would take too long for. */
const isHeavy = ({ T, K, D, F }: RoutedShape): boolean => T * K * D * F > 2e6;

function gateCase(shape: RoutedShape, activationBits: number): ConformanceCase {
  const build = () => {
    const { T, K, E, D, F, bits, activation } = shape;
    const random = createRandom(T * 64 + K + D);
    const { expertOf, pairs, groups } = route(random, shape);
    const projection = { rows: F, columns: D, bits };
    const { experts, slab, slotBytes, offsets } = slabOf(random, E, [projection, projection]);
    const x = random.normals(T * D);
    const hidden = expertOf.flatMap((expert, pair) => {
      const [gate, up] = experts[expert]!.map((matrix) =>
        times(x, [Math.floor(pair / K), D], matrix, F),
      );
      return Array.from(gated(gate!, up!, activation));
    });
    const [gateCodes, gateScales, gateBiases, upCodes, upScales, upBiases] = offsets as [
      number,
      number,
      number,
      number,
      number,
      number,
    ];
    const places = { gateCodes, gateScales, gateBiases, upCodes, upScales, upBiases };
    const counts = { S: E, slotBytes, T, K, D, F, A: groups.length / 4, P: pairs.length };
    return {
      params: { ...counts, ...places, bits, activation, activationBits },
      inputs: { slab, x, groups, pairs },
      expected: { hidden },
    };
  };
  return defineCase(routedGate, nameOf(shape, activationBits), build, { isHeavy: isHeavy(shape) });
}

function downCase(shape: RoutedShape, activationBits: number): ConformanceCase {
  const build = () => {
    const { T, K, E, D, F, bits } = shape;
    const random = createRandom(T * 96 + K + D);
    const { expertOf, pairs, groups } = route(random, shape);
    const { experts, slab, slotBytes, offsets } = slabOf(random, E, [
      { rows: D, columns: F, bits },
    ]);
    const hidden = random.normals(T * K * F);
    const y = expertOf.flatMap((expert, pair) =>
      Array.from(times(hidden, [pair, F], experts[expert]![0]!, D)),
    );
    const [codes, scales, biases] = offsets as [number, number, number];
    const counts = { S: E, slotBytes, T, K, D, F, A: groups.length / 4, P: pairs.length };
    return {
      params: { ...counts, codes, scales, biases, bits, activationBits },
      inputs: { slab, hidden, groups, pairs },
      expected: { y },
    };
  };
  return defineCase(routedDown, nameOf(shape, activationBits), build, { isHeavy: isHeavy(shape) });
}

const { geluTanh, silu } = ACTIVATION;
/** For both products: D and F are columns of one and rows of the other. */
const shapes: readonly RoutedShape[] = [
  { T: 1, K: 8, E: 9, D: 384, F: 128, bits: 4, activation: geluTanh },
  { T: 1, K: 1, E: 1, D: 64, F: 64, bits: 8, activation: silu },
  { T: 5, K: 2, E: 4, D: 320, F: 64, bits: 8, activation: geluTanh },
  { T: 33, K: 4, E: 7, D: 192, F: 128, bits: 4, activation: silu },
  { T: 140, K: 2, E: 2, D: 64, F: 64, bits: 4, activation: geluTanh },
  { T: 1, K: 2, E: 3, D: 2816, F: 192, bits: 4, activation: geluTanh },
  { T: 2, K: 2, E: 2, D: 128, F: 704, bits: 4, activation: geluTanh },
  { T: 3, K: 8, E: 128, D: 64, F: 64, bits: 4, activation: geluTanh },
  { T: 33, K: 8, E: 128, D: 64, F: 64, bits: 4, activation: geluTanh },
];

/**
 * Experts of the 26B model: 8 of 128 of them, and columns of 2816 and 704 with a ragged end of rows; for
 * many tokens an expert with more than two tiles of pairs.
 */
const gateShapes: readonly RoutedShape[] = [
  { T: 1, K: 8, E: 9, D: 2816, F: 19, bits: 4, activation: geluTanh },
  { T: 67, K: 1, E: 1, D: 2816, F: 67, bits: 4, activation: geluTanh },
];
const downShapes: readonly RoutedShape[] = [
  { T: 2, K: 8, E: 9, D: 19, F: 704, bits: 4, activation: geluTanh },
  { T: 67, K: 1, E: 1, D: 131, F: 704, bits: 4, activation: geluTanh },
];

const inAll = (makeCase: typeof gateCase, of: readonly RoutedShape[]): readonly ConformanceCase[] =>
  of.flatMap((shape) => [32, 16, 8].map((activationBits) => makeCase(shape, activationBits)));

export const moeCases: readonly ConformanceCase[] = [
  ...inAll(gateCase, [...shapes, ...gateShapes]),
  ...inAll(downCase, [...shapes, ...downShapes]),
];
