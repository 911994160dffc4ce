/**
 * Pseudo-random numbers that are the same on every machine: the 64-bit generators behind seeds, exact in
 * BigInt. Knows nothing of what is drawn; not for secrets, and too slow for bulk data.
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
