import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { HASH_THREADS, HashThreads, type FilePiece } from "../../src/install/hashing.ts";
import { createRandom } from "../reference/random.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";

/** More than is hashed without a thread, and no whole number of batches. */
const BYTES = 34_000_001;
const noise = createRandom(3).bytes(1_000_003);

const threads = new HashThreads();
let file: FilePiece;
let content: Buffer;

beforeAll(() => {
  content = Buffer.alloc(BYTES, noise);
  const place = path.join(temporaryFolder(), "file");
  fs.writeFileSync(place, content);
  file = { descriptor: fs.openSync(place, "r"), path: place, offset: 0, bytes: BYTES };
});
afterAll(() => {
  threads.close();
  fs.closeSync(file.descriptor);
});

describe("HashThreads", () => {
  test("hashes words and parts of files in their order, on a thread or at once", async () => {
    const words = new TextEncoder().encode("words");
    for (const bytes of [0, 5, 4_194_304, 33_554_432, BYTES - 7]) {
      const part = { ...file, offset: 7, bytes };
      const expected = [words, content.subarray(7, 7 + bytes), words, content.subarray(0, 3)];
      const counts: number[] = [];
      const digest = await threads.digest([words, part, words, { ...file, bytes: 3 }], {
        onBytes: (count) => counts.push(count),
      });
      expect([bytes, digest]).toEqual([bytes, sha256(Buffer.concat(expected))]);
      expect(counts.reduce((sum, count) => sum + count, 0)).toBe(bytes + 13);
    }
  });

  test("hashes more at once than there are threads without mixing them", async () => {
    const offsets = Array.from({ length: 2 * HASH_THREADS + 1 }, (_, index) => index);
    const digests = await Promise.all(
      offsets.map((offset) => threads.digest([{ ...file, offset, bytes: 5_000_000 }])),
    );
    const expected = offsets.map((offset) => sha256(content.subarray(offset, offset + 5e6)));
    expect(digests).toEqual(expected);
  });

  test("says when a file ends early, and goes on with others", async () => {
    for (const bytes of [1, BYTES]) {
      const late = { ...file, offset: BYTES - bytes + 1, bytes };
      const { code, message } = await failureOf(() => threads.digest([late]));
      expect(code).toBe("install.io");
      expect(message).toContain(`${file.path} ended early`);
    }
    expect(await threads.digest([file])).toBe(sha256(content));
  });

  test("ends with the reason of a signal, and with a sentence when it is closed", async () => {
    const controller = new AbortController();
    const work = threads.digest([file], {
      signal: controller.signal,
      onBytes: () => controller.abort(new Error("enough")),
    });
    expect((await failureOf(() => work)).message).toBe("enough");
    const closed = failureOf(() => threads.digest([file]));
    threads.close();
    expect((await closed).message).toContain("it was closed");
  });
});
