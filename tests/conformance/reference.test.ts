/** The references themselves, against published or hand-made numbers. */
import { expect, test } from "bun:test";
import { attention, ropeTable, rotate, softmax } from "../reference/attention.ts";
import { gatedDelta, gatedDeltaInChunks } from "../reference/delta.ts";
import { bf16FromFloat, f16FromFloat, floatFromF16 } from "../reference/half.ts";
import { normRow } from "../reference/norm.ts";
import { createRandom } from "../reference/random.ts";
import { routerTopk } from "../reference/router.ts";
import { candidates, gumbelNoise, penalize, softcap, splitmix64 } from "../reference/sampling.ts";
import { frequencies } from "./attention.ts";

test("half precision rounds to nearest even, below its range to subnormals, above it to infinity", () => {
  const known: [number, number][] = [
    [1, 0x3c00],
    [-2, 0xc000],
    [1 + 1 / 2048, 0x3c00],
    [1 + 3 / 2048, 0x3c02],
    [65_504, 0x7bff],
    [65_519, 0x7bff],
    [65_520, 0x7c00],
    [2 ** -14, 0x0400],
    [2 ** -24, 0x0001],
    [2 ** -25, 0x0000],
    [3 * 2 ** -25, 0x0002],
    [Number.NEGATIVE_INFINITY, 0xfc00],
  ];
  for (const [value, bits] of known) expect([value, f16FromFloat(value)]).toEqual([value, bits]);
  for (let bits = 0; bits < 0x7c00; bits++) expect(f16FromFloat(floatFromF16(bits))).toBe(bits);
});

test("bfloat16 rounds to nearest even", () => {
  expect(bf16FromFloat(Math.sqrt(2816))).toBe(bf16FromFloat(53.0));
  expect(bf16FromFloat(1 + 1 / 256)).toBe(0x3f80);
  expect(bf16FromFloat(1 + 3 / 256)).toBe(0x3f82);
});

test("softcap 30", () => {
  const capped = [...softcap([10, 30, 100, 150, 200, 300], 30)].map((y) => y.toFixed(6));
  const known = ["9.645382", "22.847825", "29.923739", "29.997276", "29.999903", "30.000000"];
  expect(capped).toEqual(known);
});

test("rotary frequencies, pairs and angles", () => {
  const sliding = frequencies(128, 1e4);
  const full = frequencies(256, 1e6, 64);
  expect([sliding[1], sliding[127]].map((f) => f!.toPrecision(7))).toEqual([
    "0.9305720",
    "0.0001074608",
  ]);
  expect([full[1], full[2], full[63]].map((f) => f!.toPrecision(7))).toEqual([
    "0.9474635",
    "0.8976871",
    "0.03337625",
  ]);
  expect(full[64]).toBe(0);
  expect([...rotate(Float64Array.of(1, 2, 3, 4, 5), [0, 1, 1, 0])]).toEqual([-3, 2, 1, 4, 5]);
  const angle = Math.fround(262_143 * Math.fround(sliding[1]!));
  expect(ropeTable(sliding, 1, 262_143)[2]).toBe(Math.cos(angle));
});

test("norms, softmax and attention of small numbers", () => {
  expect([...normRow([3, 4], [1, 2], 0)]).toEqual([3 / Math.sqrt(12.5), (4 / Math.sqrt(12.5)) * 2]);
  expect(softmax([0, Math.log(3)])).toEqual([0.25, 0.75]);
  // One head of width 1 in a ring of 2 rows: token 2 with a window of 2 sees the keys 1 and 2.
  const shape = { T: 1, H: 1, Hkv: 1, Dh: 1, R: 2, position: 2 };
  const inputs = { q: [1], keys: [0, Math.log(3)], values: [10, 20], window: 2, scale: 1 };
  expect(attention(shape, inputs)[0]).toBeCloseTo(17.5, 12);
});

test("the router prefers the lower of equal experts and scales after the softmax", () => {
  const { ids, weights } = routerTopk([1, 2, 2, 0], [1, 4, 2, 1], 2);
  expect([...ids]).toEqual([1, 2]);
  expect([...weights]).toEqual([2, 1]);
});

test("the sampler's passes", () => {
  expect(splitmix64(0n)).toBe(0xe220a8397b1dcdafn);
  expect([...penalize([2, -2, 1], [0, 1], 2)]).toEqual([1, -4, 1]);
  const { ids, mass } = candidates([1, Number.NaN, 3, 3, Number.POSITIVE_INFINITY], 2);
  expect([...ids]).toEqual([2, 3]);
  expect([...mass]).toEqual([3, 2 + Math.exp(-2), 2]);
  const noise = Array.from({ length: 20_000 }, (_, id) => gumbelNoise(12_345n, id));
  // The mean of the Gumbel distribution is Euler's constant; 20,000 draws are within 0.03 of it.
  const mean = noise.reduce((a, b) => a + b, 0) / noise.length;
  expect(Math.abs(mean - 0.5772)).toBeLessThan(0.03);
});

test("the same seed gives the same data", () => {
  expect(createRandom(9).normals(100)).toEqual(createRandom(9).normals(100));
  expect(createRandom(9).normals(100)).not.toEqual(createRandom(10).normals(100));
});

test("the gated delta rule in chunks is the one token after token", () => {
  const shape = { T: 70, C: 2 * 2 * 16 + 4 * 4, Hk: 2, Hv: 4, Dk: 16, Dv: 4 };
  const random = createRandom(70);
  const mixed = random.normals(shape.T * shape.C, 0.2);
  // Decays down to e^-20 in one step: only differences of their logarithms are ever raised.
  const alpha = random.normals(shape.T * shape.Hv, 3).map((x) => -Math.exp(x));
  const beta = random.normals(shape.T * shape.Hv).map((x) => 1 / (1 + Math.exp(-x)));
  const given = { mixed, alpha, beta, state: random.normals(4 * 4 * 16) };
  const wanted = gatedDelta(shape, given);
  for (const chunk of [1, 16, 64, 100]) {
    const found = gatedDeltaInChunks(shape, given, chunk);
    for (const name of ["y", "state"] as const) {
      const largest = Math.max(...wanted[name].map(Math.abs));
      const off = Math.max(...found[name].map((x, i) => Math.abs(x - wanted[name][i]!)));
      expect(off / largest).toBeLessThan(1e-12);
    }
  }
});
