import { describe, expect, test } from "bun:test";
import { fraction24, nonzeroSeed, splitmix64, Xorshift64Star } from "../../src/util/random.ts";

describe("splitmix64", () => {
  test("gives the published sequence from state 0", () => {
    const golden = 0x9e37_79b9_7f4a_7c15n;
    expect([0n, golden, 2n * golden].map((state) => splitmix64(state))).toEqual([
      0xe220_a839_7b1d_cdafn,
      0x6e78_9e6a_a1b9_65f4n,
      0x06c4_5d18_8009_454fn,
    ]);
  });

  test("takes any integer modulo 2^64", () => {
    expect(splitmix64(2n ** 64n + 5n)).toBe(splitmix64(5n));
    expect(splitmix64(-1n)).toBe(splitmix64(2n ** 64n - 1n));
  });

  test("as a seed is never 0", () => {
    expect(nonzeroSeed(0x61c8_8646_80b5_83ebn)).toBe(0x9e37_79b9_7f4a_7c15n);
    expect(nonzeroSeed(1n)).toBe(splitmix64(1n));
  });
});

test("xorshift64* moves by its three shifts and multiplies", () => {
  const generator = new Xorshift64Star(1n);
  // By hand: 1 -> 1 ^ 2^13 -> the same ^ (it >> 7) -> the same ^ (it << 17).
  const second = 1n ^ (1n << 13n) ^ (1n << 6n);
  const state = second ^ (second << 17n);
  expect(generator.next()).toBe((state * 2_685_821_657_736_338_717n) % 2n ** 64n);
  expect(() => new Xorshift64Star(0n)).toThrow("from 1");
  expect(() => new Xorshift64Star(2n ** 64n)).toThrow("2^64 - 1");
});

test("a fraction has 24 bits", () => {
  expect(fraction24(0n)).toBe(0);
  expect(fraction24(2n ** 64n - 1n)).toBe(1 - 2 ** -24);
  expect(fraction24(2n ** 63n)).toBe(0.5);
});
