import { afterAll, describe, expect, test } from "bun:test";
import { KvCache } from "../../src/kv/cache.ts";
import { Device } from "../../src/native/device.ts";
import { library } from "../golden/library.ts";

const device = new Device({ library, threads: 1 });
afterAll(() => device.close());

const SLIDING = { kvHeads: 2, headDim: 16, window: 8 };
const FULL = { kvHeads: 1, headDim: 32 };

function cacheOf(dtype: "f32" | "f16" = "f32"): KvCache {
  return new KvCache(device, { layers: [SLIDING, FULL], contextRows: 40, chunkRows: 4, dtype });
}

/** Writes `count` rows in chunks, as a session does. */
function write(cache: KvCache, count: number, chunk = 4): void {
  for (let done = 0; done < count; done += chunk) {
    const rows = Math.min(chunk, count - done);
    cache.begin(rows);
    cache.advance(rows);
  }
}

describe("a cache", () => {
  test("has a ring for a window and every row for full attention, in either width", () => {
    for (const [dtype, bytes] of [
      ["f32", 4],
      ["f16", 2],
    ] as const) {
      const cache = cacheOf(dtype);
      expect([cache.view(0).rows, cache.view(1).rows]).toEqual([11, 40]);
      expect(cache.contents(0).keys.byteLength).toBe(bytes * 11 * 32);
      expect(cache.contents(1).values.byteLength).toBe(bytes * 40 * 32);
      expect(cache.byteLength).toBe(2 * bytes * (11 + 40) * 32);
      expect(cache.view(0).keys.buffer.id).toBe(cache.contents(0).keys.id);
      cache.close();
    }
  });

  test("goes back as far as its ring still holds what the window sees", () => {
    const cache = cacheOf();
    write(cache, 20);
    // Position 16 sees 9 to 16; the ring holds 9 to 19.
    expect(cache.canRewind(16)).toBe(true);
    expect(cache.canRewind(15)).toBe(false);
    expect(cache.canRewind(0)).toBe(true);
    expect(cache.canRewind(21)).toBe(false);
    cache.close();
  });

  test("remembers what its rings have forgotten when it went back and on again", () => {
    const cache = cacheOf();
    write(cache, 20);
    cache.rewind(17);
    expect(cache.cursor).toBe(17);
    // Rows 17 to 19 are still those of positions up to 19: nothing older has come back.
    expect(cache.canRewind(15)).toBe(false);
    expect(cache.canRewind(16)).toBe(true);
    expect(cache.canRewind(18)).toBe(false);
    write(cache, 2);
    expect(cache.canRewind(16)).toBe(true);
    write(cache, 4);
    expect(cache.cursor).toBe(23);
    expect(cache.canRewind(18)).toBe(false);
    expect(cache.canRewind(19)).toBe(true);
    cache.close();
  });

  test("counts rows as written when they are begun, whether they were completed or not", () => {
    const cache = cacheOf();
    write(cache, 16);
    cache.begin(4);
    expect(cache.cursor).toBe(16);
    // A chunk that was cancelled may be written again: the ring is a chunk longer than the window.
    expect(cache.canRewind(16)).toBe(true);
    expect(cache.canRewind(15)).toBe(false);
    cache.close();
  });

  test("forgets everything", () => {
    const cache = cacheOf();
    write(cache, 20);
    cache.reset();
    expect(cache.cursor).toBe(0);
    write(cache, 3);
    expect(cache.canRewind(1)).toBe(true);
    cache.close();
  });

  test("gives its memory back", () => {
    const before = device.counters().bufferBytes;
    const cache = cacheOf();
    expect(device.counters().bufferBytes).toBe(before + cache.byteLength);
    cache.close();
    expect(device.counters().bufferBytes).toBe(before);
  });
});
