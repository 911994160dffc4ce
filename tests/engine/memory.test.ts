import { afterAll, expect, test } from "bun:test";
import { complete } from "../../src/engine/generate.ts";
import {
  chooseChunk,
  chooseContext,
  chooseSlots,
  type Gauges,
  MemoryGuard,
  type SlotNeeds,
} from "../../src/engine/memory.ts";
import type { MemoryFacts } from "../../src/util/limits.ts";
import { closeModels, completionOf, loadTiny, openSession, promptOf } from "../fixtures/models.ts";

afterAll(closeModels);

/** A model of 26 billion weights with 4-bit experts at 4096 tokens. */
const NEEDS: SlotNeeds = {
  commonBytes: 1_353_771_068,
  kvBytes: 319_815_680,
  slotBytes: 100_761_600,
  expertCount: 128,
  hasText: false,
  rowBytes: 473_088,
};

/** What a process that has taken 60 MB finds. */
const facts = (usableBytes: number, isLimited: boolean): MemoryFacts => ({
  totalBytes: 64e9,
  availableBytes: isLimited ? 60e9 : usableBytes - 60e6,
  limitBytes: isLimited ? usableBytes : undefined,
  usableBytes: usableBytes - 60e6,
  isExact: true,
});

test.each([
  // Limits of control groups are there to be used.
  [3.6e9, true, 16],
  [2.2e9, true, 3],
  [1.95e9, true, 1],
  [1e9, true, 1],
  [8e9, true, 48],
  [20e9, true, 128],
  // Machines shared with others keep half free, but for the first 16 slots.
  [3.6e9, false, 16],
  [7e9, false, 16],
  [12e9, false, 32],
  [23e9, false, 128],
])("%d bytes, limited %p: %i slots", (bytes, isLimited, slots) => {
  expect(chooseSlots(NEEDS, facts(bytes, isLimited))).toBe(slots);
});

test("a tokenizer takes its share, and small models fit whole", () => {
  expect(chooseSlots({ ...NEEDS, hasText: true }, facts(2.2e9, true))).toBe(2);
  expect(chooseSlots({ ...NEEDS, slotBytes: 1e6, expertCount: 32 }, facts(8e9, false))).toBe(32);
});

test.each([
  // The slots come first, the chunk gets half of what they leave.
  [3.6e9, 16, 256],
  [2.2e9, 3, 128],
  [1e9, 1, 128],
  [8e9, 48, 1024],
  [4.2e9, 16, 512],
  // What is never read again gains nothing from longer ones.
  [20e9, 128, 512],
  [20e9, "resident", 512],
  [14e9, "resident", 128],
] as const)("%d bytes with %p slots: chunks of %i rows", (bytes, slots, rows) => {
  expect(chooseChunk(NEEDS, slots, facts(bytes, true))).toBe(rows);
});

test("a long chunk that is asked for costs slots", () => {
  const choose = (chunkRows: number): number =>
    chooseSlots({ ...NEEDS, chunkRows }, facts(3.6e9, true));
  expect([1, 128, 512, 4096].map(choose)).toEqual([16, 16, 12, 1]);
});

test("where only free memory is known, 16 slots and long chunks are taken", () => {
  const unknown = { ...facts(100e6, false), isExact: false };
  expect(chooseChunk(NEEDS, 16, unknown)).toBe(512);
  expect(chooseSlots(NEEDS, unknown)).toBe(16);
  expect(chooseSlots({ ...NEEDS, expertCount: 8 }, unknown)).toBe(8);
  expect(chooseContext(8192, () => NEEDS, unknown)).toBe(4096);
});

test("the context shrinks before not even a slot fits", () => {
  const needsOf = (rows: number): SlotNeeds => ({ ...NEEDS, kvBytes: rows * 80_000 });
  const choose = (bytes: number, most = 8192): number =>
    chooseContext(most, needsOf, facts(bytes, true));
  expect(choose(3e9)).toBe(4096);
  expect(choose(1.8e9)).toBe(2048);
  expect(choose(1e9)).toBe(512);
  expect(choose(3e9, 300)).toBe(300);
});

/** A guard over a pretended store, and what it looks at. */
function guarded(slots: number | "resident") {
  const state = { slots, usable: 10e9, refaulted: 0, now: 0, isExact: true };
  const store = {
    get slots() {
      return state.slots;
    },
    resize: (count: number) => (state.slots = count),
  };
  const gauges: Gauges = {
    facts: () => ({ ...facts(0, true), usableBytes: state.usable, isExact: state.isExact }),
    refaultedBytes: () => state.refaulted,
    now: () => (state.now += 300),
  };
  return { state, guard: new MemoryGuard(store, NEEDS, gauges) };
}

test("as many slots are given back as memory is short of", () => {
  const { state, guard } = guarded(16);
  expect(guard.look()).toBeUndefined();
  state.usable = NEEDS.commonBytes + 32e6;
  expect(guard.look()).toBeUndefined();
  state.usable -= 250e6;
  expect(guard.look()).toBe(
    "memory is scarce: 13 expert slots of 16 are kept in each layer (302.3 MB given back)",
  );
  state.usable = 0;
  guard.look();
  expect(state.slots).toBe(1);
  expect(guard.look()).toBeUndefined();
});

test("common weights that are read again cost a slot, old refaults none", () => {
  const { state, guard } = guarded(16);
  state.usable = 2 * NEEDS.commonBytes;
  state.refaulted = 50e6;
  expect(guard.look()).toBeUndefined();
  state.refaulted += 90e6;
  expect(guard.look()).toContain("15 expert slots of 16");
  expect(guard.look()).toBeUndefined();
});

test("refaults cost nothing while there is room to spare: they are those of other programs", () => {
  const { state, guard } = guarded(16);
  state.refaulted = 900e6;
  expect(guard.look()).toBeUndefined();
  state.usable = 2 * NEEDS.commonBytes;
  expect(guard.look()).toBeUndefined();
  state.refaulted += 900e6;
  expect(guard.look()).toContain("15 expert slots of 16");
});

test("nothing is done for mapped experts, without knowledge, or twice within a moment", () => {
  for (const change of [{ slots: "resident" as const }, { isExact: false }]) {
    const { state, guard } = guarded(16);
    Object.assign(state, change, { usable: 0 });
    expect(guard.look()).toBeUndefined();
  }
  const { state, guard } = guarded(16);
  guard.look();
  state.usable = 0;
  state.now -= 299;
  expect(guard.look()).toBeUndefined();
});

test("a cache that shrinks between tokens changes nothing of the answer and tells of it", async () => {
  const prompt = promptOf(20);
  const wanted = await complete(openSession(await loadTiny({ slots: 4 })), completionOf(prompt));
  const model = await loadTiny({ slots: 4 });
  const session = openSession(model);
  let [tokens, notices] = [0, 0];
  const relieving = {
    ...model,
    relieve: () => {
      tokens += 1;
      if (tokens !== 4) return undefined;
      const before = model.store.slabBytes;
      model.store.resize(1);
      expect(model.store.slabBytes).toBe(before / 4);
      return "memory is scarce";
    },
  };
  Object.defineProperty(session, "model", { value: relieving });
  const onEvent = ({ type }: { readonly type: string }): void => {
    if (type === "notice") notices += 1;
  };
  const result = await complete(session, completionOf(prompt, { onEvent }));
  expect(result.ids).toEqual(wanted.ids);
  expect([notices, model.store.slots]).toEqual([1, 1]);
});
