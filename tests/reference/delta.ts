/** The gated delta rule and what belongs to it in float64, one function for each formula. */
import { mapRows, normRow } from "./norm.ts";

export const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const silu = (x: number): number => x * sigmoid(x);

export interface Conv {
  /** `[T, C]` */
  readonly x: ArrayLike<number>;
  /** `[C, K]` */
  readonly weight: ArrayLike<number>;
  /** The K - 1 raw rows before, oldest first. */
  readonly tail: ArrayLike<number>;
}

/** Causal depthwise convolution with SiLU, and the K - 1 newest raw rows. */
export function causalConv(
  { T, C, K }: { readonly T: number; readonly C: number; readonly K: number },
  { x, weight, tail }: Conv,
): { y: Float64Array; tail: Float64Array } {
  const rows = [...Array.from(tail), ...Array.from(x)];
  const y = new Float64Array(T * C);
  for (let t = 0; t < T; t++) {
    for (let c = 0; c < C; c++) {
      let sum = 0;
      for (let j = 0; j < K; j++) sum += weight[c * K + j]! * rows[(t + j) * C + c]!;
      y[t * C + c] = silu(sum);
    }
  }
  return { y, tail: Float64Array.from(rows.slice(T * C)) };
}

export interface DeltaShape {
  readonly T: number;
  /** Width of a row of queries, keys and values. */
  readonly C: number;
  readonly Hk: number;
  readonly Hv: number;
  readonly Dk: number;
  readonly Dv: number;
}

/** x / sqrt(sum of squares + eps) * factor. */
function unitLength(x: Float64Array, eps: number, factor: number): Float64Array {
  const squares = x.reduce((sum, value) => sum + value * value, 0);
  return x.map((value) => (value / Math.sqrt(squares + eps)) * factor);
}

export interface DeltaInputs {
  readonly mixed: ArrayLike<number>;
  readonly alpha: ArrayLike<number>;
  readonly beta: ArrayLike<number>;
}

/** Queries and keys of length 1, logarithms of the decays and steps. */
export function deltaPrepare(
  { T, C, Hk, Hv, Dk }: DeltaShape,
  given: DeltaInputs & {
    readonly aLog: ArrayLike<number>;
    readonly dtBias: ArrayLike<number>;
    readonly eps: number;
  },
): { mixed: Float64Array; alpha: Float64Array; beta: Float64Array } {
  const eps = Math.fround(given.eps);
  const mixed = Float64Array.from(given.mixed);
  for (let t = 0; t < T; t++) {
    for (let h = 0; h < 2 * Hk; h++) {
      const at = t * C + h * Dk;
      mixed.set(unitLength(mixed.slice(at, at + Dk), eps, h < Hk ? Dk ** -0.5 : 1), at);
    }
  }
  const softplus = (x: number): number => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
  return {
    mixed,
    alpha: Float64Array.from(
      given.alpha,
      (x, i) => -Math.exp(given.aLog[i % Hv]!) * softplus(x + given.dtBias[i % Hv]!),
    ),
    beta: Float64Array.from(given.beta, sigmoid),
  };
}

/** One token for one row of the state, in place: `S = g S; S = S + beta (v - S k) k^T`; returns `S q`. */
function deltaStep(
  row: Float64Array,
  { q, k }: { readonly q: Float64Array; readonly k: Float64Array },
  { decay, beta, value }: { readonly decay: number; readonly beta: number; readonly value: number },
): number {
  const dot = (x: Float64Array): number => row.reduce((sum, s, i) => sum + s * x[i]!, 0);
  for (let i = 0; i < row.length; i++) row[i]! *= decay;
  const delta = beta * (value - dot(k));
  for (let i = 0; i < row.length; i++) row[i]! += delta * k[i]!;
  return dot(q);
}

/** The recurrence, token after token, over prepared inputs. */
export function gatedDelta(
  { T, C, Hk, Hv, Dk, Dv }: DeltaShape,
  given: DeltaInputs & { readonly state: ArrayLike<number> },
): { y: Float64Array; state: Float64Array } {
  const mixed = Float64Array.from(given.mixed);
  const state = Float64Array.from(given.state);
  const y = new Float64Array(T * Hv * Dv);
  for (let at = 0; at < T * Hv; at++) {
    const [t, h] = [Math.floor(at / Hv), at % Hv];
    const query = t * C + Math.floor((h * Hk) / Hv) * Dk;
    const key = query + Hk * Dk;
    const head = { q: mixed.subarray(query, query + Dk), k: mixed.subarray(key, key + Dk) };
    const [decay, beta] = [Math.exp(given.alpha[at]!), given.beta[at]!];
    for (let d = 0; d < Dv; d++) {
      const row = state.subarray((h * Dv + d) * Dk, (h * Dv + d + 1) * Dk);
      const value = mixed[t * C + 2 * Hk * Dk + h * Dv + d]!;
      y[at * Dv + d] = deltaStep(row, head, { decay, beta, value });
    }
  }
  return { y, state };
}

/** The tokens of one chunk for one head: rows of keys and queries, the sums of their logarithms, steps. */
interface DeltaChunk {
  readonly q: readonly Float64Array[];
  readonly k: readonly Float64Array[];
  readonly logs: readonly number[];
  readonly beta: readonly number[];
}

const dot = (a: Float64Array, b: Float64Array): number =>
  a.reduce((sum, value, i) => sum + value * b[i]!, 0);

/** One chunk for one row of the state, in place; returns the outputs of its tokens. */
function chunkRow(row: Float64Array, { q, k, logs, beta }: DeltaChunk, v: readonly number[]) {
  const before = row.slice();
  // (I + L) delta = beta (v - a K S), from the first token on.
  const delta: number[] = [];
  for (const [t, key] of k.entries()) {
    let seen = Math.exp(logs[t]!) * dot(before, key);
    for (const [s, change] of delta.entries()) {
      seen += Math.exp(logs[t]! - logs[s]!) * dot(key, k[s]!) * change;
    }
    delta.push(beta[t]! * (v[t]! - seen));
  }
  const y = q.map((query, t) => {
    let sum = Math.exp(logs[t]!) * dot(before, query);
    for (let s = 0; s <= t; s++) {
      sum += Math.exp(logs[t]! - logs[s]!) * dot(query, k[s]!) * delta[s]!;
    }
    return sum;
  });
  const last = logs.at(-1)!;
  for (let i = 0; i < row.length; i++) {
    row[i] = Math.exp(last) * before[i]!;
    for (const [s, change] of delta.entries()) {
      row[i]! += Math.exp(last - logs[s]!) * change * k[s]![i]!;
    }
  }
  return y;
}

/**
 * The same recurrence in chunks of so many tokens: the changes of the state within a chunk solve a
 * triangular system. Source: arXiv 2412.06464, section 3.3.
 */
export function gatedDeltaInChunks(
  { T, C, Hk, Hv, Dk, Dv }: DeltaShape,
  given: DeltaInputs & { readonly state: ArrayLike<number> },
  chunk: number,
): { y: Float64Array; state: Float64Array } {
  const mixed = Float64Array.from(given.mixed);
  const state = Float64Array.from(given.state);
  const y = new Float64Array(T * Hv * Dv);
  for (let first = 0; first < T; first += chunk) {
    const tokens = Array.from({ length: Math.min(chunk, T - first) }, (_, t) => first + t);
    for (let h = 0; h < Hv; h++) {
      const query = Math.floor((h * Hk) / Hv) * Dk;
      const rows = (at: number) => tokens.map((t) => mixed.subarray(t * C + at, t * C + at + Dk));
      let sum = 0;
      const logs = tokens.map((t) => (sum += given.alpha[t * Hv + h]!));
      const beta = tokens.map((t) => given.beta[t * Hv + h]!);
      const head = { q: rows(query), k: rows(query + Hk * Dk), logs, beta };
      for (let d = 0; d < Dv; d++) {
        const row = state.subarray((h * Dv + d) * Dk, (h * Dv + d + 1) * Dk);
        const values = tokens.map((t) => mixed[t * C + 2 * Hk * Dk + h * Dv + d]!);
        const outputs = chunkRow(row, head, values);
        outputs.forEach((output, t) => (y[((first + t) * Hv + h) * Dv + d] = output));
      }
    }
  }
  return { y, state };
}

/** N(x; weight) * silu(gate), head by head. */
export function gatedNorm(
  x: ArrayLike<number>,
  gate: ArrayLike<number>,
  weight: ArrayLike<number>,
  eps: number,
): Float64Array {
  const normed = mapRows(x, weight.length, (row) => normRow(row, weight, eps));
  return normed.map((value, i) => value * silu(gate[i]!));
}
