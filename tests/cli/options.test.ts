import { describe, expect, test } from "bun:test";
import {
  readLoadFlags,
  readMaxNew,
  readSamplingFlags,
  resolveSampling,
} from "../../src/cli/options.ts";

test("nothing said is nothing decided", () => {
  expect(readSamplingFlags({})).toEqual({});
  expect(readLoadFlags({})).toEqual({});
  expect(readMaxNew({})).toBe(1024);
});

test("values are read", () => {
  const values = {
    temp: "0.7",
    "top-p": "1",
    "top-k": "0",
    "repetition-penalty": "1.1",
    seed: "18446744073709551615",
  };
  expect(readSamplingFlags(values)).toEqual({
    temperature: 0.7,
    topP: 1,
    topK: 0,
    repetitionPenalty: 1.1,
    seed: 18446744073709551615n,
  });
  expect(readLoadFlags({ slots: "7", context: "100", threads: "2", precision: "exact" })).toEqual({
    slots: 7,
    contextRows: 100,
    threads: 2,
    precision: "exact",
    policy: undefined,
  });
  expect(readLoadFlags({ slots: "resident" }).slots).toBe("resident");
});

test.each([
  [{ temp: "-1" }, '--temp must be a number of at least 0, not "-1"'],
  [{ temp: "" }, "--temp must be"],
  [{ temp: "warm" }, "--temp must be"],
  [{ temp: "1e999" }, "--temp must be"],
  [{ temp: "0x10" }, "--temp must be"],
  [{ "top-p": "0" }, '--top-p must be above 0 and at most 1, not "0"'],
  [{ "top-p": "1.01" }, "--top-p must be"],
  [{ "top-k": "257" }, '--top-k must be a whole number from 0 to 256, not "257"'],
  [{ "top-k": "1.5" }, "--top-k must be"],
  [{ "repetition-penalty": "0" }, "--repetition-penalty must be above 0"],
  [{ seed: "-1" }, "--seed must be a whole number from 0 to 18446744073709551615"],
  [{ seed: "18446744073709551616" }, "--seed must be"],
])("sampling %j is refused", (values, sentence) => {
  expect(() => readSamplingFlags(values)).toThrow(sentence);
});

test.each([
  [{ slots: "0" }, '--slots must be a whole number of at least 1, or "resident", not "0"'],
  [{ slots: "many" }, "--slots must be"],
  [{ context: "0" }, "--context must be a whole number of at least 1"],
  [{ threads: "65" }, "--threads must be a whole number from 1 to 64"],
])("loading with %j is refused", (values, sentence) => {
  expect(() => readLoadFlags(values)).toThrow(sentence);
});

test("--max-new 0 is refused", () => {
  expect(() => readMaxNew({ "max-new": "0" })).toThrow(
    "--max-new must be a whole number of at least 1",
  );
});

describe("resolveSampling", () => {
  test("the user's word goes before the model's, the model's before the program's", () => {
    expect(resolveSampling({ topK: 5 }, { temperature: 0 })).toEqual({
      temperature: 0,
      topK: 5,
      topP: 0.95,
      repetitionPenalty: 1,
    });
    expect(resolveSampling({}, {}).temperature).toBe(0.2);
  });

  test("top-k 0 means none, and needs top-p 1 unless greedy", () => {
    expect(resolveSampling({ topK: 0, topP: 1 }, {}).topK).toBeUndefined();
    expect(resolveSampling({ topK: 0, temperature: 0 }, {}).topK).toBeUndefined();
    expect(() => resolveSampling({ topK: 0 }, {})).toThrow(
      "--top-k 0 at temperature 0.2 needs --top-p 1",
    );
  });
});
