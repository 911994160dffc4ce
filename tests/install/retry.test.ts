import { expect, test } from "bun:test";
import { MferenceError } from "../../src/util/errors.ts";
import {
  delayMs,
  retryAfterMs,
  retrying,
  systemClock,
  type Clock,
} from "../../src/install/retry.ts";

const NOW = Date.UTC(2026, 10, 30, 12, 0, 0);
const clock: Clock = {
  now: () => NOW,
  random: () => 0.999,
  sleep: async () => await Promise.resolve(),
};
const policy = { attempts: 3, baseMs: 1000, clock };

test("delays double up to a bound, with a little chance", () => {
  expect([1, 2, 3, 4, 5, 9].map((count) => delayMs(count, policy))).toEqual([
    1249, 2249, 4249, 8249, 16_249, 16_249,
  ]);
  expect(delayMs(3, { ...policy, baseMs: 0 })).toBe(0);
});

test.each([
  [null, undefined],
  ["0", 0],
  ["3600", 3_600_000],
  ["Mon, 30 Nov 2026 12:01:00 GMT", 60_000],
  ["Mon, 30 Nov 2026 11:00:00 GMT", 0],
])("Retry-After %p", (header, ms) => {
  expect(retryAfterMs(header, NOW)).toBe(ms);
});

test.each(["3601", "-5", "1.5", "soon", "", "Mon, 30 Nov 2026 14:00:00 GMT", "9".repeat(20)])(
  "Retry-After %p is not followed",
  (header) => {
    expect(() => retryAfterMs(header, NOW)).toThrow(MferenceError);
  },
);

test("tries as often as it may, and waits at least as long as it is told", async () => {
  const slept: number[] = [];
  const again = new MferenceError("install.network", "it was away");
  const noting = {
    ...clock,
    sleep: async (ms: number) => void (await Promise.resolve(slept.push(ms))),
  };
  const attempt = () => Promise.resolve({ again, afterMs: 1500 });
  const failing = retrying(attempt, { ...policy, clock: noting }, undefined);
  expect(await failing.catch((error: unknown) => (error as Error).message)).toBe(
    "it was away (after 3 attempts)",
  );
  expect(slept).toEqual([1500, 2249]);
});

test("each wait is told of, with its reason", async () => {
  const told: [string, number][] = [];
  const onWait = (failure: MferenceError, ms: number): void =>
    void told.push([failure.message, ms]);
  const again = new MferenceError("install.network", "it was away");
  let left = 2;
  const attempt = async () =>
    await Promise.resolve(left-- > 0 ? { again, afterMs: 5000 } : { value: 1 });
  const quick = { ...clock, sleep: () => Promise.resolve() };
  await retrying<number>(attempt, { attempts: 4, baseMs: 1, clock: quick, onWait }, undefined);
  expect(told).toEqual([
    ["it was away", 5000],
    ["it was away", 5000],
  ]);
});

test("a signal ends the wait", async () => {
  const controller = new AbortController();
  setTimeout(() => controller.abort(new Error("enough")), 10);
  const waiting = systemClock.sleep(60_000, controller.signal);
  expect(await waiting.catch((error: unknown) => (error as Error).message)).toBe("enough");
});
