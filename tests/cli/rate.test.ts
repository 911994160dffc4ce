import { expect, test } from "bun:test";
import { durationText, Rate } from "../../src/cli/rate.ts";

const MIB = 1024 * 1024;

test("says how long it will take once it has seen enough, and holds its word for a while", () => {
  let now = 0;
  const rate = new Rate(() => now);
  const at = (seconds: number, doneMiB: number) => {
    now = 1000 * seconds;
    return rate.update({ doneBytes: doneMiB * MIB, totalBytes: 1000 * MIB });
  };
  // What an earlier run brought is no speed.
  expect(at(0, 100)).toEqual({ bytesPerSecond: undefined, left: undefined });
  expect(at(5, 150)).toEqual({ bytesPerSecond: 10 * MIB, left: undefined });
  expect(at(10, 200).left).toBe("1 min");
  expect(at(39, 210).left).toBe("1 min");
  expect(at(40, 210).left).toBe("5 min");
  expect(at(50, 1000).left).toBeUndefined();
  // Bytes that must come again begin a new count.
  expect(at(60, 90)).toEqual({ bytesPerSecond: undefined, left: undefined });
});

test.each([
  [59, "less than a minute"],
  [390, "7 min"],
  [410, "7 min"],
  [7200, "2 h"],
  [90_000, "more than a day"],
])("%p s are %s", (seconds, text) => {
  expect(durationText(seconds)).toBe(text);
});
