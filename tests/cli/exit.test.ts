import { expect, test } from "bun:test";
import { EXIT, exitCodeOf } from "../../src/cli/exit.ts";
import { type ErrorCode, MferenceError } from "../../src/util/errors.ts";

test.each<[ErrorCode, number]>([
  ["usage.flag", 2],
  ["usage.input", 2],
  ["engine.prompt", 2],
  ["engine.context", 2],
  ["engine.options", 2],
  ["engine.logits", 1],
  ["expert.read", 1],
  ["text.template", 1],
  ["model.none", 3],
  ["model.unknown", 3],
  ["format.manifest", 4],
  ["format.changed", 4],
  ["install.hash", 4],
  ["install.space", 5],
  ["install.busy", 6],
  ["install.exists", 6],
  ["native.build", 7],
  ["native.call", 1],
  ["native.lock", 1],
  ["install.cancelled", 130],
])("%s ends with %i", (code, exit) => {
  expect(exitCodeOf(new MferenceError(code, "x"))).toBe(exit as never);
});

test("anything else is a failure, an abort an interruption", () => {
  expect(exitCodeOf(new Error("x"))).toBe(EXIT.failure);
  expect(exitCodeOf("x")).toBe(EXIT.failure);
  expect(exitCodeOf(new DOMException("x", "AbortError"))).toBe(EXIT.interrupted);
});
