/** The sampler's passes over a vocabulary in float64 and 64-bit integers. */

/** What stands where fewer than C logits are finite. */
export const NO_ID = 0xffffffff;

/** (index of the largest finite value, number of values that are not finite); index 0 if none is. */
export function argmax(logits: ArrayLike<number>): [number, number] {
  let best = -1;
  let bad = 0;
  for (let i = 0; i < logits.length; i++) {
    if (!Number.isFinite(logits[i])) bad++;
    else if (best < 0 || logits[i]! > logits[best]!) best = i;
  }
  return [Math.max(best, 0), bad];
}

export const softcap = (x: ArrayLike<number>, cap: number): Float64Array =>
  Float64Array.from(x, (value) =>
    cap > 0 ? Math.fround(cap) * Math.tanh(value / Math.fround(cap)) : value,
  );

export function penalize(
  logits: ArrayLike<number>,
  ids: ArrayLike<number>,
  penalty: number,
): Float64Array {
  const y = Float64Array.from(logits);
  const divisor = Math.fround(penalty);
  for (const id of Array.from(ids)) y[id] = y[id]! > 0 ? y[id]! / divisor : y[id]! * divisor;
  return y;
}

export interface Candidates {
  readonly ids: Uint32Array;
  readonly values: Float64Array;
  /** Maximum, sum of exponentials over it, number of values that are not finite. */
  readonly mass: Float64Array;
}

export function candidates(logits: ArrayLike<number>, C: number): Candidates {
  const finite: number[] = [];
  for (let i = 0; i < logits.length; i++) if (Number.isFinite(logits[i])) finite.push(i);
  const order = finite.toSorted((a, b) => logits[b]! - logits[a]! || a - b);
  const top = order.length === 0 ? Number.NEGATIVE_INFINITY : logits[order[0]!]!;
  const chosen = order.slice(0, C);
  const mass = finite.reduce((sum, i) => sum + Math.exp(logits[i]! - top), 0);
  const ids = new Uint32Array(C).fill(NO_ID);
  const values = new Float64Array(C).fill(Number.NEGATIVE_INFINITY);
  ids.set(chosen);
  values.set(chosen.map((i) => logits[i]!));
  return { ids, values, mass: Float64Array.of(top, mass, logits.length - finite.length) };
}

const MASK = (1n << 64n) - 1n;

/** Source: the finaliser of SplittableRandom, Steele et al., OOPSLA 2014. */
export function splitmix64(state: bigint): bigint {
  let z = (state + 0x9e3779b97f4a7c15n) & MASK;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return z ^ (z >> 31n);
}

/** -ln(-ln u), u from the upper 24 bits of the hash of `key xor id`. */
export function gumbelNoise(key: bigint, id: number): number {
  const top24 = Number(splitmix64(key ^ BigInt(id)) >> 40n);
  return -Math.log(-Math.log((top24 + 0.5) / 2 ** 24));
}

/** (the id whose log-probability over temperature plus noise is largest, values that are not finite). */
export function gumbel(
  logits: ArrayLike<number>,
  temperature: number,
  key: bigint,
): [number, number] {
  const finite = Array.from(logits).filter(Number.isFinite);
  const top = finite.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  const normaliser = top + Math.log(finite.reduce((sum, value) => sum + Math.exp(value - top), 0));
  const noisy = Array.from(logits, (value, id) =>
    Number.isFinite(value)
      ? (value - normaliser) / Math.fround(temperature) + gumbelNoise(key, id)
      : Number.NaN,
  );
  return argmax(noisy);
}
