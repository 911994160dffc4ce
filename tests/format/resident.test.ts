import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { openRegular } from "../../src/format/files.ts";
import {
  decodeResidentIndex,
  encodeResidentIndex,
  placeResident,
  readResidentIndex,
  type ResidentItem,
} from "../../src/format/resident.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

const ITEMS: readonly ResidentItem[] = [
  { name: "a.weight", dtype: "U32", shape: [2, 64], bytes: 64, scaleBytes: 4, biasBytes: 4 },
  { name: "scalar", dtype: "BF16", shape: [1], bytes: 2, scaleBytes: 0, biasBytes: 0 },
  { name: "é.weight", dtype: "U32", shape: [1, 64], bytes: 32, scaleBytes: 2, biasBytes: 2 },
];
const PAGE = 16_384;

describe("placeResident and encodeResidentIndex", () => {
  test("give the bytes of the known vector", () => {
    const name = "language_model.model.embed_tokens.weight";
    const index = placeResident([
      { name, dtype: "U32", shape: [1, 1], bytes: 16, scaleBytes: 8, biasBytes: 8 },
    ]);
    const region = encodeResidentIndex(index);
    expect(region.length).toBe(PAGE);
    expect(sha256(region)).toBe("aa705246112c17d4b60422a2705bda53e96553f7ff96e09b00e6fbb5a4ffa594");
    expect(index.residentBytes).toBe(32);
  });

  test("pack the payload without padding", () => {
    const offsets = [...placeResident(ITEMS).entries.values()].map(({ offset }) => offset - PAGE);
    expect(offsets).toEqual([0, 72, 74]);
  });

  test("round trip every field", () => {
    const index = placeResident(ITEMS);
    const region = encodeResidentIndex(index);
    expect(decodeResidentIndex(region, PAGE + index.residentBytes)).toEqual(index);
  });

  test.each([
    ["five dimensions", [1, 1, 1, 1, 1]],
    ["no dimension", []],
    ["a dimension of 0", [0]],
    ["a dimension of 2^32", [2 ** 32]],
  ])("refuse %s", (_, shape) => {
    const index = placeResident([{ ...ITEMS[1]!, shape }]);
    expect(() => encodeResidentIndex(index)).toThrow("scalar");
  });
});

describe("decodeResidentIndex", () => {
  const index = placeResident(ITEMS);
  const fileBytes = PAGE + index.residentBytes;
  const entryAt = (entry: number, field: number) => 24 + 72 * entry + field;
  const u64 = (at: number, value: bigint) => (view: DataView) => view.setBigUint64(at, value, true);

  test.each<[string, (view: DataView) => void, string]>([
    ["an entry count of 2^64 - 1", u64(16, 2n ** 64n - 1n), "beyond 2^53"],
    ["an entry count beyond the region", u64(16, 1_000_000n), "do not fit"],
    ["no entry", u64(16, 0n), "lists no tensor"],
    ["a payload that the file does not have", u64(8, 9999n), "but the file has"],
    [
      "a name inside the table",
      (view) => view.setUint32(entryAt(0, 0), 30, true),
      "outside the name table",
    ],
    [
      "a name beyond the region",
      (view) => view.setUint32(entryAt(0, 0), PAGE - 2, true),
      "outside the name table",
    ],
    ["a name of no length", (view) => view.setUint16(entryAt(0, 4), 0, true), "no name"],
    [
      "a name that is no UTF-8",
      (view) => view.setUint8(view.getUint32(entryAt(0, 0), true), 0xff),
      "UTF-8",
    ],
    [
      "a name that appears twice",
      (view) => {
        view.setUint32(entryAt(1, 0), view.getUint32(entryAt(0, 0), true), true);
        view.setUint16(entryAt(1, 4), view.getUint16(entryAt(0, 4), true), true);
      },
      "twice",
    ],
    ["an unknown dtype", (view) => view.setUint8(entryAt(0, 6), 6), "unknown dtype code 6"],
    ["a reserved byte", (view) => view.setUint8(entryAt(0, 7), 1), "reserved byte"],
    [
      "a tensor without bytes",
      (view) => {
        u64(entryAt(1, 8), 0n)(view);
        u64(entryAt(1, 16), 0n)(view);
      },
      "has no bytes",
    ],
    ["a tensor inside the index", u64(entryAt(1, 8), 16n), "outside the payload"],
    ["a tensor beyond the file", u64(entryAt(2, 8), BigInt(fileBytes - 1)), "outside the payload"],
    ["a size of 2^63", u64(entryAt(1, 16), 2n ** 63n), "beyond 2^53"],
    [
      "a dimension of 0 in the middle",
      (view) => {
        view.setUint32(entryAt(0, 24), 0, true);
      },
      "has the shape",
    ],
    ["no dimension at all", (view) => view.setUint32(entryAt(1, 24), 0, true), "has the shape"],
    ["absent scales with an offset", u64(entryAt(1, 40), BigInt(PAGE)), "absent and yet"],
    [
      "scales without biases",
      (view) => {
        u64(entryAt(0, 56), 0n)(view);
        u64(entryAt(0, 64), 0n)(view);
      },
      "not both",
    ],
    ["overlapping tensors", u64(entryAt(1, 8), BigInt(PAGE + 10)), "overlap"],
    ["scales that overlap a tensor", u64(entryAt(0, 40), BigInt(PAGE)), "overlap"],
  ])("refuses %s", (_, damage, sentence) => {
    const region = encodeResidentIndex(index);
    damage(new DataView(region.buffer));
    expect(() => decodeResidentIndex(region, fileBytes)).toThrow(sentence);
    expect(() => decodeResidentIndex(region, fileBytes)).toThrow(
      expect.objectContaining({ code: "format.index" }),
    );
  });
});

describe("readResidentIndex", () => {
  const folder = temporaryFolder();
  const read = (bytes: Uint8Array) => {
    const name = path.join(folder, crypto.randomUUID());
    fs.writeFileSync(name, bytes);
    const file = openRegular(name, { missing: "install.missing", unsafe: "format.path" });
    try {
      return readResidentIndex(file);
    } finally {
      fs.closeSync(file.descriptor);
    }
  };
  const header = (indexBytes: bigint, length: number) => {
    const bytes = new Uint8Array(length);
    new DataView(bytes.buffer).setBigUint64(0, indexBytes, true);
    return bytes;
  };

  test.each([
    ["a file of 8 bytes", new Uint8Array(8), "less than its header"],
    ["an index of no size", header(0n, 100), "not a multiple"],
    ["an index that is no whole page", header(100n, 100), "not a multiple"],
    ["an index beyond the file", header(32_768n, 16_384), "exceeds the file"],
    ["an index beyond the cap", header(2n ** 30n, 100), "exceeds the file"],
    ["an index of 2^63 bytes", header(2n ** 63n, 100), "beyond 2^53"],
  ])("refuses %s", (_, bytes, sentence) => {
    expect(() => read(bytes)).toThrow(sentence);
  });
});
