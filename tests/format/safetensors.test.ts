import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { openRegular } from "../../src/format/files.ts";
import { readSafetensors } from "../../src/format/safetensors.ts";
import { decodeSafetensors, GOLDEN, temporaryFolder } from "../fixtures/checkpoints.ts";

const OPEN = { missing: "install.source", unsafe: "install.source" } as const;
const folder = temporaryFolder();

function readFile(bytes: Uint8Array) {
  const file = path.join(folder, `${crypto.randomUUID()}.safetensors`);
  fs.writeFileSync(file, bytes);
  const open = openRegular(file, OPEN);
  try {
    return readSafetensors(open);
  } finally {
    fs.closeSync(open.descriptor);
  }
}

/** A file with this header text and that many bytes of data. */
function fileOf(header: string | Uint8Array, dataBytes: number, declared?: bigint): Uint8Array {
  const text = typeof header === "string" ? new TextEncoder().encode(header) : header;
  const bytes = new Uint8Array(8 + text.length + dataBytes);
  new DataView(bytes.buffer).setBigUint64(0, declared ?? BigInt(text.length), true);
  bytes.set(text, 8);
  return bytes;
}

const entry = (begin: number, end: number, shape: unknown = [(end - begin) / 4]) =>
  `{"dtype":"F32","shape":${JSON.stringify(shape)},"data_offsets":[${begin},${end}]}`;

describe("readSafetensors", () => {
  test("agrees with a plain reading of a fixture", () => {
    const file = path.join(GOLDEN, "gemma4-a", "model.safetensors");
    const bytes = fs.readFileSync(file);
    const open = openRegular(file, OPEN);
    const found = readSafetensors(open);
    fs.closeSync(open.descriptor);
    const expected = decodeSafetensors(bytes);
    expect([...found.keys()]).toEqual([...expected.keys()]);
    for (const [name, tensor] of expected) {
      const { dtype, shape, offset, bytes: size } = found.get(name)!;
      expect({ dtype, shape: [...shape] }).toEqual({
        dtype: tensor.dtype as never,
        shape: tensor.shape,
      });
      expect(Buffer.compare(bytes.subarray(offset, offset + size), tensor.bytes)).toBe(0);
    }
  });

  test("takes tensors in any order, metadata and empty tensors", () => {
    const header = `{"__metadata__":{"format":"mlx"},"b":${entry(8, 16)},"a":${entry(0, 8)},"none":${entry(8, 8, [0, 3])}}`;
    expect([...readFile(fileOf(header, 16)).keys()]).toEqual(["b", "a", "none"]);
  });

  test.each<[string, Uint8Array, string]>([
    ["a file below its prefix", new Uint8Array(7), "less than its prefix"],
    ["an empty header", fileOf("", 0), "empty header"],
    ["a header beyond the file", fileOf("{}", 0, 100n), "truncated"],
    ["a header beyond the cap", fileOf("{}", 0, 1n << 25n), "at most"],
    ["a header of 2^63 bytes", fileOf("{}", 0, 1n << 63n), "at most"],
    ["a header that is an array", fileOf("[]", 0), "not a JSON object"],
    ["a header that is text", fileOf('"x"', 0), "not a JSON object"],
    ["invalid UTF-8", fileOf(new Uint8Array([0x7b, 0xff]), 0), "UTF-8"],
    ["invalid JSON", fileOf("{", 0), "not valid JSON"],
    ["deep nesting", fileOf(`{"a":${"[".repeat(100_000)}`, 0), "nested levels"],
    ["a duplicate name", fileOf(`{"a":${entry(0, 4)},"a":${entry(4, 8)}}`, 8), "appears twice"],
    ["an unknown dtype", fileOf('{"a":{"dtype":"F8","shape":[4],"data_offsets":[0,4]}}', 4), "F8"],
    ["a missing dtype", fileOf('{"a":{"shape":[1],"data_offsets":[0,4]}}', 4), "dtype"],
    [
      "an unknown key",
      fileOf('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}', 4),
      "x",
    ],
    ["reversed offsets", fileOf(`{"a":${entry(4, 0, [1])}}`, 4), "reversed"],
    ["negative offsets", fileOf(`{"a":${entry(-4, 0, [1])}}`, 4), "data_offsets"],
    ["fractional offsets", fileOf(`{"a":${entry(0.5, 4.5, [1])}}`, 5), "data_offsets"],
    [
      "three offsets",
      fileOf('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}', 8),
      "data_offsets",
    ],
    [
      "one offset",
      fileOf('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}}', 4),
      "data_offsets",
    ],
    ["an offset beyond 2^53", fileOf(`{"a":${entry(0, 2 ** 64, [1])}}`, 4), "data_offsets"],
    ["a boolean dimension", fileOf(`{"a":${entry(0, 4, [true])}}`, 4), "shape"],
    ["a text dimension", fileOf(`{"a":${entry(0, 4, ["1"])}}`, 4), "shape"],
    ["a negative dimension", fileOf(`{"a":${entry(0, 4, [-1])}}`, 4), "shape"],
    ["a shape that wraps", fileOf(`{"a":${entry(0, 4, [2 ** 40, 2 ** 40])}}`, 4), "2^53"],
    ["a shape larger than its bytes", fileOf(`{"a":${entry(0, 4, [1_000_000])}}`, 4), "span 4"],
    ["a shape smaller than its bytes", fileOf(`{"a":${entry(0, 8, [1])}}`, 8), "span 8"],
    ["a tensor beyond the file", fileOf(`{"a":${entry(0, 8)}}`, 4), "truncated"],
    ["overlapping tensors", fileOf(`{"a":${entry(0, 8)},"b":${entry(4, 12)}}`, 12), "overlap"],
    ["a tensor inside another", fileOf(`{"a":${entry(0, 12)},"b":${entry(4, 8)}}`, 12), "overlap"],
    ["a hole", fileOf(`{"a":${entry(0, 4)},"b":${entry(8, 12)}}`, 12), "hole of 4 bytes"],
    ["a hole before the first", fileOf(`{"a":${entry(4, 8)}}`, 8), "hole of 4 bytes"],
    ["bytes after the last", fileOf(`{"a":${entry(0, 4)}}`, 8), "4 bytes after"],
    ["an empty name", fileOf(`{"":${entry(0, 4)}}`, 4), "without a name"],
    [
      "a control character in a name",
      fileOf(`{"a\\u0000":${entry(0, 4)}}`, 4),
      "control characters",
    ],
    ["a name beyond 65,535 bytes", fileOf(`{"${"n".repeat(65_536)}":${entry(0, 4)}}`, 4), "65,535"],
  ])("refuses %s", (_, bytes, sentence) => {
    expect(() => readFile(bytes)).toThrow(sentence);
    expect(() => readFile(bytes)).toThrow(expect.objectContaining({ code: "format.safetensors" }));
  });

  test("refuses more than 100,000 tensors", () => {
    const entries = Array.from({ length: 100_001 }, (_, index) => `"${index}":${entry(0, 0, [0])}`);
    expect(() => readFile(fileOf(`{${entries.join(",")}}`, 0))).toThrow("at most 100000");
  });
});
