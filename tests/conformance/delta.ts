/** Cases of linear attention by the gated delta rule, and of the gates around attention and experts. */
import { outputGate, splitGate } from "../../src/kernels/attention.ts";
import { causalConv, deltaPrepare, gatedDelta, gatedNorm } from "../../src/kernels/delta.ts";
import { gatedShared } from "../../src/kernels/moe.ts";
import { residualNorm } from "../../src/kernels/norm.ts";
import * as reference from "../reference/delta.ts";
import { bf16FromFloat } from "../reference/half.ts";
import { add, fromBf16, rmsNorm } from "../reference/norm.ts";
import { createRandom } from "../reference/random.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

const EPS = 1e-6;

function convCase(T: number, C: number, K: number): ConformanceCase {
  return defineCase(causalConv, `${T} rows of ${C}, ${K} taps`, () => {
    const random = createRandom(T * 7 + C);
    const J = K - 1;
    const x = random.normals(T * C, 2);
    const weight = random.bf16(C * K, -1, 1);
    const tail = random.normals(J * C, 2);
    return {
      params: { T, C, K, J },
      inputs: { x, weight, tail },
      expected: reference.causalConv({ T, C, K }, { x, weight: fromBf16(weight), tail }),
    };
  });
}

interface DeltaCase extends Omit<reference.DeltaShape, "C"> {
  readonly name: string;
  readonly isHeavy?: boolean;
  /** Tokens that the reference takes at a time, instead of one after another. */
  readonly chunk?: number;
}

const widthOf = ({ Hk, Hv, Dk, Dv }: DeltaCase): number => 2 * Hk * Dk + Hv * Dv;

function prepareCase(given: DeltaCase, deviation = 1): ConformanceCase {
  const { T, Hk, Hv, Dk } = given;
  return defineCase(deltaPrepare, `${given.name}, deviation ${deviation}`, () => {
    const random = createRandom(T * 31 + Hv);
    const C = widthOf(given);
    const rows = {
      mixed: random.normals(T * C, deviation),
      alpha: random.normals(T * Hv, 8),
      beta: random.normals(T * Hv, 8),
    };
    // From slow decay to one that forgets everything; the released models reach 16.
    const aLog = Uint16Array.from({ length: Hv }, (_, h) => bf16FromFloat(Math.log(16) - h / 4));
    const dtBias = random.bf16(Hv, -3, 0);
    const weights = { aLog: fromBf16(aLog), dtBias: fromBf16(dtBias) };
    return {
      params: { T, C, Hk, Hv, Dk, eps: EPS },
      inputs: { ...rows, aLog, dtBias },
      expected: reference.deltaPrepare({ ...given, C }, { ...rows, ...weights, eps: EPS }),
    };
  });
}

/** Rows as `delta_prepare` leaves them: unit keys, decays over the whole of (0, 1), steps below 1. */
function deltaCase(given: DeltaCase): ConformanceCase {
  const { T, Hk, Hv, Dk, Dv, name, isHeavy = false, chunk } = given;
  const build = () => {
    const random = createRandom(T + Hv * Dk);
    const C = widthOf(given);
    const mixed = random.normals(T * C);
    for (let t = 0; t < T; t++) {
      for (let h = 0; h < 2 * Hk; h++) {
        const head = mixed.subarray(t * C + h * Dk, t * C + (h + 1) * Dk);
        const length = Math.hypot(...head) * (h < Hk ? Dk ** 0.5 : 1);
        for (let i = 0; i < Dk; i++) head[i]! /= length;
      }
    }
    const alpha = random.normals(T * Hv).map((x, i) => -Math.exp(2 * x - (i % Hv)));
    const beta = random.normals(T * Hv, 2).map(reference.sigmoid);
    const state = random.normals(Hv * Dv * Dk);
    const inputs = { mixed, alpha, beta, state };
    return {
      params: { T, C, Hk, Hv, Dk, Dv },
      inputs,
      expected:
        chunk === undefined
          ? reference.gatedDelta({ ...given, C }, inputs)
          : reference.gatedDeltaInChunks({ ...given, C }, inputs, chunk),
    };
  };
  return defineCase(gatedDelta, name, build, { isHeavy });
}

/** The specification's small numbers, widened with zeros to what kernels take. */
const published = defineCase(gatedDelta, "published numbers of one head", () => {
  const [T, Dk, Dv] = [3, 16, 4];
  const C = 2 * Dk + Dv;
  const q = [0.6, 0.8, 1, 0, 0, 1].map((x) => x / Math.SQRT2);
  const k = [1, 0, 0.6, 0.8, 0, 1];
  const v = [1, 2, 3, -1, -2, 0.5];
  const wanted = [0.21213203, 0.42426407, 1.38592929, -0.1979799, 0.61376869, -0.35284628];
  const mixed = new Float32Array(T * C);
  const y = new Float64Array(T * Dv);
  for (let t = 0; t < T; t++) {
    for (let i = 0; i < 2; i++) {
      mixed[t * C + i] = q[2 * t + i]!;
      mixed[t * C + Dk + i] = k[2 * t + i]!;
      mixed[t * C + 2 * Dk + i] = v[2 * t + i]!;
      y[t * Dv + i] = wanted[2 * t + i]!;
    }
  }
  const state = new Float64Array(Dv * Dk);
  [state[0], state[1], state[Dk], state[Dk + 1]] = [1.568, 0.868, -0.224, -0.499];
  return {
    params: { T, C, Hk: 1, Hv: 1, Dk, Dv },
    inputs: {
      mixed,
      alpha: Float32Array.of(0.9, 0.5, 0.8).map(Math.log),
      beta: Float32Array.of(0.5, 1, 0.25),
      state: new Float32Array(Dv * Dk),
    },
    expected: { y, state },
  };
});

function gatedNormCase(T: number, H: number, D: number): ConformanceCase {
  return defineCase(gatedNorm, `${T} rows of ${H} heads of ${D}`, () => {
    const random = createRandom(T + H * D);
    const x = random.normals(T * H * D, 0.01);
    const gate = random.normals(T * H * D, 6);
    const weight = random.bf16(D, 0.5, 1.5);
    return {
      params: { T, H, D, eps: EPS },
      inputs: { x, gate, weight },
      expected: { y: reference.gatedNorm(x, gate, fromBf16(weight), EPS) },
    };
  });
}

function splitCase(T: number, H: number, Dh: number): ConformanceCase {
  return defineCase(splitGate, `${T} rows of ${H} heads of ${Dh}`, () => {
    const pairs = createRandom(T + Dh).normals(T * H * 2 * Dh);
    const q = pairs.filter((_, i) => Math.floor(i / Dh) % 2 === 0);
    return { params: { T, H, Dh }, inputs: { pairs }, expected: { q }, exact: ["q"] };
  });
}

function outputGateCase(T: number, H: number, Dh: number): ConformanceCase {
  return defineCase(outputGate, `${T} rows of ${H} heads of ${Dh}`, () => {
    const random = createRandom(T + Dh + 1);
    const pairs = random.normals(T * H * 2 * Dh, 20);
    const y = random.normals(T * H * Dh);
    const gates = pairs.filter((_, i) => Math.floor(i / Dh) % 2 === 1);
    const gated = Float64Array.from(y, (value, i) => value * reference.sigmoid(gates[i]!));
    return { params: { T, H, Dh }, inputs: { pairs, y }, expected: { y: gated } };
  });
}

function residualCase(T: number, D: number): ConformanceCase {
  return defineCase(residualNorm, `${T} rows of ${D}`, () => {
    const random = createRandom(T * 3 + D);
    const x = random.normals(T * D, 3);
    const branch = random.normals(T * D, 0.2);
    const weight = random.bf16(D, 0.5, 1.5);
    const sum = add(Float64Array.from(x), Float64Array.from(branch));
    return {
      params: { T, D, eps: EPS },
      inputs: { x, branch, weight },
      expected: { x: sum, y: rmsNorm(sum, fromBf16(weight), EPS) },
    };
  });
}

function sharedCase(T: number, D: number): ConformanceCase {
  return defineCase(gatedShared, `${T} rows of ${D}`, () => {
    const random = createRandom(T * 5 + D);
    const routed = random.normals(T * D);
    const shared = random.normals(T * D, 4);
    const gate = random.normals(T, 12);
    const y = Float64Array.from(routed, (value, i) => {
      return value + shared[i]! * reference.sigmoid(gate[Math.floor(i / D)]!);
    });
    return { params: { T, D }, inputs: { routed, shared, gate }, expected: { y } };
  });
}

/** The heads of Qwen 3.6, fewer of them. */
const REAL = { Hk: 2, Hv: 4, Dk: 128, Dv: 128 };
const DELTAS: readonly DeltaCase[] = [
  { name: "one token, heads of 128", T: 1, ...REAL },
  { name: "chunk of 65", T: 65, ...REAL },
  { name: "all heads of the released model", T: 2, Hk: 16, Hv: 32, Dk: 128, Dv: 128 },
  { name: "key dim 64, value dim 32", T: 5, Hk: 2, Hv: 4, Dk: 64, Dv: 32 },
  { name: "key dim 16, value dim 20", T: 9, Hk: 1, Hv: 3, Dk: 16, Dv: 20 },
  { name: "2,100 tokens", T: 2100, Hk: 1, Hv: 2, Dk: 32, Dv: 8, isHeavy: true },
  // What prefill in chunks would give.
  { name: "chunks of 64", T: 2100, Hk: 1, Hv: 1, Dk: 32, Dv: 8, isHeavy: true, chunk: 64 },
];

export const deltaCases: readonly ConformanceCase[] = [
  convCase(1, 8192, 4),
  convCase(2, 256, 4),
  convCase(3, 100, 4),
  convCase(70, 200, 4),
  convCase(5, 64, 2),
  convCase(4, 33, 1),
  ...DELTAS.slice(0, 5).map((given) => prepareCase(given)),
  prepareCase(DELTAS[3]!, 1e-3),
  ...DELTAS.map(deltaCase),
  published,
  gatedNormCase(1, 32, 128),
  gatedNormCase(3, 5, 32),
  gatedNormCase(66, 2, 36),
  splitCase(1, 16, 256),
  splitCase(5, 3, 20),
  outputGateCase(1, 16, 256),
  outputGateCase(5, 3, 20),
  residualCase(1, 2048),
  residualCase(9, 320),
  residualCase(2, 37),
  sharedCase(1, 2048),
  sharedCase(9, 320),
  sharedCase(2, 37),
];
