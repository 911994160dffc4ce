/** Rotary tables, the KV epilogue and attention in float64, one function for each formula. */
import { mapRows, normRow } from "./norm.ts";

/** Pairs (cos a, sin a); the angle is a float32 product, as the models were trained with. */
export function ropeTable(
  frequencies: ArrayLike<number>,
  T: number,
  position: number,
): Float64Array {
  const N = frequencies.length;
  const table = new Float64Array(T * N * 2);
  for (let t = 0; t < T; t++) {
    for (let n = 0; n < N; n++) {
      const angle = Math.fround(Math.fround(position + t) * Math.fround(frequencies[n]!));
      table[(t * N + n) * 2] = Math.cos(angle);
      table[(t * N + n) * 2 + 1] = Math.sin(angle);
    }
  }
  return table;
}

/** Rotates one head by N pairs; component i pairs with i + N. */
export function rotate(x: Float64Array, pairs: ArrayLike<number>): Float64Array {
  const N = pairs.length / 2;
  const y = x.slice();
  for (let i = 0; i < N; i++) {
    const cosine = pairs[2 * i]!;
    const sine = pairs[2 * i + 1]!;
    y[i] = x[i]! * cosine - x[i + N]! * sine;
    y[i + N] = x[i + N]! * cosine + x[i]! * sine;
  }
  return y;
}

export interface HeadShape {
  readonly T: number;
  readonly H: number;
  readonly Hkv: number;
  readonly Dh: number;
  /** Rows of the KV cache. */
  readonly R: number;
  /** Position of the first token. */
  readonly position: number;
}

export interface Epilogue {
  readonly q: ArrayLike<number>;
  readonly k: ArrayLike<number>;
  readonly v: ArrayLike<number>;
  readonly qNorm: ArrayLike<number>;
  readonly kNorm: ArrayLike<number>;
  /** [T, N, 2] */
  readonly table: Float64Array;
  /** The cache before. */
  readonly keys: ArrayLike<number>;
  readonly values: ArrayLike<number>;
  /** Whether values are normed, without a weight. */
  readonly normValues: boolean;
  readonly eps: number;
}

/** Norms and rotations of new heads, and the cache after the new rows were written. */
export function qkvEpilogue(
  shape: HeadShape,
  given: Epilogue,
): { q: Float64Array; keys: Float64Array; values: Float64Array } {
  const { T, H, Hkv, Dh, R, position } = shape;
  const pairCount = given.table.length / T;
  const rotated = (x: ArrayLike<number>, heads: number, weight: ArrayLike<number>): Float64Array =>
    mapRows(x, Dh, (head, row) => {
      const t = Math.floor(row / heads);
      const pairs = given.table.subarray(t * pairCount, (t + 1) * pairCount);
      return rotate(normRow(head, weight, given.eps), pairs);
    });
  const ones = new Float64Array(Dh).fill(1);
  const k = rotated(given.k, Hkv, given.kNorm);
  const v = given.normValues
    ? mapRows(given.v, Dh, (head) => normRow(head, ones, given.eps))
    : Float64Array.from(given.v);
  const keys = Float64Array.from(given.keys);
  const values = Float64Array.from(given.values);
  const row = Hkv * Dh;
  for (let t = 0; t < T; t++) {
    const slot = (position + t) % R;
    keys.set(k.subarray(t * row, (t + 1) * row), slot * row);
    values.set(v.subarray(t * row, (t + 1) * row), slot * row);
  }
  return { q: rotated(given.q, H, given.qNorm), keys, values };
}

/** Softmax of some scores. */
export function softmax(scores: readonly number[]): number[] {
  const top = scores.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  const weights = scores.map((score) => Math.exp(score - top));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}

export interface AttentionInputs {
  readonly q: ArrayLike<number>;
  readonly keys: ArrayLike<number>;
  readonly values: ArrayLike<number>;
  /** 0: every key up to the query's own. */
  readonly window: number;
  readonly scale: number;
}

/** Causal attention over a ring of R rows. */
export function attention(shape: HeadShape, given: AttentionInputs): Float64Array {
  const { T, H, Hkv, Dh, R, position } = shape;
  const { q, keys, values, window } = given;
  const scale = Math.fround(given.scale);
  const y = new Float64Array(T * H * Dh);
  for (let t = 0; t < T; t++) {
    const newest = position + t;
    const oldest = window === 0 ? 0 : Math.max(0, newest - window + 1);
    for (let h = 0; h < H; h++) {
      const g = Math.floor((h * Hkv) / H);
      const query = (t * H + h) * Dh;
      const rowOf = (u: number): number => ((u % R) * Hkv + g) * Dh;
      const dot = (row: number): number => {
        let sum = 0;
        for (let d = 0; d < Dh; d++) sum += q[query + d]! * keys[row + d]!;
        return sum;
      };
      const scores: number[] = [];
      for (let u = oldest; u <= newest; u++) scores.push(scale * dot(rowOf(u)));
      softmax(scores).forEach((weight, i) => {
        const row = rowOf(oldest + i);
        for (let d = 0; d < Dh; d++) y[query + d]! += weight * values[row + d]!;
      });
    }
  }
  return y;
}
