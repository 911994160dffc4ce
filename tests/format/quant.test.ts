import { describe, expect, test } from "bun:test";
import { logicalShape, parseQuantization, quantOf } from "../../src/format/quant.ts";
import type { JsonValue } from "../../src/format/json.ts";

const parse = (quantization: JsonValue) => parseQuantization({ quantization }, "config.json");

describe("parseQuantization", () => {
  test("finds overrides by module and skips notes", () => {
    const quantization = parse({
      bits: 4,
      group_size: 64,
      mode: "affine",
      recipe: "mixed",
      "model.router.proj": { bits: 8, group_size: 64 },
      "model.gate": { bits: 2, group_size: 32 },
    });
    expect(quantization.overrides.size).toBe(2);
    expect(quantOf(quantization, "model.router.proj.weight").bits).toBe(8);
    expect(quantOf(quantization, "model.gate")).toEqual({ bits: 2, groupSize: 32 });
    expect(quantOf(quantization, "model.other.weight").bits).toBe(4);
  });

  test("has the defaults of the format", () => {
    expect(parse({})).toEqual({ bits: 4, groupSize: 64, overrides: new Map() });
  });

  test.each<[string, JsonValue, string]>([
    ["another mode", { mode: "mxfp4" }, "mxfp4"],
    ["3 bits", { bits: 3 }, "3 bits"],
    ["groups of 128", { group_size: 128 }, "groups of 128"],
    ["half a bit", { bits: 4.5 }, "bits"],
    ["a text for bits", { bits: "4" }, "bits"],
    ["an override of 5 bits", { "a.b": { bits: 5 } }, "a.b: 5 bits"],
    ["an override with another group", { "a.b": { bits: 4, group_size: 32 } }, "group size 32"],
    ["an override with another mode", { "a.b": { mode: "mxfp8" } }, "mxfp8"],
    ["a list", [], "quantization"],
  ])("refuses %s", (_, block, sentence) => {
    expect(() => parse(block)).toThrow(sentence);
  });

  test("refuses a checkpoint without the block", () => {
    expect(() => parseQuantization({}, "config.json")).toThrow("not quantized");
  });
});

describe("logicalShape", () => {
  const packed = { name: "m.weight", weight: [3, 16], scales: [3, 2], biases: [3, 2] };

  test("counts values, not words", () => {
    expect(logicalShape(packed, { bits: 4, groupSize: 64 })).toEqual([3, 128]);
    const wide = { ...packed, scales: [3, 1], biases: [3, 1] };
    expect(logicalShape(wide, { bits: 8, groupSize: 64 })).toEqual([3, 64]);
  });

  test.each([
    ["bits that the scales contradict", packed, { bits: 8, groupSize: 64 }],
    ["a group that the scales contradict", packed, { bits: 4, groupSize: 32 }],
    ["biases of another shape", { ...packed, biases: [3, 1] }, { bits: 4, groupSize: 64 }],
    ["scales of other rows", { ...packed, scales: [2, 2] }, { bits: 4, groupSize: 64 }],
    ["half a group", { ...packed, weight: [3, 12] }, { bits: 4, groupSize: 64 }],
  ])("refuses %s", (_, shapes, spec) => {
    expect(() => logicalShape(shapes, spec)).toThrow("m.weight: config.json declares");
  });
});
