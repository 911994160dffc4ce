/** Cases of the passes over the logits of a vocabulary. */
import {
  argmax,
  candidates,
  CANDIDATES_MAX,
  gumbel,
  penalize,
  softcap,
} from "../../src/kernels/sampling.ts";
import { createRandom } from "../reference/random.ts";
import * as reference from "../reference/sampling.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

const V = 262_144;

type Logits = Float32Array<ArrayBuffer>;

const normals = (count: number): Logits => createRandom(count).normals(count, 5);

/** Few different values, so that the largest is found many times. */
const tied = (count: number): Logits => {
  const random = createRandom(count);
  return new Float32Array(count).map(() => random.below(7) - 3);
};

/** A hundred above very many that are alike, which are more than a threadgroup can gather. */
const crowded = (count: number): Logits => {
  const logits = new Float32Array(count).fill(1.5);
  for (let i = 0; i < 100; i++) logits[(i * 7919) % count] = 2 + (i % 40);
  return logits;
};

/** So near each other that their bits differ in the last places only. */
const close = (count: number): Logits =>
  new Float32Array(count).map((_, i) => 8 + ((i * 31) % 4099) * 2 ** -20);

const equal = (count: number): Logits => new Float32Array(count).fill(-2.5);

const rising = (count: number): Logits => new Float32Array(count).map((_, i) => i / 4096);

/** NaN and both infinities among numbers, first and last place too. */
const broken = (count: number): Logits => {
  const logits = normals(count);
  for (let i = 0; i < count; i += 97) logits[i] = Number.NaN;
  for (let i = 5; i < count; i += 203) logits[i] = Number.POSITIVE_INFINITY;
  for (let i = 11; i < count; i += 301) logits[i] = Number.NEGATIVE_INFINITY;
  logits[count - 1] = Number.POSITIVE_INFINITY;
  return logits;
};

const hopeless = (count: number): Logits =>
  new Float32Array(count).map(
    (_, i) => [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY][i % 3]!,
  );

const KINDS = { normals, tied, crowded, close, equal, rising, broken, hopeless } as const;
type Kind = keyof typeof KINDS;

function argmaxCase(kind: Kind, T: number, count: number): ConformanceCase {
  return defineCase(argmax, `${kind}, ${T} rows of ${count}`, () => {
    const logits = KINDS[kind](T * count);
    const result = Array.from({ length: T }, (_, t) =>
      reference.argmax(logits.subarray(t * count, (t + 1) * count)),
    ).flat();
    return { params: { T, V: count }, inputs: { logits }, expected: { result } };
  });
}

function softcapCase(name: string, x: () => Logits, cap: number): ConformanceCase {
  return defineCase(softcap, name, () => {
    const values = x();
    return {
      params: { N: values.length, cap },
      inputs: { x: values },
      expected: { y: reference.softcap(values, cap) },
    };
  });
}

function candidatesCase(kind: Kind, count: number, C: number): ConformanceCase {
  return defineCase(candidates, `${C} of ${kind}, ${count}`, () => {
    const logits = KINDS[kind](count);
    return {
      params: { V: count, C },
      inputs: { logits },
      expected: { ...reference.candidates(logits, C) },
      exact: ["values"],
    };
  });
}

function penalizeCase(count: number, N: number): ConformanceCase {
  return defineCase(penalize, `${N} ids of ${count}`, () => {
    const logits = normals(count);
    logits[0] = 0;
    const ids = new Uint32Array(N).map((_, i) => (i * Math.floor(count / Math.max(N, 1))) % count);
    return {
      params: { V: count, N, penalty: 1.1 },
      inputs: { logits, ids },
      expected: { logits: reference.penalize(logits, ids, 1.1) },
    };
  });
}

function gumbelCase(kind: Kind, count: number, temperature: number, key: bigint): ConformanceCase {
  return defineCase(gumbel, `${kind}, ${count} at ${temperature}, key ${key}`, () => {
    const logits = KINDS[kind](count);
    return {
      params: {
        V: count,
        temperature,
        keyLow: Number(key & 0xffffffffn),
        keyHigh: Number(key >> 32n),
      },
      inputs: { logits },
      expected: { result: reference.gumbel(logits, temperature, key) },
    };
  });
}

export const samplingCases: readonly ConformanceCase[] = [
  argmaxCase("normals", 1, V),
  argmaxCase("tied", 1, V),
  argmaxCase("broken", 1, V),
  argmaxCase("rising", 3, 8193),
  argmaxCase("equal", 2, 8192),
  argmaxCase("broken", 5, 515),
  argmaxCase("hopeless", 2, 300),
  argmaxCase("normals", 4, 1),
  softcapCase(
    "published values and saturation",
    () => Float32Array.of(10, 30, 100, 150, 200, 300, -10, -300, 0, 1e30, -1e-20, 3.4e38),
    30,
  ),
  softcapCase("a vocabulary", () => createRandom(1).normals(V, 40), 30),
  softcapCase("small values", () => createRandom(2).normals(1001, 1e-3), 30),
  softcapCase("another cap", () => createRandom(3).normals(515, 3), 0.75),
  softcapCase("values that are not finite", () => broken(515), 30),
  softcapCase("a cap of 0 copies", () => normals(515), 0),
  penalizeCase(V, 1000),
  penalizeCase(515, 515),
  penalizeCase(515, 0),
  candidatesCase("normals", V, 64),
  candidatesCase("normals", V, CANDIDATES_MAX),
  candidatesCase("tied", V, 64),
  candidatesCase("equal", V, 64),
  candidatesCase("rising", V, CANDIDATES_MAX),
  candidatesCase("crowded", V, 64),
  candidatesCase("crowded", V, CANDIDATES_MAX),
  candidatesCase("close", V, CANDIDATES_MAX),
  candidatesCase("broken", V, 64),
  candidatesCase("normals", 9001, 64),
  candidatesCase("normals", 515, 1),
  candidatesCase("broken", 515, CANDIDATES_MAX),
  candidatesCase("tied", 100, CANDIDATES_MAX),
  candidatesCase("hopeless", 300, 8),
  candidatesCase("normals", 8191, 0),
  gumbelCase("normals", V, 1, 42n),
  gumbelCase("normals", V, 0.2, 0xfedcba9876543210n),
  gumbelCase("equal", V, 1, 7n),
  gumbelCase("broken", V, 1.5, 0xffffffffffffffffn),
  gumbelCase("normals", 9001, 1, 5n),
  gumbelCase("rising", 515, 100, 1n << 40n),
  ...Array.from({ length: 16 }, (_, i) => gumbelCase("normals", 1009, 1, BigInt(i) << 31n)),
  gumbelCase("hopeless", 300, 1, 3n),
];
