import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import {
  HASH_TILE_BYTES,
  hashDescriptor,
  isSha256,
  sameDigest,
  sha256,
} from "../../src/format/digest.ts";
import { openRegular } from "../../src/format/files.ts";
import { failureOf } from "../fixtures/failures.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

const folder = temporaryFolder();
function open(bytes: Uint8Array) {
  const name = path.join(folder, crypto.randomUUID());
  fs.writeFileSync(name, bytes);
  return openRegular(name, { missing: "install.missing", unsafe: "format.path" });
}

describe("hashDescriptor", () => {
  test.each([0, 1, HASH_TILE_BYTES - 1, HASH_TILE_BYTES, 3 * HASH_TILE_BYTES + 7])(
    "hashes %d bytes as one call would",
    async (length) => {
      const bytes = new Uint8Array(length).map((_, index) => index % 251);
      const file = open(bytes);
      let seen = 0;
      const digest = await hashDescriptor(file.descriptor, file, {
        onBytes: (count) => (seen += count),
      });
      fs.closeSync(file.descriptor);
      expect(digest).toBe(sha256(bytes));
      expect(seen).toBe(length);
    },
  );

  test("of an empty file is the known one", () => {
    expect(sha256("")).toBe("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  });

  test("says when a file ends early", async () => {
    const file = open(new Uint8Array(10));
    const longer = { path: file.path, sizeBytes: 11 };
    const { message } = await failureOf(() => hashDescriptor(file.descriptor, longer));
    expect(message).toContain("ended at 10 bytes");
    fs.closeSync(file.descriptor);
  });

  test("lets the event loop live and stops on a signal", async () => {
    const file = open(new Uint8Array(64 * HASH_TILE_BYTES));
    const controller = new AbortController();
    const { signal } = controller;
    setImmediate(() => controller.abort(new Error("stop")));
    const { message } = await failureOf(() => hashDescriptor(file.descriptor, file, { signal }));
    expect(message).toBe("stop");
    fs.closeSync(file.descriptor);
  });
});

test("digests are compared whatever their case", () => {
  expect(isSha256("aB".repeat(32))).toBe(true);
  expect(isSha256(`${"ab".repeat(31)}xy`)).toBe(false);
  expect(isSha256("ab".repeat(33))).toBe(false);
  expect(sameDigest("aB", "Ab")).toBe(true);
});
