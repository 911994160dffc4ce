import { expect, test } from "bun:test";
import { figuresOf, report } from "../../src/cli/bench.ts";
import type { GenerateStats } from "../../src/engine/protocol.ts";

const statsOf = (seconds: number): GenerateStats => ({
  promptTokens: 256,
  cachedTokens: 0,
  prefillSeconds: seconds,
  newTokens: 33,
  decodeSeconds: seconds,
  firstTokenSeconds: 0.1,
  hits: 30,
  misses: 10,
  allHitLayers: 0,
  layers: 5,
  bytesRead: 320e6,
  readSeconds: seconds / 2,
  deviceWaitSeconds: seconds / 4,
  peakMemoryBytes: 2e9,
});

test("the figures are medians, and the first token of an answer is none of its decoding", () => {
  const runs = [4, 1, 2].map((seconds) => ({
    prefill: statsOf(seconds),
    decode: statsOf(seconds),
  }));
  const figures = figuresOf(runs, { model: "big", slots: 16, diskBytesPerSecond: undefined });
  expect(figures).toMatchObject({
    promptTokensPerSecond: 128,
    tokensPerSecond: 16,
    hitRate: 0.75,
    bytesReadPerToken: 10e6,
    readShare: 0.5,
    deviceShare: 0.25,
    peakMemoryBytes: 2e9,
  });
  const text = report(figures);
  expect(text).toContain("answers  16.00 tokens/s");
  expect(text).toContain("75% cached, 10.0 MB read for each token");
  expect(text).toContain("not measured");
});
