/**
 * How the next token is chosen, as far as no device is needed: what a request may ask for, which passes
 * over the vocabulary it needs, the seeds, and the draw from a handful of candidates. It refuses to walk
 * the vocabulary: a device reduces the logits of a row to candidates and the mass of the whole row.
 *
 * Order for a row of raw float32 logits: cap, penalty on the capped values, then one of
 *   greedy      the largest logit, ties to the lowest id (raw logits unless a penalty is asked for);
 *   gumbel      one draw from the whole distribution at a temperature;
 *   candidates  the nucleus on the mass of the whole row, then the top K, then weights p^(1/T).
 * So temperature changes neither the nucleus nor the top K, and the seed alone decides a draw.
 */
import { assert, MferenceError } from "../util/errors.ts";
import { fraction24, nonzeroSeed, Xorshift64Star } from "../util/random.ts";

/** Most candidates that a device reduces a row to, and so the largest top-k. */
export const TOP_K_MAX = 256;

/** What a caller may ask for; what is left out is not limited. */
export interface SamplingRequest {
  /** 0 (always the likeliest token) or more; 1 if left out. */
  readonly temperature?: number | undefined;
  /** 1 to 256, or left out. */
  readonly topK?: number | undefined;
  /** Above 0, at most 1. */
  readonly topP?: number | undefined;
  /** Above 0; 1 changes nothing. */
  readonly repetitionPenalty?: number | undefined;
  /** 0 to 2^64 - 1; left out, every generation draws differently. */
  readonly seed?: bigint | number | undefined;
}

/** A request that has been checked. */
export interface SamplingOptions {
  readonly temperature: number;
  readonly topK: number | undefined;
  readonly topP: number;
  readonly repetitionPenalty: number;
  readonly seed: bigint | undefined;
}

/** The last pass over a row of logits. */
export type SamplingChoice =
  | { readonly kind: "greedy" }
  | { readonly kind: "gumbel"; readonly temperature: number }
  | { readonly kind: "candidates"; readonly count: number };

/** The passes over a row of logits, in this order. */
export interface SamplingPlan {
  /** Apply the model's cap, where it has one. Greedy needs none: the cap saturates and makes ties. */
  readonly capped: boolean;
  /** Apply the repetition penalty to the (capped) logits. */
  readonly penalized: boolean;
  readonly choice: SamplingChoice;
}

/** What a device found in a row. */
export interface Candidates {
  /** Token ids, in the order of `values`. */
  readonly ids: Uint32Array;
  /** The largest logits of the row, descending; equal ones by ascending id. */
  readonly values: Float32Array;
  /** Of the whole row: the maximum, `sum exp(logit - maximum)`, and how many are not finite. */
  readonly mass: Float32Array;
}

/** The two halves of a 64-bit key, as kernels take them. */
export interface NoiseKey {
  readonly low: number;
  readonly high: number;
}

const SEED_END = 1n << 64n;
const GUMBEL_POSITION_FACTOR = 0xd2b7_4407_b1ce_6e93n;
/** Outside of these a float32 logit divided by the temperature overflows; inside, nothing changes. */
const GUMBEL_TEMPERATURES = { least: 1e-30, most: 1e30 } as const;

/**
 * Checks a request.
 *
 * @throws MferenceError "engine.options" naming the value, what was found and what is allowed.
 */
export function samplingOptions(request: SamplingRequest = {}): SamplingOptions {
  const { temperature = 1, topK, topP = 1, repetitionPenalty = 1 } = request;
  if (!(Number.isFinite(temperature) && temperature >= 0)) {
    throw optionError("temperature", "0 (always the likeliest token) or more", temperature);
  }
  if (topK !== undefined && !(Number.isInteger(topK) && topK >= 1 && topK <= TOP_K_MAX)) {
    throw optionError("top-k", `a whole number from 1 to ${TOP_K_MAX}, or none`, topK);
  }
  if (!(Number.isFinite(topP) && topP > 0 && topP <= 1))
    throw optionError("top-p", "above 0 and at most 1", topP);
  if (!(Number.isFinite(repetitionPenalty) && repetitionPenalty > 0)) {
    throw optionError("the repetition penalty", "above 0 (1 for none)", repetitionPenalty);
  }
  if (temperature > 0 && topK === undefined && topP < 1) {
    throw new MferenceError(
      "engine.options",
      `top-p ${topP} at temperature ${temperature} needs a top-k from 1 to ${TOP_K_MAX}, because the ` +
        "nucleus is looked for among so many candidates: set top-k, or top-p 1, or temperature 0",
    );
  }
  return { temperature, topK, topP, repetitionPenalty, seed: checkSeed(request.seed) };
}

/**
 * Checks the limit on new tokens.
 *
 * @throws MferenceError "engine.options" unless it is a whole number of at least 1.
 */
export function checkMaxNewTokens(value: number): number {
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw optionError("the number of new tokens", "a whole number of at least 1", value);
}

/** The passes that checked options need over rows of `vocabularySize` logits. */
export function planSampling(options: SamplingOptions, vocabularySize: number): SamplingPlan {
  const { temperature, topK, repetitionPenalty } = options;
  const penalized = repetitionPenalty !== 1;
  if (temperature === 0) return { capped: penalized, penalized, choice: { kind: "greedy" } };
  if (topK !== undefined) {
    const count = Math.min(topK, vocabularySize);
    return { capped: true, penalized, choice: { kind: "candidates", count } };
  }
  const { least, most } = GUMBEL_TEMPERATURES;
  const within = Math.min(most, Math.max(least, temperature));
  return { capped: true, penalized, choice: { kind: "gumbel", temperature: within } };
}

/**
 * Draws a token at temperature above 0. The nucleus is the shortest prefix of the candidates whose
 * probability in the whole row reaches `topP` (one candidate at least, all if they never reach it); then
 * at most `topK` of them stay; then `u` in [0, 1) chooses among the weights p^(1/T).
 *
 * @throws MferenceError "engine.logits" when a logit of the row is not finite.
 */
export function drawCandidate(
  candidates: Candidates,
  options: Pick<SamplingOptions, "temperature" | "topK" | "topP">,
  u: number,
): number {
  const { ids, values, mass } = candidates;
  assert(options.temperature > 0 && u >= 0 && u < 1, "a draw has a temperature and 0 <= u < 1");
  assert(values.length >= 1 && ids.length === values.length, "a draw has a candidate");
  checkFinite(mass[2]!);
  const kept = Math.min(nucleusSize(candidates, options.topP), options.topK ?? values.length);
  const weights = new Float64Array(kept);
  let sum = 0;
  for (let i = 0; i < kept; i += 1) {
    // p^(1/T) up to a factor common to all: relative to the largest, so that no sum underflows.
    weights[i] = Math.exp((values[i]! - values[0]!) / options.temperature);
    sum += weights[i]!;
  }
  const target = u * sum;
  let running = 0;
  for (let i = 0; i < kept; i += 1) {
    running += weights[i]!;
    if (running >= target) return ids[i]!;
  }
  return ids[0]!;
}

/**
 * Refuses a row with logits that are not finite.
 *
 * @throws MferenceError "engine.logits"
 */
export function checkFinite(notFinite: number): void {
  if (notFinite === 0) return;
  throw new MferenceError(
    "engine.logits",
    `${notFinite} logits are not finite, expected none; the model's files or its arithmetic are damaged: ` +
      "verify the model and reset the session",
  );
}

/** The seed of a generation for which none was asked: from a monotonic clock, never 0. */
export function seedFromClock(nanoseconds: bigint): bigint {
  return nonzeroSeed(nanoseconds);
}

/** The number in [0, 1) that decides the draw of the `index`-th new token (the first is 0). */
export function uniformAt(seed: bigint, index: number): number {
  const generator = new Xorshift64Star(seedAt(seed, index));
  generator.next();
  return fraction24(generator.next());
}

/** The key of the noise for the `index`-th new token; a kernel combines it with each id. */
export function noiseKeyAt(seed: bigint, index: number): NoiseKey {
  const key = BigInt.asUintN(64, seedAt(seed, index) ^ (BigInt(index) * GUMBEL_POSITION_FACTOR));
  return { low: Number(key & 0xffff_ffffn), high: Number(key >> 32n) };
}

/**
 * The distinct tokens that a repetition penalty applies to, however often each occurred: those of the
 * prompt and of the answer. Ids outside the vocabulary are ignored.
 */
export class SeenTokens {
  readonly #vocabularySize: number;
  readonly #seen = new Set<number>();
  #ids = new Uint32Array(256);

  constructor(vocabularySize: number) {
    this.#vocabularySize = vocabularySize;
  }

  /** In order of first occurrence; valid until the next change. */
  get ids(): Uint32Array {
    return this.#ids.subarray(0, this.#seen.size);
  }

  add(id: number): void {
    if (!(id >= 0 && id < this.#vocabularySize) || this.#seen.has(id)) return;
    const count = this.#seen.size;
    if (count === this.#ids.length) {
      const larger = new Uint32Array(2 * count);
      larger.set(this.#ids);
      this.#ids = larger;
    }
    this.#ids[count] = id;
    this.#seen.add(id);
  }

  clear(): void {
    this.#seen.clear();
  }
}

/** Number of candidates in the nucleus. */
function nucleusSize({ values, mass }: Candidates, topP: number): number {
  if (topP >= 1) return values.length;
  const [maximum, sum] = [mass[0]!, mass[1]!];
  let cumulative = 0;
  for (let i = 0; i < values.length; i += 1) {
    cumulative += Math.exp(values[i]! - maximum) / sum;
    if (cumulative >= topP) return i + 1;
  }
  return values.length;
}

function seedAt(seed: bigint, index: number): bigint {
  return nonzeroSeed(seed + BigInt(index));
}

function checkSeed(seed: bigint | number | undefined): bigint | undefined {
  if (seed === undefined) return undefined;
  const isExact = typeof seed === "bigint" || Number.isSafeInteger(seed);
  const value = isExact ? BigInt(seed) : -1n;
  if (value >= 0n && value < SEED_END) return value;
  throw optionError(
    "the seed",
    "a whole number from 0 to 2^64 - 1 (above 2^53 - 1 as a bigint)",
    seed,
  );
}

function optionError(name: string, allowed: string, found: unknown): MferenceError {
  return new MferenceError("engine.options", `${name} must be ${allowed}, not ${String(found)}`);
}
