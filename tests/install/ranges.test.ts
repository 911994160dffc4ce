import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { HashThreads } from "../../src/install/hashing.ts";
import { planInstall, type Copy } from "../../src/install/plan.ts";
import { indexSha256, planFingerprint, planRanges, rangePieces } from "../../src/install/ranges.ts";
import { openCheckpoint } from "../../src/install/source.ts";
import { GOLDEN, temporaryFolder } from "../fixtures/checkpoints.ts";

const copy = (
  sourceOffset: number,
  bytes: number,
  targetOffset = sourceOffset,
  shard = "s",
): Copy => ({
  shard,
  sourceOffset,
  bytes,
  target: "t",
  targetOffset,
});
const plan = (copies: readonly Copy[], bytes = 1_000_000) => ({
  outputs: [{ path: "t", bytes }],
  copies,
});
const spans = (copies: readonly Copy[], size: number) =>
  planRanges(plan(copies), size).map(({ shard, offset, bytes }) => [shard, offset, bytes]);

describe("planRanges", () => {
  test("joins neighbours, with their gaps, up to the range size", () => {
    expect(spans([copy(0, 10), copy(10, 10), copy(25, 5)], 30)).toEqual([["s", 0, 30]]);
    expect(spans([copy(0, 10), copy(10, 10), copy(25, 5)], 29)).toEqual([
      ["s", 0, 20],
      ["s", 25, 5],
    ]);
  });

  test("splits what is larger and starts anew at another shard", () => {
    expect(spans([copy(3, 25)], 10)).toEqual([
      ["s", 3, 10],
      ["s", 13, 10],
      ["s", 23, 5],
    ]);
    expect(spans([copy(0, 5, 100, "b"), copy(0, 5, 0, "a")], 100)).toEqual([
      ["a", 0, 5],
      ["b", 0, 5],
    ]);
  });

  test("splits what is transformed at whole units", () => {
    const transform = { kind: "unpackInt2ToInt4" } as const;
    const ranges = planRanges(plan([{ ...copy(10, 12, 100), transform }]), 5);
    const pieces = ranges.flatMap(({ copies }) => copies);
    expect(pieces.map(({ sourceOffset }) => sourceOffset)).toEqual([10, 14, 18]);
    expect(pieces.map(({ targetOffset }) => targetOffset)).toEqual([100, 108, 116]);
  });

  test("numbers ranges in sweep order and sorts their copies by target", () => {
    const ranges = planRanges(plan([copy(0, 5, 50), copy(5, 5, 0), copy(900, 5)]), 100);
    expect(ranges.map(({ id }) => id)).toEqual(["range-00000000", "range-00000001"]);
    expect(ranges[0]!.copies.map(({ targetOffset }) => targetOffset)).toEqual([0, 50]);
  });

  test.each<[string, readonly Copy[], string]>([
    ["an empty copy", [copy(0, 0)], "is empty"],
    ["a copy beyond its file", [copy(0, 10, 999_995)], "beyond its 1000000 bytes"],
    ["a copy to another file", [{ ...copy(0, 1), target: "x" }], "not planned"],
    ["two copies that meet", [copy(0, 10, 0), copy(20, 10, 9)], "overlap in t at 9"],
    ["a copy that wraps", [copy(2 ** 53 - 2, 10, 0)], "2^53"],
    ["a target that wraps", [copy(0, 10, 2 ** 53 - 2)], "2^53"],
    [
      "a copy of half a unit",
      [{ ...copy(0, 6), transform: { kind: "unpackInt2ToInt4" } }],
      "no whole number of units",
    ],
    [
      "a repetition that wraps",
      [{ ...copy(0, 2), transform: { kind: "repeatBf16", count: 2 ** 53, isNegated: false } }],
      "2^53",
    ],
  ])("refuses %s", (_, copies, sentence) => {
    expect(() => planRanges(plan(copies))).toThrow(sentence);
  });

  test("covers a fixture without reading a byte twice", async () => {
    const checkpoint = await openCheckpoint(path.join(GOLDEN, "gemma4-a"));
    const { outputs, copies } = planInstall(checkpoint);
    checkpoint.close();
    const ranges = planRanges({ outputs, copies }, 10_000);
    let end = 0;
    for (const range of ranges) {
      expect(range.offset).toBeGreaterThanOrEqual(end);
      expect(range.bytes).toBeLessThanOrEqual(10_000);
      end = range.offset + range.bytes;
    }
    const moved = ranges
      .flatMap((range) => range.copies)
      .reduce((total, piece) => total + piece.bytes, 0);
    expect(moved).toBe(copies.reduce((total, piece) => total + piece.bytes, 0));
  });
});

describe("planFingerprint", () => {
  test("equals the known vector", () => {
    const piece = {
      shard: "source.bin",
      sourceOffset: 4,
      bytes: 8,
      target: "weights.bin",
      targetOffset: 12,
    };
    const outputs = [{ path: "weights.bin", bytes: 32 }];
    const ranges = planRanges({ outputs, copies: [piece] }, 4096);
    const found = planFingerprint({ outputs, indexSha256: "a".repeat(64) }, ranges, 4096);
    expect(found).toBe("fa14918215869b02f0fae5b0de6b05112c505b2c3f2734f8924a8a7adb926581");
  });

  test("changes with the range size and with nothing outside the plan", async () => {
    const checkpoint = await openCheckpoint(path.join(GOLDEN, "gemma4-a-e16"));
    const install = planInstall(checkpoint);
    checkpoint.close();
    const print = (size: number) =>
      planFingerprint(
        { ...install, indexSha256: indexSha256(install) },
        planRanges(install, size),
        size,
      );
    expect(print(100_000)).toBe(print(100_000));
    expect(print(100_000)).not.toBe(print(50_000));
  });
});

describe("known vectors with transforms", () => {
  const piece = {
    shard: "source.bin",
    sourceOffset: 4,
    bytes: 8,
    target: "weights.bin",
    targetOffset: 12,
  };
  const repeat = (isNegated: boolean) => ({ kind: "repeatBf16", count: 2, isNegated }) as const;

  test.each<[string, number, readonly Copy[]]>([
    [
      "cb1a7640e8809944776acd7f9c28524b6c71b22b04c575a9aee7cf7bce43e598",
      32,
      [{ ...piece, transform: { kind: "unpackInt2ToInt4" } }],
    ],
    [
      "69fa09daaee24a58b3440117a66ddc333909600f58b800d26c1e7e0a9bff5598",
      64,
      [
        { ...piece, transform: repeat(false) },
        { ...piece, targetOffset: 28, transform: repeat(true) },
      ],
    ],
  ])("fingerprint %s", (expected, bytes, copies) => {
    const outputs = [{ path: "weights.bin", bytes }];
    const ranges = planRanges({ outputs, copies }, 4096);
    expect(planFingerprint({ outputs, indexSha256: "a".repeat(64) }, ranges, 4096)).toBe(expected);
  });

  test.each<[string, string, Partial<Copy>]>([
    ["b9ae1be999b259f6de9cc3024bee4d145692881e19d17722351cccbf994a1b52", "01020304", {}],
    [
      "5912ebc42907ea06d1f1e475443f8be856416d6a8d1fff74231b0f7092e515b6",
      "0707070707070707",
      { transform: { kind: "unpackInt2ToInt4" } },
    ],
    [
      "de614d242c909d50f68887c89871bfe1fb996bfc1485dd867d6380f57541eef2",
      "0707070707070708",
      { transform: { kind: "unpackInt2ToInt4" } },
    ],
  ])("digest %s of what was written", async (expected, written, change) => {
    const one: Copy = { ...piece, sourceOffset: 0, bytes: 4, targetOffset: 0, ...change };
    const [range] = planRanges(
      { outputs: [{ path: "weights.bin", bytes: 64 }], copies: [one] },
      4096,
    );
    const file = path.join(temporaryFolder(), "weights.bin");
    fs.writeFileSync(file, Uint8Array.fromHex(written));
    const descriptor = fs.openSync(file, "r");
    const pieces = rangePieces(range!, () => ({ descriptor, path: file }));
    expect(await new HashThreads().digest(pieces)).toBe(expected);
    fs.closeSync(descriptor);
  });
});
