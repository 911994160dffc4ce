/** Products with affine-quantised matrices in float64, weight by weight. Knows no layout but the files' own. */
import { floatFromBf16 } from "./half.ts";

/** A quantised matrix: rows of `columns` codes, a BF16 scale and bias (as bits) for each group of 64. */
export interface AffineRows {
  readonly codes: Uint8Array;
  readonly scales: Uint16Array;
  readonly biases: Uint16Array;
  readonly bits: number;
  readonly columns: number;
}

/** Row `row` as weights: scale * code + bias, exact in float64. */
export function weightsOf(matrix: AffineRows, row: number): Float64Array {
  const { codes, scales, biases, bits, columns } = matrix;
  return new Float64Array(columns).map((_, column) => {
    const element = row * columns + column;
    const code = bits === 8 ? codes[element]! : (codes[element >> 1]! >> (4 * (element & 1))) & 15;
    const group = Math.floor(element / 64);
    return floatFromBf16(scales[group]!) * code + floatFromBf16(biases[group]!);
  });
}

/** y[t, o] = sum_i weight[o, i] * x[t, i]. */
export function matmul(
  x: Float32Array,
  matrix: AffineRows,
  { T, O }: { readonly T: number; readonly O: number },
): Float64Array {
  const y = new Float64Array(T * O);
  const I = matrix.columns;
  for (let o = 0; o < O; o++) {
    const weights = weightsOf(matrix, o);
    for (let t = 0; t < T; t++) {
      let sum = 0;
      for (let i = 0; i < I; i++) sum += weights[i]! * x[t * I + i]!;
      y[t * O + o] = sum;
    }
  }
  return y;
}

/** The catalogue's gate activations, by their number. */
const ACTIVATIONS: readonly ((x: number) => number)[] = [
  (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  (x) => x / (1 + Math.exp(-x)),
];

/** act(gate) * up, element by element. */
export function gated(gate: Float64Array, up: Float64Array, activation: number): Float64Array {
  const act = ACTIVATIONS[activation]!;
  return gate.map((value, i) => act(value) * up[i]!);
}

/** y[t, d] = weight[ids[t], d] * multiplier. */
export function embed(ids: Uint32Array, table: AffineRows, multiplier: number): Float64Array {
  const rows = Array.from(ids, (id) => weightsOf(table, id).map((weight) => weight * multiplier));
  const y = new Float64Array(ids.length * table.columns);
  for (const [t, row] of rows.entries()) y.set(row, t * table.columns);
  return y;
}
