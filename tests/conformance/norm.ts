/** Cases of the norms and of the fused steps of a sandwich-normed layer. */
import { rmsNorm, sandwichSetup, sandwichTail } from "../../src/kernels/norm.ts";
import * as reference from "../reference/norm.ts";
import { createRandom } from "../reference/random.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

const EPS = 1e-6;
const { fromBf16 } = reference;

function rmsNormCase(T: number, D: number, deviation = 1): ConformanceCase {
  return defineCase(rmsNorm, `${T} rows of ${D}, deviation ${deviation}`, () => {
    const random = createRandom(T * 65536 + D);
    const x = random.normals(T * D, deviation);
    const weight = random.bf16(D, 0.5, 1.5);
    return {
      params: { T, D, eps: EPS },
      inputs: { x, weight },
      expected: { y: reference.rmsNorm(x, fromBf16(weight), EPS) },
    };
  });
}

const zeroRows = defineCase(rmsNorm, "a row of zeros beside another", () => {
  const D = 128;
  const random = createRandom(7);
  const x = random.normals(2 * D);
  x.fill(0, 0, D);
  const weight = random.bf16(D, -1.5, 1.5);
  return {
    params: { T: 2, D, eps: EPS },
    inputs: { x, weight },
    expected: { y: reference.rmsNorm(x, fromBf16(weight), EPS) },
  };
});

function setupCase(T: number, D: number): ConformanceCase {
  return defineCase(sandwichSetup, `${T} rows of ${D}`, () => {
    const random = createRandom(T * 65536 + D + 1);
    const given = { x: random.normals(T * D, 3), branch: random.normals(T * D, 0.2) };
    const weights = {
      postNorm: random.bf16(D, 0.5, 1.5),
      sharedNorm: random.bf16(D, 0.5, 1.5),
      routedNorm: random.bf16(D, 0.5, 1.5),
      routerScale: random.bf16(D, 0.5, 1.5),
    };
    const params = { eps: EPS, routerFactor: D ** -0.5 };
    return {
      params: { T, D, ...params },
      inputs: { ...given, ...weights },
      expected: reference.sandwichSetup({
        ...given,
        ...params,
        postNorm: fromBf16(weights.postNorm),
        sharedNorm: fromBf16(weights.sharedNorm),
        routedNorm: fromBf16(weights.routedNorm),
        routerScale: fromBf16(weights.routerScale),
      }),
    };
  });
}

function tailCase(T: number, D: number): ConformanceCase {
  return defineCase(sandwichTail, `${T} rows of ${D}`, () => {
    const random = createRandom(T * 65536 + D + 2);
    const rows = {
      x: random.normals(T * D, 3),
      shared: random.normals(T * D, 0.1),
      routed: random.normals(T * D, 10),
    };
    const weights = {
      sharedNorm: random.bf16(D, 0.5, 1.5),
      routedNorm: random.bf16(D, 0.5, 1.5),
      sumNorm: random.bf16(D, 0.5, 1.5),
    };
    const layerScalar = random.bf16(1, 0.5, 1.2);
    const x = reference.sandwichTail({
      ...rows,
      sharedNorm: fromBf16(weights.sharedNorm),
      routedNorm: fromBf16(weights.routedNorm),
      sumNorm: fromBf16(weights.sumNorm),
      layerScalar: fromBf16(layerScalar)[0]!,
      eps: EPS,
    });
    return {
      params: { T, D, eps: EPS },
      inputs: { ...rows, ...weights, layerScalar },
      expected: { x },
    };
  });
}

const SHAPES = [
  [1, 2816],
  [7, 2816],
  [1, 128],
  [5, 320],
  [3, 37],
  [2, 1],
] as const;

export const normCases: readonly ConformanceCase[] = [
  ...SHAPES.map(([T, D]) => rmsNormCase(T, D)),
  rmsNormCase(2, 2816, 1e-4),
  rmsNormCase(2, 2816, 300),
  rmsNormCase(129, 128),
  zeroRows,
  ...SHAPES.map(([T, D]) => setupCase(T, D)),
  ...SHAPES.map(([T, D]) => tailCase(T, D)),
];
