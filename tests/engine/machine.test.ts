import { expect, test } from "bun:test";
import { type ModelNeeds, slotsThatFit } from "../../src/engine/machine.ts";

const NEEDS: ModelNeeds = {
  commonBytes: 1_000_000_000,
  kvBytes: 300_000_000,
  slotBytes: 100_000_000,
  expertCount: 128,
  expertsPerToken: 8,
  contextRows: 4096,
};

test.each([
  [0, 0],
  [1_550_000_000, 0],
  [1_649_999_999, 0],
  [1_650_000_000, 1],
  [3_150_000_000, 16],
  [1e12, 128],
])("%i bytes hold %i slots", (memoryBytes, slots) => {
  expect(slotsThatFit(NEEDS, memoryBytes)).toBe(slots);
});
