/**
 * The choice of a token in float64 over a whole row, as the rules say it: softmax, nucleus, top K, powers
 * of probabilities, draw. The device's passes over a row are in sampling.ts.
 */
import { splitmix64 } from "./sampling.ts";

export interface ReferenceSampling {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
}

export function softmaxOf(logits: readonly number[]): number[] {
  const maximum = logits.reduce((a, b) => Math.max(a, b));
  const powers = logits.map((logit) => Math.exp(logit - maximum));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

/** The ids by descending value, ties by ascending id. */
export function rankedIds(values: ArrayLike<number>): number[] {
  return Array.from(values, (_, id) => id).toSorted((a, b) => values[b]! - values[a]! || a - b);
}

/** What may be drawn, in descending order, with the share of each. */
export function sharesOf(
  logits: readonly number[],
  { temperature, topK, topP }: ReferenceSampling,
): { id: number; share: number }[] {
  const p = softmaxOf(logits);
  const ranked = rankedIds(logits);
  // A token belongs to the nucleus while those before it fall short of topP.
  let mass = 0;
  const nucleus = ranked.filter((id) => {
    const isIn = topP === 1 || mass < topP;
    mass += p[id]!;
    return isIn;
  });
  const kept = nucleus.slice(0, topK);
  const weights = kept.map((id) => p[id]! ** (1 / temperature));
  const sum = weights.reduce((a, b) => a + b, 0);
  return kept.map((id, i) => ({ id, share: weights[i]! / sum }));
}

/** The token that `u` in [0, 1) draws, or the likeliest at temperature 0. */
export function sampleRow(
  logits: readonly number[],
  options: ReferenceSampling,
  u: number,
): number {
  if (options.temperature === 0) return rankedIds(logits)[0]!;
  return drawShare(sharesOf(logits, options), u);
}

/** The token whose part of [0, 1) holds `u`. */
export function drawShare(shares: ReturnType<typeof sharesOf>, u: number): number {
  let running = 0;
  for (const { id, share } of shares) {
    running += share;
    if (running >= u) return id;
  }
  return shares[0]!.id;
}

/** The key of the noise at a generated index, to be combined with each id. */
export function noiseKey(seed: bigint, index: number): bigint {
  const mask = 2n ** 64n - 1n;
  const s = splitmix64((seed + BigInt(index)) & mask) || 11_400_714_819_323_198_485n;
  return s ^ ((BigInt(index) * 15_183_679_468_541_472_403n) & mask);
}
