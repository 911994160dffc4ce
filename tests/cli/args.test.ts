import { describe, expect, test } from "bun:test";
import {
  type Arguments,
  closest,
  listOf,
  repeatedValues,
  strictArguments,
} from "../../src/cli/args.ts";

const declared: Arguments = {
  model: { type: "positional", required: false },
  prompt: { type: "string", valueHint: "text" },
  stop: { type: "string", isRepeatable: true },
  precision: { type: "enum", options: ["exact", "fast"] },
  quiet: { type: "boolean", alias: "q" },
  think: { type: "boolean", negativeDescription: "do not" },
};

const refusal = (...raw: string[]): string => {
  try {
    strictArguments(raw, declared);
  } catch (error) {
    return (error as Error).message;
  }
  throw new Error(`accepted: ${raw.join(" ")}`);
};

describe("strictArguments", () => {
  test.each([
    [["--prompt", "hi"], ["--prompt=hi"]],
    [["--prompt=a=b"], ["--prompt=a=b"]],
    [["--prompt="], ["--prompt="]],
    // Values that begin with a dash, and values that look like negated flags.
    [["--prompt", "-5"], ["--prompt=-5"]],
    [["--prompt", "--no-such-thing"], ["--prompt=--no-such-thing"]],
    [["--quiet"], ["--quiet"]],
    [["-q"], ["--quiet"]],
    [["--no-think"], ["--no-think"]],
    [
      ["--stop", "a", "--stop", "b"],
      ["--stop=a", "--stop=b"],
    ],
    [
      ["demo", "--quiet"],
      ["--quiet", "--", "demo"],
    ],
    [
      ["--", "--quiet"],
      ["--", "--quiet"],
    ],
    [["-"], ["--", "-"]],
  ])("%j becomes %j", (raw, strict) => {
    expect(strictArguments(raw, declared)).toEqual(strict);
  });

  test("unknown flags are refused, with the one that was meant", () => {
    expect(refusal("--promt", "x")).toBe("unknown flag --promt; did you mean --prompt?");
    expect(refusal("--no-quiet")).toContain("unknown flag --no-quiet");
    expect(refusal("-x")).toContain("unknown flag -x");
    expect(refusal("--zzzzzz")).toContain("the flags are --prompt, --stop, --precision, --quiet");
  });

  test("missing, superfluous and bad values are refused with what is allowed", () => {
    expect(refusal("--prompt")).toBe("--prompt needs a value (text)");
    expect(refusal("--prompt", "--quiet")).toBe("--prompt needs a value (text)");
    expect(refusal("--quiet=yes")).toContain("takes no value");
    expect(refusal("--precision", "half")).toBe('--precision must be exact or fast, not "half"');
    expect(refusal("--prompt", "a", "--prompt", "b")).toContain("given twice");
    expect(refusal("one", "two")).toContain('unexpected argument "two"');
  });

  test("a required plain argument must be there", () => {
    const needy: Arguments = { file: { type: "positional" } };
    expect(() => strictArguments([], needy)).toThrow("FILE is missing");
  });
});

test("repeated values come in order, and not from behind --", () => {
  expect(repeatedValues(["--stop=a", "--prompt=x", "--stop=", "--", "--stop=c"], "stop")).toEqual([
    "a",
    "",
  ]);
});

test("closest finds what is near and nothing else", () => {
  const names = ["chat", "generate", "install"];
  expect(closest("chatt", names)).toBe("chat");
  expect(closest("gene", names)).toBe("generate");
  expect(closest("xyz", names)).toBeUndefined();
});

test("listOf", () => {
  expect([[], ["a"], ["a", "b"], ["a", "b", "c"]].map(listOf)).toEqual([
    "",
    "a",
    "a or b",
    "a, b or c",
  ]);
});
