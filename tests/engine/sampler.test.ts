import { describe, expect, test } from "bun:test";
import {
  type Candidates,
  checkMaxNewTokens,
  drawCandidate,
  noiseKeyAt,
  planSampling,
  samplingOptions,
  type SamplingPlan,
  type SamplingRequest,
  seedFromClock,
  SeenTokens,
  TOP_K_MAX,
  uniformAt,
} from "../../src/engine/sampler.ts";
import { CANDIDATES_MAX } from "../../src/kernels/sampling.ts";
import { MferenceError } from "../../src/util/errors.ts";
import { splitmix64 } from "../../src/util/random.ts";
import { createRandom, type Random } from "../reference/random.ts";
import { noiseKey, rankedIds, sampleRow, sharesOf } from "../reference/sampler.ts";
import { candidates, gumbel, penalize, softcap } from "../reference/sampling.ts";

function errorOf(action: () => unknown): MferenceError {
  try {
    action();
  } catch (error) {
    if (error instanceof MferenceError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

/** A row of V float32 logits with the given spread. */
function randomLogits(random: Random, V: number, spread: number): number[] {
  return Array.from(random.normals(V, spread));
}

/** A row whose softmax is `p`. */
const logitsOf = (p: readonly number[]) => p.map((probability) => Math.log(probability));

/** A row reduced as a device reduces it. */
function reduceRow(logits: ArrayLike<number>, C: number): Candidates {
  const { ids, values, mass } = candidates(logits, C);
  return { ids, values: Float32Array.from(values), mass: Float32Array.from(mass) };
}

/** Draws through candidates, as the engine does. */
function draw(logits: ArrayLike<number>, request: SamplingRequest, u: number): number {
  const options = samplingOptions(request);
  const { choice } = planSampling(options, logits.length);
  if (choice.kind !== "candidates") throw new Error(`${choice.kind} draws from no candidates`);
  return drawCandidate(reduceRow(logits, choice.count), options, u);
}

describe("options", () => {
  test("default to the whole distribution as it is", () => {
    expect(samplingOptions()).toEqual({
      temperature: 1,
      topK: undefined,
      topP: 1,
      repetitionPenalty: 1,
      seed: undefined,
    });
  });

  test("accept every documented value", () => {
    const accepted: SamplingRequest[] = [
      { temperature: 0 },
      { temperature: 0, topP: 0.5 },
      { temperature: 1e-300, topK: 1, topP: 1e-9 },
      { temperature: 1e300 },
      { topK: 256, topP: 0.95 },
      { repetitionPenalty: 0.5, seed: 0 },
      { seed: 2n ** 64n - 1n },
      { seed: Number.MAX_SAFE_INTEGER },
    ];
    for (const request of accepted) expect(samplingOptions(request)).toBeDefined();
    expect(samplingOptions({ seed: 42 }).seed).toBe(42n);
  });

  test.each<[SamplingRequest, string]>([
    [{ temperature: -0.1 }, "temperature must be 0"],
    [{ temperature: Number.NaN }, "not NaN"],
    [{ temperature: Number.POSITIVE_INFINITY }, "not Infinity"],
    [{ topK: 0 }, "from 1 to 256, or none, not 0"],
    [{ topK: 257 }, "not 257"],
    [{ topK: 1.5 }, "not 1.5"],
    [{ topK: 4, topP: 0 }, "above 0 and at most 1, not 0"],
    [{ topK: 4, topP: 1.01 }, "not 1.01"],
    [{ topK: 4, topP: Number.NaN }, "not NaN"],
    [{ repetitionPenalty: 0 }, "repetition penalty must be above 0"],
    [{ repetitionPenalty: -1 }, "not -1"],
    [{ repetitionPenalty: Number.POSITIVE_INFINITY }, "not Infinity"],
    [{ seed: -1 }, "from 0 to 2^64 - 1"],
    [{ seed: 1.5 }, "not 1.5"],
    [{ seed: 2 ** 53 }, "as a bigint"],
    [{ seed: 2n ** 64n }, "not 18446744073709551616"],
    [{ temperature: 0.7, topP: 0.9 }, "needs a top-k from 1 to 256"],
  ])("refuse %p", (request, sentence) => {
    const error = errorOf(() => samplingOptions(request));
    expect(error.code).toBe("engine.options");
    expect(error.message).toContain(sentence);
  });

  test("limit the new tokens to whole numbers from 1 on", () => {
    expect(checkMaxNewTokens(1)).toBe(1);
    for (const value of [0, -1, 2.5, Number.NaN]) {
      expect(errorOf(() => checkMaxNewTokens(value)).code).toBe("engine.options");
    }
  });

  test("allow as many candidates as a device finds", () => {
    expect(TOP_K_MAX).toBe(CANDIDATES_MAX);
  });
});

/** The passes over rows of V logits. */
function plan(request: SamplingRequest, V = 1000): SamplingPlan {
  return planSampling(samplingOptions(request), V);
}

describe("passes", () => {
  test("greedy reads the raw logits unless a penalty needs the capped ones", () => {
    const choice = { kind: "greedy" } as const;
    expect(plan({ temperature: 0, topK: 5, topP: 0.5 })).toEqual({
      capped: false,
      penalized: false,
      choice,
    });
    expect(plan({ temperature: 0, repetitionPenalty: 1.1 })).toEqual({
      capped: true,
      penalized: true,
      choice,
    });
  });

  test("temperature 1 is no greedy choice", () => {
    expect(plan({ temperature: 1 }).choice).toEqual({ kind: "gumbel", temperature: 1 });
  });

  test("a top-k asks for so many candidates, at most the vocabulary", () => {
    expect(plan({ topK: 64, topP: 0.9 }).choice).toEqual({ kind: "candidates", count: 64 });
    expect(plan({ topK: 64 }, 10).choice).toEqual({ kind: "candidates", count: 10 });
  });

  test("a temperature beyond float32 is brought to where nothing overflows", () => {
    const { choice: least } = plan({ temperature: 1e-300 });
    expect(least).toEqual({ kind: "gumbel", temperature: 1e-30 });
    const { choice: most } = plan({ temperature: 1e300 });
    expect(most).toEqual({ kind: "gumbel", temperature: 1e30 });
  });
});

describe("seeds", () => {
  test("give the recorded numbers", () => {
    expect(uniformAt(42n, 0)).toBeCloseTo(0.6268105, 7);
    expect(uniformAt(42n, 1)).toBeCloseTo(0.5656946, 7);
  });

  test("give the same number for the same seed and index, others for other indexes", () => {
    const numbers = Array.from({ length: 200 }, (_, index) => uniformAt(7n, index));
    expect(numbers).toEqual(Array.from({ length: 200 }, (_, index) => uniformAt(7n, index)));
    expect(new Set(numbers).size).toBeGreaterThan(198);
    for (const u of numbers) expect(u >= 0 && u < 1).toBe(true);
  });

  test("are spread evenly", () => {
    const counts = new Uint32Array(10);
    for (let index = 0; index < 5000; index += 1) {
      counts[Math.floor(10 * uniformAt(99n, index))]! += 1;
    }
    for (const count of counts) expect(Math.abs(count - 500)).toBeLessThan(110);
  });

  test("wrap at 2^64", () => {
    expect(uniformAt(2n ** 64n - 1n, 1)).toBe(uniformAt(0n, 0));
  });

  test("from the clock are never 0 and differ", () => {
    // The state that SplitMix64 maps to 0.
    const zero = 0x61c8_8646_80b5_83ebn;
    expect(splitmix64(zero)).toBe(0n);
    expect(seedFromClock(zero)).toBe(0x9e37_79b9_7f4a_7c15n);
    expect(seedFromClock(1n)).not.toBe(seedFromClock(2n));
  });

  test("the key of the noise is the reference's", () => {
    for (const index of [0, 1, 77, 100_000]) {
      for (const seed of [0n, 42n, 2n ** 64n - 1n]) {
        const { low, high } = noiseKeyAt(seed, index);
        expect((BigInt(high) << 32n) | BigInt(low)).toBe(noiseKey(seed, index));
      }
    }
    expect(noiseKeyAt(42n, 0)).not.toEqual(noiseKeyAt(42n, 1));
  });

  test("the noise draws each id with its probability", () => {
    const p = [0.5, 0.25, 0.15, 0.1];
    const counts = p.map(() => 0);
    for (let index = 0; index < 2000; index += 1) {
      const { low, high } = noiseKeyAt(5n, index);
      const [id] = gumbel(logitsOf(p), 1, (BigInt(high) << 32n) | BigInt(low));
      counts[id]! += 1;
    }
    counts.forEach((count, id) => expect(count / 2000).toBeCloseTo(p[id]!, 1));
  });
});

describe("the draw", () => {
  test("equals the reference over whole rows", () => {
    const random = createRandom(17);
    let compared = 0;
    for (let round = 0; round < 1500; round += 1) {
      const logits = randomLogits(random, 2 + random.below(60), random.uniform(0, 4));
      // Ties, which go to the lower id.
      if (round % 3 === 0) logits.forEach((logit, id) => (logits[id] = Math.round(logit)));
      const topK = 1 + random.below(70);
      const [topP, temperature] = [1 - random.uniform(0, 1) ** 2, random.uniform(0.05, 3)];
      const u = random.uniform(0, 1 - 1e-6);
      const expected = sampleRow(logits, { temperature, topK, topP }, u);
      // Where a rounding of the float32 mass decides, either answer is right.
      const isAtEdge = [-1e-6, 1e-6].some(
        (shift) =>
          sampleRow(logits, { temperature, topK, topP }, u + shift) !== expected ||
          sampleRow(logits, { temperature, topK, topP: topP + shift }, u) !== expected,
      );
      if (isAtEdge) continue;
      compared += 1;
      expect(draw(logits, { temperature, topK, topP }, u)).toBe(expected);
    }
    expect(compared).toBeGreaterThan(1450);
  });

  test("stays within the top K and the nucleus, and reaches all of them", () => {
    const logits = randomLogits(createRandom(23), 40, 1.5);
    const request = { temperature: 1.3, topK: 8, topP: 0.6 };
    const allowed = sharesOf(logits, request).map(({ id }) => id);
    const drawn = new Set<number>();
    for (let i = 0; i < 2000; i += 1) drawn.add(draw(logits, request, i / 2000));
    expect([...drawn].toSorted((a, b) => a - b)).toEqual(allowed.toSorted((a, b) => a - b));
  });

  test("looks for the nucleus on the mass of the whole row, before the top K", () => {
    // 64 equal tokens share 0.64 of the row, so the nucleus of 0.6 has 60 of them; on the mass of the
    // 64 alone it would have 39.
    const logits = logitsOf([
      ...Array.from({ length: 64 }, () => 0.01),
      ...Array.from({ length: 100 }, () => 0.0036),
    ]);
    const last = 1 - 2 ** -24;
    expect(draw(logits, { topK: 64, topP: 0.595 }, last)).toBe(59);
    // Never reached within the 64: all of them stay, ids 61 to 63 included.
    expect(draw(logits, { topK: 64, topP: 0.9 }, last)).toBe(63);
    expect(draw(logits, { topK: 64, topP: 0.9 }, 61.5 / 64)).toBe(61);
    expect(draw(logits, { topK: 10, topP: 0.9 }, last)).toBe(9);
    const more = reduceRow(logits, 100);
    expect(drawCandidate(more, samplingOptions({ topK: 10, topP: 0.9 }), last)).toBe(9);
  });

  test("temperature changes neither the nucleus nor the top K", () => {
    const logits = logitsOf([0.5, 0.3, 0.15, 0.05]);
    const last = 1 - 2 ** -24;
    for (const temperature of [0.1, 1, 50]) {
      expect(sharesOf(logits, { temperature, topK: 4, topP: 0.75 })).toHaveLength(2);
      expect(draw(logits, { temperature, topK: 4, topP: 0.75 }, last)).toBe(1);
    }
  });

  test("weighs by p^(1/T): high temperatures spread, low ones choose the likeliest", () => {
    const logits = logitsOf([0.7, 0.2, 0.1]);
    const shares = (temperature: number) => {
      const counts = [0, 0, 0];
      for (let i = 0; i < 3000; i += 1) {
        counts[draw(logits, { temperature, topK: 3 }, (i + 0.5) / 3000)]! += 1 / 3000;
      }
      return counts;
    };
    shares(1).forEach((share, id) => expect(share).toBeCloseTo([0.7, 0.2, 0.1][id]!, 2));
    const roots = [0.7, 0.2, 0.1].map((p) => Math.sqrt(p));
    const sum = roots.reduce((a, b) => a + b, 0);
    shares(2).forEach((share, id) => expect(share).toBeCloseTo(roots[id]! / sum, 2));
    shares(1e300).forEach((share) => expect(share).toBeCloseTo(1 / 3, 2));
    expect(shares(0.001)).toEqual([expect.closeTo(1, 9), 0, 0]);
    expect(shares(1e-300)).toEqual([expect.closeTo(1, 9), 0, 0]);
  });

  test("takes vocabularies of one token, huge logits and ties without a NaN", () => {
    expect(draw([3], { topK: 64, topP: 0.5 }, 0.9)).toBe(0);
    expect(draw([3e38, -3e38], { topK: 2 }, 0.999)).toBe(0);
    expect(draw([5, 5, 5, 5], { topK: 2, temperature: 1e-9 }, 0.75)).toBe(1);
    expect(draw([-1e30, -1e30], { topK: 2, topP: 0.5 }, 0.9)).toBe(0);
  });

  test("u = 0 draws the likeliest", () => {
    expect(draw([1, 2, 3], { topK: 3 }, 0)).toBe(2);
  });

  test("refuses rows that are not finite", () => {
    const row = reduceRow([1, Number.NaN, 2, Number.POSITIVE_INFINITY], 1);
    const error = errorOf(() => drawCandidate(row, samplingOptions({ topK: 1 }), 0.5));
    expect(error.code).toBe("engine.logits");
    expect(error.message).toContain("2 logits are not finite");
  });

  test("what is no draw is a programmer error", () => {
    const row = reduceRow([1, 2], 2);
    const options = samplingOptions({ topK: 2 });
    const none: Candidates = { ...row, ids: new Uint32Array(0), values: new Float32Array(0) };
    expect(() => drawCandidate(row, options, 1)).toThrow("0 <= u < 1");
    expect(() => drawCandidate(row, { ...options, temperature: 0 }, 0)).toThrow("a temperature");
    expect(() => drawCandidate(none, options, 0)).toThrow("a candidate");
  });
});

describe("the penalty", () => {
  test("works on capped values, so that saturated logits are suppressed too", () => {
    const raw = [400, 300, -5];
    const seen = new SeenTokens(3);
    for (const id of [0, 0, 0]) seen.add(id);
    const capped = softcap(raw, 30);
    const penalized = penalize(capped, seen.ids, 1.5);
    expect(rankedIds(penalized)[0]).toBe(1);
    expect(draw(penalized, { topK: 3 }, 0.99)).toBe(1);
    // On the raw values it would do nothing: 400 / 1.1 is still capped to 30, and the lower id wins.
    expect(rankedIds(softcap(penalize(raw, seen.ids, 1.1), 30))[0]).toBe(0);
  });

  test("names each token once, in order, and ignores what is outside the vocabulary", () => {
    const seen = new SeenTokens(1000);
    for (const id of [5, 3, 5, 1000, -1, Number.NaN, 3, 999]) seen.add(id);
    expect([...seen.ids]).toEqual([5, 3, 999]);
    for (let id = 0; id < 1000; id += 1) seen.add(id);
    expect([...seen.ids].toSorted((a, b) => a - b)).toEqual([...Array(1000).keys()]);
    seen.clear();
    expect(seen.ids).toHaveLength(0);
    seen.add(7);
    expect([...seen.ids]).toEqual([7]);
  });
});
