import { expect, test } from "bun:test";
import { checkStops, readIds } from "../../src/cli/generate.ts";

test("ids are read with commas or spaces", () => {
  expect(readIds("2,105, 2364 7\n")).toEqual([2, 105, 2364, 7]);
});

test.each(["x", "1,-2", "1.5", "0x10", "9999999999"])("%s is refused", (text) => {
  expect(() => readIds(text)).toThrow("--ids must be whole numbers");
});

test("an empty list is an empty prompt", () => {
  expect(() => readIds(" , ")).toThrow("holds no token id");
});

test("a text to stop at needs text", () => {
  expect(() => checkStops(["\n"], false)).toThrow("no tokenizer");
  expect(() => checkStops(["\n"], true)).not.toThrow();
  expect(() => checkStops([], false)).not.toThrow();
});
