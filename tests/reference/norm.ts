/** Norms in float64, one function for each formula. Rows are flat arrays of T * D values. */
import { floatFromBf16 } from "./half.ts";

/** Values of bfloat16 bits. */
export const fromBf16 = (bits: ArrayLike<number>): Float64Array =>
  Float64Array.from(bits, floatFromBf16);

/** One row: x * rsqrt(mean(x^2) + eps) * weight. */
export function normRow(
  x: ArrayLike<number>,
  weight: ArrayLike<number>,
  eps: number,
): Float64Array {
  let sum = 0;
  for (let d = 0; d < x.length; d++) sum += x[d]! * x[d]!;
  const factor = 1 / Math.sqrt(sum / x.length + Math.fround(eps));
  return Float64Array.from(x, (value, d) => value * factor * weight[d]!);
}

/** Applies `row` to each of T rows of D values. */
export function mapRows(
  x: ArrayLike<number>,
  D: number,
  row: (x: Float64Array, t: number) => Float64Array,
): Float64Array {
  const values = Float64Array.from(x);
  const y = new Float64Array(values.length);
  for (let t = 0; t * D < values.length; t++) {
    y.set(row(values.subarray(t * D, (t + 1) * D), t), t * D);
  }
  return y;
}

export const rmsNorm = (
  x: ArrayLike<number>,
  weight: ArrayLike<number>,
  eps: number,
): Float64Array => mapRows(x, weight.length, (row) => normRow(row, weight, eps));

/** x + y, element by element. */
export const add = (x: Float64Array, y: Float64Array): Float64Array =>
  x.map((value, i) => value + y[i]!);

export interface SandwichSetup {
  readonly x: ArrayLike<number>;
  readonly branch: ArrayLike<number>;
  readonly postNorm: ArrayLike<number>;
  readonly sharedNorm: ArrayLike<number>;
  readonly routedNorm: ArrayLike<number>;
  readonly routerScale: ArrayLike<number>;
  readonly eps: number;
  readonly routerFactor: number;
}

/** The residual stream after attention, and its three norms. */
export function sandwichSetup(given: SandwichSetup): {
  x: Float64Array;
  shared: Float64Array;
  routed: Float64Array;
  router: Float64Array;
} {
  const { eps } = given;
  const x = add(Float64Array.from(given.x), rmsNorm(given.branch, given.postNorm, eps));
  const factor = Math.fround(given.routerFactor);
  const routerWeight = Float64Array.from(given.routerScale, (scale) => scale * factor);
  return {
    x,
    shared: rmsNorm(x, given.sharedNorm, eps),
    routed: rmsNorm(x, given.routedNorm, eps),
    router: rmsNorm(x, routerWeight, eps),
  };
}

export interface SandwichTail {
  readonly x: ArrayLike<number>;
  readonly shared: ArrayLike<number>;
  readonly routed: ArrayLike<number>;
  readonly sharedNorm: ArrayLike<number>;
  readonly routedNorm: ArrayLike<number>;
  readonly sumNorm: ArrayLike<number>;
  readonly layerScalar: number;
  readonly eps: number;
}

/** The residual stream at the end of a layer. */
export function sandwichTail(given: SandwichTail): Float64Array {
  const { eps } = given;
  const sum = add(
    rmsNorm(given.shared, given.sharedNorm, eps),
    rmsNorm(given.routed, given.routedNorm, eps),
  );
  return add(Float64Array.from(given.x), rmsNorm(sum, given.sumNorm, eps)).map(
    (value) => value * given.layerScalar,
  );
}
