/** The choice of experts and the sum of their results in float64. */
import { softmax } from "./attention.ts";

/** For each token the K largest scores (ties: the lower expert) and their softmax times a scale. */
export function routerTopk(
  scores: ArrayLike<number>,
  expertScale: ArrayLike<number>,
  K: number,
): { ids: Uint32Array; weights: Float64Array } {
  const E = expertScale.length;
  const T = scores.length / E;
  const ids = new Uint32Array(T * K);
  const weights = new Float64Array(T * K);
  for (let t = 0; t < T; t++) {
    const scoreOf = (e: number): number => scores[t * E + e]!;
    const chosen = Array.from({ length: E }, (_, e) => e)
      .toSorted((a, b) => scoreOf(b) - scoreOf(a) || a - b)
      .slice(0, K);
    ids.set(chosen, t * K);
    const shares = softmax(chosen.map(scoreOf));
    weights.set(
      shares.map((share, k) => share * expertScale[chosen[k]!]!),
      t * K,
    );
  }
  return { ids, weights };
}

/** y[t] = sum over k of weights[t, k] * experts[t * K + k]. */
export function routedReduce(
  experts: ArrayLike<number>,
  weights: ArrayLike<number>,
  shape: { readonly T: number; readonly K: number; readonly D: number },
): Float64Array {
  const { T, K, D } = shape;
  const y = new Float64Array(T * D);
  for (let p = 0; p < T * K; p++) {
    const t = Math.floor(p / K);
    for (let d = 0; d < D; d++) y[t * D + d]! += weights[p]! * experts[p * D + d]!;
  }
  return y;
}
