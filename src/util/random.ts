/**
 * Pseudo-random numbers that are the same on every machine: the 64-bit generators behind seeds, exact in
 * BigInt, and a fast seeded generator for synthetic data. Not for secrets.
 */
import { assert } from "./errors.ts";

const MASK_64 = 0xffff_ffff_ffff_ffffn;
/** 2^64 divided by the golden ratio. */
const GOLDEN_64 = 0x9e37_79b9_7f4a_7c15n;
const XORSHIFT_MULTIPLIER = 2_685_821_657_736_338_717n;

/**
 * The output of SplitMix64 in state `state` (any integer; taken modulo 2^64).
 * Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
 */
export function splitmix64(state: bigint): bigint {
  let z = (state + GOLDEN_64) & MASK_64;
  z = ((z ^ (z >> 30n)) * 0xbf58_476d_1ce4_e5b9n) & MASK_64;
  z = ((z ^ (z >> 27n)) * 0x94d0_49bb_1331_11ebn) & MASK_64;
  return z ^ (z >> 31n);
}

/** SplitMix64 as a seed: never 0, which xorshift cannot leave. */
export function nonzeroSeed(state: bigint): bigint {
  return splitmix64(state) || GOLDEN_64;
}

/**
 * xorshift64*: the state moves by three shifts, the output is the state times a constant.
 * Source: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
 */
export class Xorshift64Star {
  #state: bigint;

  /** @param state 1 to 2^64 - 1 */
  constructor(state: bigint) {
    assert(state > 0n && state <= MASK_64, "the state of xorshift64* is from 1 to 2^64 - 1");
    this.#state = state;
  }

  next(): bigint {
    let s = this.#state;
    s ^= (s << 13n) & MASK_64;
    s ^= s >> 7n;
    s ^= (s << 17n) & MASK_64;
    this.#state = s;
    return (s * XORSHIFT_MULTIPLIER) & MASK_64;
  }
}

/** The top 24 bits of a 64-bit number as a fraction in [0, 1), exact in float32. */
export function fraction24(bits: bigint): number {
  return Number(bits >> 40n) / 2 ** 24;
}

/**
 * A fast seeded generator for tests and synthetic weights: xorshift128 on 32-bit words.
 * Source: Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003.
 */
export class SeededRandom {
  readonly #state = new Uint32Array(4);

  constructor(seed: number | bigint) {
    const first = splitmix64(BigInt(seed));
    const second = nonzeroSeed(first);
    const words = [first, first >> 32n, second, second >> 32n];
    words.forEach((word, i) => {
      this.#state[i] = Number(word & 0xffff_ffffn);
    });
  }

  /** A whole number from 0 to 2^32 - 1. */
  uint32(): number {
    const s = this.#state;
    let t = s[3]!;
    t ^= t << 11;
    t ^= t >>> 8;
    const first = s[0]!;
    s[3] = s[2]!;
    s[2] = s[1]!;
    s[1] = first;
    s[0] = t ^ first ^ (first >>> 19);
    return s[0];
  }

  /** A number in [0, 1). */
  uniform(): number {
    return this.uint32() / 2 ** 32;
  }

  /** A whole number from 0 to `count - 1`. */
  below(count: number): number {
    return Math.floor(this.uniform() * count);
  }

  /** A number of the standard normal distribution (Box and Muller, 1958). */
  normal(): number {
    const radius = Math.sqrt(-2 * Math.log(1 - this.uniform()));
    return radius * Math.cos(2 * Math.PI * this.uniform());
  }

  /** The whole numbers from 0 to `count - 1` in random order, or the first `take` of them. */
  permutation(count: number, take: number = count): number[] {
    const values = Array.from({ length: count }, (_, i) => i);
    for (let i = 0; i < take; i += 1) {
      const j = i + this.below(count - i);
      [values[i], values[j]] = [values[j]!, values[i]!];
    }
    return values.slice(0, take);
  }
}
