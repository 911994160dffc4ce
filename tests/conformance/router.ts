/** Cases of the choice of experts and of the sum of their results. */
import { routedReduce, routerTopk, slotLookup } from "../../src/kernels/moe.ts";
import { fromBf16 } from "../reference/norm.ts";
import { createRandom } from "../reference/random.ts";
import * as reference from "../reference/router.ts";
import { type ConformanceCase, defineCase } from "./cases.ts";

interface TopkShape {
  readonly T: number;
  readonly E: number;
  readonly K: number;
}

function topkCase(
  name: string,
  { T, E, K }: TopkShape,
  scoresOf: (count: number) => Float32Array<ArrayBuffer>,
): ConformanceCase {
  return defineCase(routerTopk, `${name}: ${K} of ${E} experts for ${T} tokens`, () => {
    const scores = scoresOf(T * E);
    const expertScale = createRandom(E).bf16(E, 0.5, 1.5);
    return {
      params: { T, E, K },
      inputs: { scores, expertScale },
      expected: reference.routerTopk(scores, fromBf16(expertScale), K),
    };
  });
}

const normals = (count: number): Float32Array<ArrayBuffer> => createRandom(count).normals(count, 2);

/** Few different values, so that most comparisons are ties; both zeros among them. */
const tied = (count: number): Float32Array<ArrayBuffer> => {
  const random = createRandom(count);
  return new Float32Array(count).map(() => [-1, -0, 0, 1, 2][random.below(5)]!);
};

/** Differences that underflow the exponential. */
const steep = (count: number): Float32Array<ArrayBuffer> => createRandom(count).normals(count, 200);

function reduceCase(T: number, K: number, D: number): ConformanceCase {
  return defineCase(routedReduce, `${T} tokens of ${K} experts, ${D} components`, () => {
    const random = createRandom(T * 4096 + D + K);
    const experts = random.normals(T * K * D);
    const weights = Float32Array.from({ length: T * K }, () => random.uniform(0, 0.4));
    return {
      params: { T, K, D },
      inputs: { experts, weights },
      expected: { y: reference.routedReduce(experts, weights, { T, K, D }) },
    };
  });
}

/** Experts in slots in an order of their own, every third in none; the routes name others. */
function lookupCase(P: number, E: number): ConformanceCase {
  return defineCase(slotLookup, `${P} pairs, ${E} experts`, () => {
    const random = createRandom(P * 512 + E);
    const slots = random.distinct(E, E);
    const table = Uint32Array.from(slots, (slot) => (slot % 3 === 2 ? 0xffff_ffff : slot));
    const cached = [...table.keys()].filter((expert) => table[expert]! < E);
    const ids = Uint32Array.from({ length: P }, () => cached[random.below(cached.length)]!);
    return {
      params: { P, E, S: E },
      inputs: { ids, table },
      expected: { groups: [...ids].flatMap((id, pair) => [slots[id]!, pair, 1, 0]) },
    };
  });
}

export const routerCases: readonly ConformanceCase[] = [
  topkCase("one token", { T: 1, E: 128, K: 8 }, normals),
  topkCase("a chunk", { T: 33, E: 128, K: 8 }, normals),
  topkCase("a small router", { T: 5, E: 8, K: 2 }, normals),
  topkCase("every expert", { T: 3, E: 16, K: 16 }, normals),
  topkCase("one expert", { T: 3, E: 1, K: 1 }, normals),
  topkCase("many experts", { T: 3, E: 512, K: 16 }, normals),
  topkCase("ties", { T: 9, E: 128, K: 8 }, tied),
  topkCase("steep scores", { T: 4, E: 128, K: 8 }, steep),
  reduceCase(1, 8, 2816),
  reduceCase(5, 8, 2816),
  reduceCase(3, 2, 128),
  reduceCase(2, 1, 37),
  reduceCase(1, 16, 1027),
  lookupCase(8, 128),
  lookupCase(2, 8),
  lookupCase(1, 1),
  lookupCase(67, 256),
];
