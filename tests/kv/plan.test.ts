import { describe, expect, test } from "bun:test";
import {
  BLOCK_ROWS,
  canRewind,
  kvBlocks,
  kvBytes,
  kvLayerBytes,
  kvRows,
  kvSpans,
} from "../../src/kv/plan.ts";
import { createRandom } from "../reference/random.ts";

describe("rows", () => {
  test("of a ring are the window and a block less one, of a full layer the context", () => {
    const extent = { contextRows: 4096, chunkRows: 128 };
    expect(kvRows({ window: 1024 }, extent)).toBe(1151);
    expect(kvRows({ window: 512 }, { contextRows: 4096, chunkRows: 1 })).toBe(512);
    expect(kvRows({}, extent)).toBe(4096);
    expect(kvRows({ window: 0 }, extent)).toBe(4096);
  });

  test("of a ring are as many for every chunk of a block and more", () => {
    const rowsFor = (chunkRows: number) =>
      kvRows({ window: 1024 }, { contextRows: 4096, chunkRows });
    expect([64, 128, 512, 2048, 4096].map(rowsFor)).toEqual([1087, 1151, 1151, 1151, 1151]);
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
    // The total that is published, 319,815,680 bytes, is that of rings of 1152 rows: one more.
    const bytes = 319_815_680 - 25 * 8192;
    expect(kvBytes(layers, { contextRows: 4096, chunkRows: 128 }, 2)).toBe(bytes);
    expect(kvBytes(layers, { contextRows: 4096, chunkRows: 2048 }, 2)).toBe(bytes);
    expect(kvLayerBytes(full, { contextRows: 4097, chunkRows: 128 }, 2)).toBe(4097 * 4096);
    expect(kvLayerBytes(sliding, { contextRows: 4096, chunkRows: 128 }, 4)).toBe(1151 * 16_384);
  });
});

describe("blocks", () => {
  test("are one where nothing is written over, else what a ring takes at once", () => {
    const block = (position: number, count: number) =>
      kvBlocks({ position, count, rows: 1151, window: 1024 }).map(({ first }) => first);
    expect(block(0, 1151)).toEqual([0]);
    expect(block(0, 1152)).toEqual([0, 128, 256, 384, 512, 640, 768, 896, 1024]);
    expect(block(5000, 128)).toEqual([0]);
    expect(block(5000, 257)).toEqual([0, 128, 256]);
    expect(kvBlocks({ position: 0, count: 96, rows: 96, window: 0 })).toEqual([
      { first: 0, count: 96 },
    ]);
  });

  test("refuse a chunk that a cache cannot take", () => {
    expect(() => kvBlocks({ position: 90, count: 7, rows: 96, window: 0 })).toThrow("context");
    expect(() => kvBlocks({ position: 90, count: 7, rows: 8, window: 9 })).toThrow("window");
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

  test.each([4, BLOCK_ROWS + 40])("after it, chunks of %i rows keep what is seen", (chunkRows) => {
    const random = createRandom(5);
    const window = 5;
    const rows = kvRows({ window }, { contextRows: 1e6, chunkRows });
    const ring = new Map<number, number>();
    let [cursor, written, wentBack] = [0, 0, 0];
    for (let round = 0; round < 400; round += 1) {
      const position = Math.max(0, cursor - random.below(6));
      if (random.below(4) === 0 && back(position, written, rows, window)) {
        wentBack += Number(position < cursor);
        cursor = position;
      }
      const count = 1 + random.below(chunkRows);
      for (const block of kvBlocks({ position: cursor, count, rows, window })) {
        const tokens = Array.from({ length: block.count }, (_, i) => cursor + block.first + i);
        for (const token of tokens) ring.set(token % rows, token);
        const lost = tokens.filter((token) => {
          const seen = Array.from({ length: Math.min(window, token + 1) }, (_, i) => token - i);
          return seen.some((position) => ring.get(position % rows) !== position);
        });
        expect(lost).toEqual([]);
      }
      cursor += count;
      written = Math.max(written, cursor);
    }
    expect(wentBack).toBeGreaterThan(20);
  });
});
