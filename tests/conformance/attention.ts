/** Cases of the rotary table, the KV epilogue and attention, in both cache precisions. */
import {
  attentionF16,
  attentionF32,
  qkEpilogueF16,
  qkEpilogueF32,
  qkvEpilogueF16,
  qkvEpilogueF32,
  ropeTable,
} from "../../src/kernels/attention.ts";
import * as reference from "../reference/attention.ts";
import { bf16FromFloat, f16FromFloat, floatFromF16 } from "../reference/half.ts";
import { fromBf16 } from "../reference/norm.ts";
import { createRandom, type Random } from "../reference/random.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

/** Frequencies of a head of 2 N rotating components; from `live` on they are 0. */
export function frequencies(N: number, theta: number, live = N): Float32Array<ArrayBuffer> {
  return new Float32Array(N).map((_, n) => (n < live ? theta ** (-n / N) : 0));
}

function ropeCase(
  name: string,
  T: number,
  position: number,
  table: () => Float32Array<ArrayBuffer>,
): ConformanceCase {
  return defineCase(ropeTable, `${name}, ${T} rows from ${position}`, () => {
    const values = table();
    return {
      params: { T, N: values.length, position },
      inputs: { frequencies: values },
      expected: { table: reference.ropeTable(values, T, position) },
    };
  });
}

type Cache = Float32Array<ArrayBuffer> | Uint16Array<ArrayBuffer>;

/** Cache contents of either precision, and their values. */
function cacheOf(
  values: Float32Array<ArrayBuffer>,
  isHalf: boolean,
): { stored: Cache; values: ArrayLike<number> } {
  if (!isHalf) return { stored: values, values };
  const stored = Uint16Array.from(values, f16FromFloat);
  return { stored, values: Float64Array.from(stored, floatFromF16) };
}

interface EpilogueShape extends reference.HeadShape {
  /** Rotating pairs. */
  readonly N: number;
  readonly deviation?: number;
  readonly normValues?: boolean;
}

function epilogueCase(name: string, shape: EpilogueShape): ConformanceCase[] {
  const { T, H, Hkv, Dh, R, N, position, deviation = 1, normValues = true } = shape;
  const EPS = 1e-6;
  const build = (isHalf: boolean) => {
    const random = createRandom(T * 1000 + Dh + position);
    const rows = {
      q: random.normals(T * H * Dh, deviation),
      k: random.normals(T * Hkv * Dh, deviation),
      v: random.normals(T * Hkv * Dh, deviation),
    };
    const weights = { qNorm: random.bf16(Dh, 0.5, 1.5), kNorm: random.bf16(Dh, 0.5, 1.5) };
    const table = Float32Array.from(reference.ropeTable(frequencies(N, 1e4), T, position));
    const keys = cacheOf(random.normals(R * Hkv * Dh), isHalf);
    const values = cacheOf(random.normals(R * Hkv * Dh), isHalf);
    return {
      params: { T, H, Hkv, Dh, N, R, position, eps: EPS },
      inputs: { ...rows, ...weights, table, keys: keys.stored, values: values.stored },
      expected: reference.qkvEpilogue(shape, {
        ...rows,
        qNorm: fromBf16(weights.qNorm),
        kNorm: fromBf16(weights.kNorm),
        table: Float64Array.from(table),
        keys: keys.values,
        values: values.values,
        normValues,
        eps: EPS,
      }),
    };
  };
  return [
    defineCase(normValues ? qkvEpilogueF32 : qkEpilogueF32, name, () => build(false)),
    defineCase(normValues ? qkvEpilogueF16 : qkEpilogueF16, name, () => build(true)),
  ];
}

/**
 * Rows of +-1024 at position 0 without an epsilon: keys come out as the very weights, whose half precision
 * is known exactly. The weights go from nothing through subnormal ties to infinity.
 */
const halves = defineCase(qkvEpilogueF16, "halves at the ends of their range, exactly", () => {
  const [Dh, N] = [512, 16];
  const random = createRandom(5);
  const rows = new Float32Array(Dh).map(() => (random.below(2) === 0 ? -1024 : 1024));
  const weights = new Uint16Array(Dh).map((_, d) =>
    bf16FromFloat(2 ** (Math.floor(d / 11) - 27) * (1 + random.below(128) / 128)),
  );
  const table = Float32Array.from({ length: 2 * N }, (_, i) => 1 - (i % 2));
  const stored = new Uint16Array(Dh);
  const shape = { T: 1, H: 1, Hkv: 1, Dh, R: 1, position: 0 };
  const { q, keys, values } = reference.qkvEpilogue(shape, {
    q: rows,
    k: rows,
    v: rows,
    qNorm: fromBf16(weights),
    kNorm: fromBf16(weights),
    table: Float64Array.from(table),
    keys: stored,
    values: stored,
    normValues: true,
    eps: 0,
  });
  return {
    params: { ...shape, N, eps: 0 },
    inputs: {
      q: rows,
      k: rows,
      v: rows,
      qNorm: weights,
      kNorm: weights,
      table,
      keys: stored,
      values: stored,
    },
    expected: { q, keys: keys.map((key) => floatFromF16(f16FromFloat(key))), values },
    exact: ["q", "keys", "values"],
  };
});

interface AttentionShape extends reference.HeadShape {
  readonly window: number;
  readonly scale?: number;
  /** Changes the data before it is used. */
  readonly change?: (values: Float32Array<ArrayBuffer>, random: Random) => void;
  readonly isHeavy?: boolean;
}

function attentionCase(name: string, shape: AttentionShape): ConformanceCase[] {
  const { T, H, Hkv, Dh, R, position, window, scale = 1, isHeavy = false } = shape;
  const build = (isHalf: boolean) => {
    const random = createRandom(position * 31 + T * 1000 + Dh);
    // Dot products of about 3: a softmax that is neither flat nor one-hot.
    const q = random.normals(T * H * Dh, 3 / (scale * Math.sqrt(Dh)));
    const keys = random.normals(R * Hkv * Dh);
    const values = random.normals(R * Hkv * Dh);
    shape.change?.(keys, random);
    const stored = { keys: cacheOf(keys, isHalf), values: cacheOf(values, isHalf) };
    const y = reference.attention(shape, {
      q,
      keys: stored.keys.values,
      values: stored.values.values,
      window,
      scale,
    });
    return {
      params: { T, H, Hkv, Dh, R, position, window, scale },
      inputs: { q, keys: stored.keys.stored, values: stored.values.stored },
      expected: { y },
    };
  };
  return [
    defineCase(attentionF32, name, () => build(false), { isHeavy }),
    defineCase(attentionF16, name, () => build(true), { isHeavy }),
  ];
}

/** Heads of the 26B model: sliding and full layers. */
const SLIDING = { H: 16, Hkv: 8, Dh: 256, window: 1024, R: 1151 } as const;
/** A quarter of them, where the ring is long. */
const QUARTER = { ...SLIDING, H: 4, Hkv: 2 } as const;
const FULL = { H: 16, Hkv: 2, Dh: 512, window: 0 } as const;
/** Heads of the small checkpoints. */
const SMALL = { H: 4, Hkv: 2, Dh: 32 } as const;

export const attentionCases: readonly ConformanceCase[] = [
  ropeCase("sliding head", 1, 0, () => frequencies(128, 1e4)),
  ropeCase("sliding head", 3, 262_141, () => frequencies(128, 1e4)),
  ropeCase("full head, a quarter of it live", 5, 262_139, () => frequencies(256, 1e6, 64)),
  ropeCase("small head", 129, 1000, () => frequencies(16, 1e4)),
  ropeCase("odd number of pairs", 2, 12_345, () => frequencies(37, 1e7)),
  ropeCase("more pairs than threads of a group", 3, 77, () => frequencies(515, 1e6)),

  ...epilogueCase("sliding heads, ring wraps", { ...SLIDING, T: 3, N: 128, position: 2300, R: 32 }),
  ...epilogueCase("full heads", { ...FULL, T: 2, N: 256, position: 9, R: 16 }),
  ...epilogueCase("one token at the last position", {
    ...SLIDING,
    T: 1,
    N: 128,
    position: 262_143,
    R: 5,
  }),
  ...epilogueCase("small heads, odd T", { ...SMALL, T: 7, N: 16, position: 5, R: 8 }),
  ...epilogueCase("values without a norm", {
    T: 2,
    H: 16,
    Hkv: 2,
    Dh: 256,
    N: 32,
    position: 77,
    R: 80,
    normValues: false,
  }),
  ...epilogueCase("heads that do not fill the last group", {
    T: 3,
    H: 9,
    Hkv: 1,
    Dh: 512,
    N: 256,
    position: 40,
    R: 9,
  }),
  ...epilogueCase("part of the head rotates", { ...SMALL, T: 2, N: 5, position: 77, R: 3 }),
  ...epilogueCase("large values", { ...SMALL, T: 2, N: 16, position: 3, R: 5, deviation: 1e4 }),
  halves,
  ...epilogueCase("small values", { ...SMALL, T: 2, N: 16, position: 3, R: 5, deviation: 1e-5 }),

  ...attentionCase("sliding heads, one token", { ...SLIDING, T: 1, position: 300, R: 301 }),
  ...attentionCase("sliding heads, ring full", { ...QUARTER, T: 1, position: 5000 }),
  ...attentionCase("sliding heads, some tokens", { ...QUARTER, T: 3, position: 1500 }),
  ...attentionCase("sliding heads, the last position", { ...QUARTER, T: 1, position: 262_143 }),
  ...attentionCase("sliding heads, a chunk", { ...QUARTER, T: 35, position: 3000, isHeavy: true }),
  ...attentionCase("full heads, first token", { ...FULL, T: 1, position: 0, R: 8 }),
  ...attentionCase("full heads, one token", { ...FULL, T: 1, position: 800, R: 820 }),
  ...attentionCase("full heads, some tokens", { ...FULL, T: 3, position: 90, R: 93 }),
  ...attentionCase("full heads, a chunk", { ...FULL, T: 9, position: 310, R: 319, isHeavy: true }),
  ...attentionCase("small heads, prompt", { ...SMALL, window: 8, T: 70, position: 0, R: 77 }),
  ...attentionCase("small heads, window in a ring", {
    ...SMALL,
    window: 8,
    T: 13,
    position: 100,
    R: 20,
  }),
  ...attentionCase("small heads, no window", { ...SMALL, window: 0, T: 5, position: 300, R: 305 }),
  ...attentionCase("window of one key", { ...SMALL, window: 1, T: 3, position: 255, R: 3 }),
  ...attentionCase("window as long as the past", {
    ...SMALL,
    window: 512,
    T: 3,
    position: 511,
    R: 514,
  }),
  ...attentionCase("one head of 64 for many", {
    H: 36,
    Hkv: 1,
    Dh: 64,
    window: 0,
    T: 3,
    position: 270,
    R: 300,
    scale: 0.125,
  }),
  ...attentionCase("three query heads a group, head dim 80", {
    H: 6,
    Hkv: 2,
    Dh: 80,
    window: 0,
    T: 2,
    position: 40,
    R: 64,
    scale: 0.1,
  }),
  ...attentionCase("one head of 64 for many, a chunk", {
    H: 12,
    Hkv: 1,
    Dh: 64,
    window: 0,
    T: 9,
    position: 90,
    R: 99,
    scale: 0.125,
  }),
  ...attentionCase("three query heads a group, head dim 80, a chunk in a ring", {
    H: 6,
    Hkv: 2,
    Dh: 80,
    window: 33,
    T: 11,
    position: 140,
    R: 43,
    scale: 0.1,
  }),
  ...attentionCase("window of one key, a chunk", {
    ...SMALL,
    window: 1,
    T: 17,
    position: 255,
    R: 17,
  }),
  ...attentionCase("scores that rise along the keys, a chunk", {
    ...SMALL,
    window: 0,
    T: 20,
    position: 100,
    R: 120,
    change: (keys) => {
      for (let i = 0; i < keys.length; i++) keys[i]! *= 1 + Math.floor(i / 64) / 20;
    },
  }),
  ...attentionCase("one key far above the others", {
    ...SMALL,
    window: 0,
    T: 2,
    position: 700,
    R: 702,
    change: (keys) => {
      for (let i = 0; i < 64; i++) keys[600 * 64 + i]! *= 20;
    },
  }),
  ...attentionCase("equal keys", {
    ...SMALL,
    window: 0,
    T: 1,
    position: 999,
    R: 1000,
    change: (keys) => keys.fill(0.25),
  }),
];
