import { describe, expect, test } from "bun:test";
import { canRewind, kvBytes, kvLayerBytes, kvRows, kvSpans } from "../../src/kv/plan.ts";
import { createRandom } from "../reference/random.ts";

describe("rows", () => {
  test("of a ring are the window and a chunk less one, of a full layer the context", () => {
    const extent = { contextRows: 4096, chunkRows: 128 };
    expect(kvRows({ window: 1024 }, extent)).toBe(1151);
    expect(kvRows({ window: 512 }, { contextRows: 4096, chunkRows: 1 })).toBe(512);
    expect(kvRows({}, extent)).toBe(4096);
    expect(kvRows({ window: 0 }, extent)).toBe(4096);
  });

  test("never exceed the context", () => {
    expect(kvRows({ window: 1024 }, { contextRows: 100, chunkRows: 128 })).toBe(100);
    expect(kvRows({ window: 1024 }, { contextRows: 1151, chunkRows: 128 })).toBe(1151);
  });

  test("refuse extents that are no number of rows", () => {
    expect(() => kvRows({}, { contextRows: 0, chunkRows: 1 })).toThrow("a context");
    expect(() => kvRows({ window: 4 }, { contextRows: 8, chunkRows: 0.5 })).toThrow("a chunk");
    expect(() => kvRows({ window: -1 }, { contextRows: 8, chunkRows: 1 })).toThrow("a window");
  });

  test("weigh what 25 sliding and 5 full layers weigh at 4096 positions", () => {
    const sliding = { kvHeads: 8, headDim: 256, window: 1024 };
    const full = { kvHeads: 2, headDim: 512 };
    const layers = Array.from({ length: 30 }, (_, i) => (i % 6 === 5 ? full : sliding));
    // 129 new rows at once ask for the 1152 rows whose total is published: 319,815,680 bytes.
    expect(kvBytes(layers, { contextRows: 4096, chunkRows: 129 }, 2)).toBe(319_815_680);
    expect(kvLayerBytes(full, { contextRows: 4097, chunkRows: 128 }, 2)).toBe(4097 * 4096);
    expect(kvLayerBytes(sliding, { contextRows: 4096, chunkRows: 128 }, 4)).toBe(1151 * 16_384);
  });
});

describe("spans", () => {
  test("are one where the rows are contiguous and two where the ring wraps", () => {
    expect(kvSpans(0, 4, 10)).toEqual([{ row: 0, position: 0, count: 4 }]);
    expect(kvSpans(16, 4, 10)).toEqual([{ row: 6, position: 16, count: 4 }]);
    expect(kvSpans(28, 5, 10)).toEqual([
      { row: 8, position: 28, count: 2 },
      { row: 0, position: 30, count: 3 },
    ]);
    expect(kvSpans(3, 0, 10)).toEqual([]);
    expect(() => kvSpans(0, 11, 10)).toThrow("each row once");
  });

  test("give each position the row `position mod rows`", () => {
    for (let position = 0; position < 20; position += 1) {
      for (let count = 0; count <= 7; count += 1) {
        const rows = kvSpans(position, count, 7).flatMap((span) =>
          Array.from({ length: span.count }, (_, i) => [span.position + i, span.row + i]),
        );
        const expected = Array.from({ length: count }, (_, i) => [
          position + i,
          (position + i) % 7,
        ]);
        expect(rows).toEqual(expected);
      }
    }
  });
});

function back(position: number, written: number, rows: number, window?: number): boolean {
  return canRewind({ position, written, rows, shape: { window } });
}

describe("going back", () => {
  test("is always possible in a linear cache, to anywhere that was written", () => {
    expect([0, 5, 100].map((position) => back(position, 100, 128))).toEqual([true, true, true]);
    expect(back(101, 100, 128)).toBe(false);
    expect(back(-1, 100, 128)).toBe(false);
  });

  test("is possible in a ring as far as it holds the window", () => {
    // 20 positions in 11 rows: 9 to 19 are kept; a window of 8 at position p sees from p - 7 on.
    expect(back(20, 20, 11, 8)).toBe(true);
    expect(back(16, 20, 11, 8)).toBe(true);
    expect(back(15, 20, 11, 8)).toBe(false);
    expect(back(1, 20, 11, 8)).toBe(false);
    expect(back(0, 20, 11, 8)).toBe(true);
    expect(back(3, 11, 11, 8)).toBe(true);
  });

  test("says yes exactly when a ring that was really written holds every row that is seen", () => {
    const random = createRandom(3);
    const answers = { yes: 0, no: 0 };
    for (let round = 0; round < 300; round += 1) {
      const window = 1 + random.below(6);
      const rows = window + random.below(5);
      const written = random.below(30);
      const ring = new Map<number, number>();
      for (let position = 0; position < written; position += 1) ring.set(position % rows, position);
      const position = random.below(written + 1);
      let isHeld = true;
      for (let seen = Math.max(0, position - window + 1); seen < position; seen += 1) {
        isHeld &&= ring.get(seen % rows) === seen;
      }
      expect(back(position, written, rows, window)).toBe(isHeld);
      answers[isHeld ? "yes" : "no"] += 1;
    }
    expect(Math.min(answers.yes, answers.no)).toBeGreaterThan(30);
  });

  test("after it, chunks keep every row that their tokens see", () => {
    const random = createRandom(5);
    const [window, chunkRows] = [5, 4];
    const rows = kvRows({ window }, { contextRows: 1000, chunkRows });
    const ring = new Map<number, number>();
    let [cursor, written, wentBack] = [0, 0, 0];
    for (let round = 0; round < 400; round += 1) {
      const position = Math.max(0, cursor - random.below(6));
      if (random.below(4) === 0 && back(position, written, rows, window)) {
        wentBack += Number(position < cursor);
        cursor = position;
      }
      const count = 1 + random.below(chunkRows);
      for (let i = 0; i < count; i += 1) ring.set((cursor + i) % rows, cursor + i);
      for (let i = 0; i < count; i += 1) {
        const token = cursor + i;
        for (let seen = Math.max(0, token - window + 1); seen <= token; seen += 1) {
          expect(ring.get(seen % rows)).toBe(seen);
        }
      }
      cursor += count;
      written = Math.max(written, cursor);
    }
    expect(wentBack).toBeGreaterThan(20);
  });
});
