import { expect, test } from "bun:test";
import { installProgress } from "../../src/cli/load.ts";

test("progress of an install", () => {
  expect(installProgress("reading", 0, 0)).toBe("installing: reading");
  expect(installProgress("copying", 10e6, 40e6)).toBe("installing: copying, 25% of 40.0 MB");
});
