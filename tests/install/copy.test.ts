import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { identityOf, openRegular } from "../../src/format/files.ts";
import { copyRanges, TILE_BYTES } from "../../src/install/copy.ts";
import { createTarget, systemIo, type InstallIo } from "../../src/install/durable.ts";
import { planRanges } from "../../src/install/ranges.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

describe("copyRanges", () => {
  test("moves pieces of any size through tiles of 512 KiB at most", async () => {
    const folder = temporaryFolder();
    const source = Buffer.alloc(3 * TILE_BYTES + 100).map((_, index) => (index * 7) % 253);
    fs.writeFileSync(path.join(folder, "s"), source);
    const file = openRegular(path.join(folder, "s"), {
      missing: "install.source",
      unsafe: "install.source",
    });
    const target = createTarget(path.join(folder, "t"), systemIo);
    const sizes: number[] = [];
    const io: InstallIo = {
      ...systemIo,
      write(descriptor, bytes, offset) {
        sizes.push(bytes.length);
        return systemIo.write(descriptor, bytes, offset);
      },
    };
    const shard = { shard: "s", target: "t" };
    const copies = [
      { ...shard, sourceOffset: 0, bytes: 3 * TILE_BYTES, targetOffset: 50 },
      { ...shard, sourceOffset: source.length - 50, bytes: 50, targetOffset: 0 },
    ];
    const ranges = planRanges({ outputs: [{ path: "t", bytes: source.length }], copies });
    let moved = 0;
    await copyRanges(ranges, {
      shards: new Map([["s", { ...file, identity: identityOf(file.descriptor) }]]),
      targets: new Map([["t", target]]),
      io,
      onBytes: (bytes) => (moved += bytes),
    });
    for (const { descriptor } of [file, target]) fs.closeSync(descriptor);
    const expected = Buffer.concat([source.subarray(-50), source.subarray(0, 3 * TILE_BYTES)]);
    expect(Buffer.compare(fs.readFileSync(target.path), expected)).toBe(0);
    expect(Math.max(...sizes)).toBe(TILE_BYTES);
    expect(moved).toBe(expected.length);
  });
});
