/**
 * Seeded damage to every file that an install or a load reads: each is refused in a sentence or accepted,
 * and what is accepted comes back the same when it is written and read again.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../../src/util/errors.ts";
import { encodeLayout, parseLayout, type LayoutExpectation } from "../../src/format/layout.ts";
import {
  checkManifestStructure,
  denseLayerCount,
  encodeManifest,
  parseManifest,
  type ManifestContent,
} from "../../src/format/manifest.ts";
import { parseReceipt } from "../../src/format/receipt.ts";
import { parseSafetensorsHeader } from "../../src/format/safetensors.ts";
import { systemIo } from "../../src/install/durable.ts";
import { installLocal } from "../../src/install/install.ts";
import { readSaved, resumePath, writeSaved } from "../../src/install/resume.ts";
import { parseIndex } from "../../src/install/source.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { createRandom, type Random } from "../reference/random.ts";

const INPUTS = 4000;
const TOKENS = [
  "0",
  "-1",
  "1.5",
  "1e400",
  "18446744073709551615",
  "9007199254740993",
  "null",
  "true",
  '""',
  '"../x"',
  '"/etc/passwd"',
  '"\\ud800"',
  '"a\\u0000b"',
  "{}",
  "[]",
  "NaN",
  '"__proto__"',
  ",",
  "[".repeat(100_000),
  '{"a":'.repeat(200),
  "\uFEFF",
  '"BF16"',
  '"U32"',
  "4294967296",
  "}",
];

let folder: string;
let directory: string;
let source: string;

beforeAll(async () => {
  folder = temporaryFolder();
  source = writeSnapshot(SNAPSHOTS.inklingSmall("tiny"));
  ({ directory } = await installLocal({ source, name: "m", models: folder }));
});

const counts: Record<string, [accepted: number, refused: number]> = {};
afterAll(() => process.stderr.write(`fuzzed, accepted and refused: ${JSON.stringify(counts)}\n`));

/** The text with one to three things done to it. */
function damaged(text: string, random: Random): Uint8Array {
  let found = text;
  for (let times = 1 + random.below(3); times > 0; times -= 1) found = damagedOnce(found, random);
  const bytes = new TextEncoder().encode(found);
  // Sometimes what comes is no text at all.
  if (random.below(8) === 0 && bytes.length > 0)
    bytes[random.below(bytes.length)] = random.below(256);
  return bytes;
}

function damagedOnce(text: string, random: Random): string {
  const at = random.below(text.length + 1);
  const token = TOKENS[random.below(TOKENS.length)]!;
  switch (random.below(6)) {
    case 0:
      return text.slice(0, at);
    case 1:
      return text.slice(0, at) + token + text.slice(at);
    case 2:
      return text.slice(0, at) + text.slice(at + 1 + random.below(8));
    case 3:
      return replaceNth(text, /-?\d+(\.\d+)?/g, { random, by: () => token });
    case 4:
      return replaceNth(text, /"[^"\\]*"/g, { random, by: () => token });
    default: {
      // A small change of a number is what looks most like the truth.
      const by = (match: string): string => String(Number(match) + random.below(3) - 1);
      return replaceNth(text, /-?\d+/g, { random, by });
    }
  }
}

function replaceNth(
  text: string,
  pattern: RegExp,
  { random, by }: { random: Random; by: (match: string) => string },
): string {
  const found = [...text.matchAll(pattern)];
  const match = found[random.below(Math.max(1, found.length))];
  if (match === undefined) return text;
  return text.slice(0, match.index) + by(match[0]) + text.slice(match.index + match[0].length);
}

/** Runs `read` on damaged texts; it returns the text that what it accepted is written as. */
function fuzz(name: string, text: string, read: (bytes: Uint8Array) => unknown): void {
  const random = createRandom(11);
  let accepted = 0;
  read(new TextEncoder().encode(text));
  for (let input = 0; input < INPUTS; input += 1) {
    const bytes = damaged(text, random);
    try {
      read(bytes);
      accepted += 1;
    } catch (error) {
      if (!(error instanceof MferenceError)) throw error;
      expect(error.message.length).toBeLessThan(2000);
    }
  }
  counts[name] = [accepted, INPUTS - accepted];
  expect(INPUTS - accepted).toBeGreaterThan(INPUTS / 4);
}

const encode = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value));
const textOf = (file: string): string => fs.readFileSync(file, "utf8");

describe("damage to", () => {
  test("a header of tensors", () => {
    const file = fs.readdirSync(source).find((name) => name.endsWith(".safetensors"))!;
    const bytes = fs.readFileSync(path.join(source, file));
    const length = Number(bytes.readBigUInt64LE(0));
    const place = { path: file, sizeBytes: bytes.length };
    const header = bytes.subarray(8, 8 + length).toString();
    fuzz("header", header, (damage) => {
      const sizeBytes = bytes.length + damage.length - length;
      const tensors = parseSafetensorsHeader(damage, { ...place, sizeBytes });
      let end = 8 + damage.length;
      for (const tensor of [...tensors.values()].toSorted((a, b) => a.offset - b.offset)) {
        expect(tensor.offset).toBe(end);
        end += tensor.bytes;
      }
      expect(end).toBe(sizeBytes);
    });
  });

  test("an index", () => {
    fuzz("index", textOf(path.join(source, "model.safetensors.index.json")), (damage) => {
      const shards = parseIndex(damage, "index");
      for (const name of shards.keys()) expect(name).not.toMatch(/[/\\\0]|\.\./);
      const weightMap = Object.fromEntries([...shards.values()].flat());
      const again = parseIndex(encode({ weight_map: weightMap }), "index");
      expect([...again.keys()].toSorted()).toEqual([...shards.keys()].toSorted());
    });
  });

  test("a manifest", () => {
    fuzz("manifest", textOf(path.join(directory, "manifest.json")), (damage) => {
      const manifest = parseManifest(damage, "manifest.json");
      checkManifestStructure(manifest);
      const { magic: _, versionMajor: _1, versionMinor: _2, flags: _3, quant, ...rest } = manifest;
      if (quant === undefined) return;
      const content: ManifestContent = { ...rest, quant };
      const again = parseManifest(encodeManifest(content), "manifest.json");
      expect(again.files).toEqual(manifest.files);
      expect(again.arch).toEqual(manifest.arch);
    });
  });

  test("a layout", () => {
    const manifest = parseManifest(fs.readFileSync(path.join(directory, "manifest.json")), "m");
    const expected: LayoutExpectation = {
      strideBytes: manifest.expertStride,
      layerCount: manifest.numLayers,
      expertCount: manifest.expertsPerLayer,
      denseLayerCount: denseLayerCount(manifest),
    };
    fuzz("layout", textOf(path.join(directory, "packed_experts/layout.json")), (damage) => {
      const layout = parseLayout(damage, expected, "layout.json");
      const text = [...encodeLayout(layout)].join("");
      expect(parseLayout(new TextEncoder().encode(text), expected, "again")).toEqual(layout);
    });
  });

  test("a receipt", () => {
    fuzz("receipt", textOf(path.join(directory, "verified-install.json")), (damage) => {
      const receipt = parseReceipt(damage, "receipt");
      expect(parseReceipt(encode(receipt), "again")).toEqual(receipt);
    });
  });

  test("the record of a download", () => {
    const hex = "0123456789abcdef".repeat(4);
    const completedRanges = [1, 2, 3].map((id) => {
      return {
        id: `range-0000000${id}`,
        destinationDigest: hex,
        sourceBytes: 100,
        destinationBytes: 200,
      };
    });
    const saved = {
      schema: 1 as const,
      repoID: "owner/name",
      requestedRevision: "main",
      resolvedCommit: hex.slice(0, 40),
      sourceIndexSHA256: hex,
      planFingerprint: hex,
      totalSourceBytes: 1000,
      completedRanges,
      family: "x",
    };
    const record = path.join(folder, "r.gturbo");
    fuzz("record", JSON.stringify(saved), (damage) => {
      fs.writeFileSync(resumePath(record), damage);
      const found = readSaved(record)!;
      writeSaved(record, found, { ...systemIo });
      expect(readSaved(record)!.totalSourceBytes).toBe(found.totalSourceBytes);
    });
  });

  test("leaves nothing outside", () => {
    const names = fs.readdirSync(folder).toSorted();
    expect(names).toEqual(["m.gturbo", "m.gturbo.install.lock", "r.gturbo.resume.json"]);
  });
});
