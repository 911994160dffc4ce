import { afterAll, describe, expect, test } from "bun:test";
import { Head } from "../../src/engine/head.ts";
import { loadModel } from "../../src/engine/model.ts";
import { type SamplingRequest, samplingOptions, uniformAt } from "../../src/engine/sampler.ts";
import { Session } from "../../src/engine/session.ts";
import { Device } from "../../src/native/device.ts";
import { Stream } from "../../src/ops/stream.ts";
import { floatsOf, Scratch } from "../../src/ops/tensor.ts";
import { failureOf } from "../fixtures/failures.ts";
import { demoPackage } from "../fixtures/models.ts";
import { library } from "../golden/library.ts";
import { drawShare, noiseKey, rankedIds, sharesOf } from "../reference/sampler.ts";
import { argmax, gumbel, penalize, softcap } from "../reference/sampling.ts";

const CAP = 30;

/** Real logits: what the trained model makes of the beginning of a sentence. */
async function trainedLogits(): Promise<Float32Array<ArrayBuffer>> {
  const model = await loadModel({ directory: await demoPackage(), library, contextRows: 64 });
  const session = new Session(model);
  // Ids without a meaning leave several tokens likely.
  await session.extend(Uint32Array.of(2, 105, 900, 1500, 2400, 3100));
  model.stream.flush();
  const logits = floatsOf(model.forward.logits).slice();
  session.close();
  model.close();
  return logits;
}

const device = new Device({ library, threads: 2 });
const stream = new Stream(device);
const scratch = new Scratch(device);
const raw = await trainedLogits();
const logits = scratch.tensor(1, raw.length);
floatsOf(logits).set(raw);
const heads: Head[] = [];
afterAll(() => {
  for (const head of heads) head.close();
  scratch.close();
  stream.close();
  device.close();
});

function headOf(finalSoftcap = CAP): Head {
  const head = new Head({ stream, logits, finalSoftcap, contextRows: 64 });
  heads.push(head);
  return head;
}

const head = headOf();
const NONE = new Uint32Array(0);

interface Asked extends SamplingRequest {
  readonly seed: number;
  readonly seen?: readonly number[];
  readonly index?: number;
}

function choose({ seen = [], index = 0, ...request }: Asked, by = head): number {
  const options = { ...samplingOptions(request), seed: BigInt(request.seed) };
  return by.choose({ options, index, seen: Uint32Array.from(seen) });
}

/** The row that sampling draws from: capped, then penalized. */
function rowOf({ repetitionPenalty = 1, seen = [] }: Partial<Asked>, cap = CAP): Float64Array {
  return penalize(softcap(raw, cap), seen, repetitionPenalty);
}

const top = rankedIds(raw);

describe("choosing", () => {
  test("the logits are worth sampling from", () => {
    const distinct = new Set(Array.from({ length: 60 }, (_, seed) => choose({ seed })));
    expect(distinct.size).toBeGreaterThan(3);
  });

  test("greedily takes the largest raw logit, and leaves the row raw", () => {
    expect(choose({ temperature: 0, seed: 1 })).toBe(top[0]!);
    expect(choose({ temperature: 0, seed: 2, seen: top.slice(0, 5) })).toBe(top[0]!);
    expect(floatsOf(logits)).toEqual(raw);
  });

  test("greedily with a penalty caps first, penalizes the copy, and leaves the row raw", () => {
    for (const repetitionPenalty of [1.05, 1.5, 4]) {
      for (const seen of [top.slice(0, 1), top.slice(0, 40), []]) {
        const wanted = argmax(rowOf({ repetitionPenalty, seen }))[0];
        expect(choose({ temperature: 0, repetitionPenalty, seen, seed: 1 })).toBe(wanted);
      }
    }
    expect(floatsOf(logits)).toEqual(raw);
  });

  test("without a cap copies the row before it penalizes it", () => {
    const uncapped = headOf(0);
    const asked = { temperature: 0, repetitionPenalty: 4, seen: top.slice(0, 3), seed: 1 };
    expect(choose(asked, uncapped)).toBe(argmax(rowOf(asked, 0))[0]);
    expect(floatsOf(logits)).toEqual(raw);
  });

  const seeds = Array.from({ length: 40 }, (_, i) => 1 + i * 977);

  test.each([
    { topK: 64 },
    { topK: 64, topP: 0.95 },
    { topK: 64, topP: 0.3, temperature: 2 },
    { topK: 1, temperature: 5 },
    { topK: 2, temperature: 100 },
    { topK: 256, temperature: 3 },
    { topK: 5, temperature: 0.2, repetitionPenalty: 1.3, seen: top.slice(0, 30) },
  ])("from candidates draws what the whole row gives: %j", (request: Omit<Asked, "seed">) => {
    const row = Array.from(rowOf(request));
    const { temperature = 1, topK = row.length, topP = 1 } = request;
    const shares = sharesOf(row, { temperature, topK, topP });
    for (const [index, seed] of seeds.entries()) {
      const wanted = drawShare(shares, uniformAt(BigInt(seed), index));
      expect(choose({ ...request, seed, index })).toBe(wanted);
    }
  });

  test.each([
    {},
    { temperature: 0.5 },
    { temperature: 2, repetitionPenalty: 1.2, seen: top.slice(0, 9) },
  ])("from the whole row draws with the noise of its key: %j", (request: Omit<Asked, "seed">) => {
    const row = rowOf(request);
    for (const [index, seed] of seeds.entries()) {
      const key = noiseKey(BigInt(seed), index);
      const wanted = gumbel(row, request.temperature ?? 1, key)[0];
      expect(choose({ ...request, seed, index })).toBe(wanted);
    }
  });

  test("is decided by seed and place alone", () => {
    for (const request of [{ topK: 64 }, {}]) {
      const first = seeds.map((seed, index) => choose({ ...request, seed, index }));
      // Another order, with other choices in between.
      const again = seeds
        .map((seed, index) => ({ seed, index }))
        .toReversed()
        .map(({ seed, index }) => {
          choose({ temperature: 0, repetitionPenalty: 2, seen: top.slice(0, 9), seed: 5 });
          return choose({ ...request, seed, index });
        });
      expect(again.toReversed()).toEqual(first);
      const elsewhere = seeds.map((seed, index) => choose({ ...request, seed, index: index + 1 }));
      expect(elsewhere).not.toEqual(first);
    }
  });
});

describe("memory", () => {
  test("of sampling is made at its first use", () => {
    const fresh = headOf();
    const bare = fresh.scratchBytes;
    choose({ temperature: 0, seed: 1 }, fresh);
    expect(fresh.scratchBytes).toBe(bare);
    choose({ topK: 2, seed: 1 }, fresh);
    expect(fresh.scratchBytes).toBeGreaterThan(bare + 4 * raw.length);
  });
});

describe("logits that are not finite", () => {
  test.each([{ temperature: 0 }, { topK: 4 }, {}, { temperature: 0, repetitionPenalty: 2 }])(
    "are refused with their number: %j",
    async (request) => {
      const damaged = raw.slice();
      damaged[7] = Number.NaN;
      damaged[8000] = Number.NEGATIVE_INFINITY;
      floatsOf(logits).set(damaged);
      const failure = await failureOf(() => choose({ ...request, seed: 1, seen: [...NONE] }));
      floatsOf(logits).set(raw);
      expect(failure.code).toBe("engine.logits");
      // The cap makes a number of an infinity.
      expect(failure.message).toMatch(/^[12] logits are not finite/);
      expect(failure.message).toContain("verify the model and reset the session");
    },
  );
});
