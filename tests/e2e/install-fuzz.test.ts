/**
 * Seeded damage to every file that an install or a load reads: each is refused in a sentence or accepted,
 * and what is accepted comes back the same when it is written and read again.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../../src/util/errors.ts";
import { sha256 } from "../../src/format/digest.ts";
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
import { verifyPackage } from "../../src/install/verify.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { createRandom, type Random } from "../reference/random.ts";

/** For each kind of file. */
const INPUTS = 4000;
/** Of whole installs and verifications. */
const WHOLE_INPUTS = 600;
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
afterAll(() => {
  const total = Object.values(counts).reduce((sum, [good, bad]) => sum + good + bad, 0);
  const text = JSON.stringify(counts);
  process.stderr.write(`fuzzed ${total} inputs, accepted and refused: ${text}\n`);
});

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

const byName = (a: { name: string }, b: { name: string }): number => (a.name < b.name ? -1 : 1);
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
      const again: Record<string, unknown> = {};
      for (const tensor of [...tensors.values()].toSorted((a, b) => a.offset - b.offset)) {
        expect(tensor.offset).toBe(end);
        end += tensor.bytes;
        const { dtype, shape, offset } = tensor;
        const [first, last] = [offset, end].map((at) => at - 8 - damage.length);
        again[tensor.name] = { dtype, shape, data_offsets: [first, last] };
      }
      expect(end).toBe(sizeBytes);
      const written = encode(again);
      const shift = written.length - damage.length;
      const found = parseSafetensorsHeader(written, { ...place, sizeBytes: sizeBytes + shift });
      const shifted = [...tensors.values()].map((tensor) =>
        Object.assign({}, tensor, { offset: tensor.offset + shift }),
      );
      expect([...found.values()].toSorted(byName)).toEqual(shifted.toSorted(byName));
    });
  });

  test("an index", () => {
    fuzz("index", textOf(path.join(source, "model.safetensors.index.json")), (damage) => {
      const shards = parseIndex(damage, "index");
      for (const name of shards.keys()) expect(name).not.toMatch(/[/\\\0]|\.\./);
      const entries = [...shards.values()].flat();
      const text = encode({ weight_map: Object.fromEntries(entries) });
      const again = [...parseIndex(text, "index").values()].flat();
      expect(new Map(again)).toEqual(new Map(entries));
    });
  });

  test("a manifest", () => {
    fuzz("manifest", textOf(path.join(directory, "manifest.json")), (damage) => {
      const manifest = parseManifest(damage, "manifest.json");
      checkManifestStructure(manifest);
      const { magic: _, versionMajor: _1, versionMinor: _2, flags: _3, quant, ...rest } = manifest;
      // One without `quant` is a manifest, though not one that is ever loaded.
      const content = { ...rest, ...(quant === undefined ? {} : { quant }) } as ManifestContent;
      const { versionMinor, flags, ...again } = parseManifest(encodeManifest(content), "again");
      expect([versionMinor, flags["turboQuantKV"]]).toEqual([0, false]);
      expect({ ...again, versionMinor: 0, flags: {} }).toEqual({
        ...manifest,
        versionMinor: 0,
        flags: {},
      });
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
      writeSaved(record, found, systemIo);
      const ranges = found.completedRanges.toSorted((a, b) => (a.id < b.id ? -1 : 1));
      expect(readSaved(record)).toEqual({ ...found, completedRanges: ranges });
    });
  });

  test("leaves nothing outside", () => {
    const names = fs.readdirSync(folder).toSorted();
    expect(names).toEqual(["m.gturbo", "m.gturbo.install.lock", "r.gturbo.resume.json"]);
  });
});

/** Places below a folder, with what tells whether they were written to. */
function placesBelow(above: string, ignored: RegExp): string[] {
  return (fs.readdirSync(above, { recursive: true }) as string[])
    .filter((name) => !ignored.test(name))
    .map((name) => {
      const { mtimeMs, size, ino } = fs.lstatSync(path.join(above, name));
      return fs.lstatSync(path.join(above, name)).isFile()
        ? `${name} ${ino} ${size} ${mtimeMs}`
        : name;
    })
    .toSorted();
}

/** Runs work that is to succeed or to be refused; whether it succeeded. */
async function isAccepted(name: string, work: () => Promise<unknown>): Promise<boolean> {
  const count = (counts[name] ??= [0, 0]);
  try {
    await work();
    count[0] += 1;
    return true;
  } catch (error) {
    if (!(error instanceof MferenceError)) throw error;
    count[1] += 1;
    return false;
  }
}

describe("with damage to one of its files", () => {
  test("a checkpoint is installed or refused, and nothing else is written", async () => {
    const above = temporaryFolder();
    const checkpoint = path.join(above, "checkpoint");
    fs.cpSync(source, checkpoint, { recursive: true });
    fs.writeFileSync(path.join(above, "mine"), "kept");
    const random = createRandom(5);
    const shard = fs.readdirSync(checkpoint).find((name) => name.endsWith(".safetensors"))!;
    for (let input = 0; input < WHOLE_INPUTS; input += 1) {
      const name = ["config.json", "model.safetensors.index.json", shard][input % 3]!;
      const file = path.join(checkpoint, name);
      const whole = fs.readFileSync(file);
      fs.writeFileSync(
        file,
        name === shard ? damagedShard(whole, random) : damaged(whole.toString(), random),
      );
      const before = placesBelow(above, /^models/);
      const options = { source: checkpoint, name: "x", models: path.join(above, "models") };
      const isInstalled = await isAccepted("installs", () => installLocal(options));
      expect(placesBelow(above, /^models/)).toEqual(before);
      const left = fs.readdirSync(options.models).toSorted();
      expect(left).toEqual([...(isInstalled ? ["x.gturbo"] : []), "x.gturbo.install.lock"]);
      fs.rmSync(path.join(options.models, "x.gturbo"), { recursive: true, force: true });
      fs.writeFileSync(file, whole);
    }
  });

  test("a package is verified or refused, and only its receipt is written", async () => {
    const above = temporaryFolder();
    const copy = path.join(above, "x.gturbo");
    fs.cpSync(directory, copy, { recursive: true });
    const ignored = /verified-install.json|install.lock/;
    const random = createRandom(6);
    const place = (name: string): string => path.join(copy, name);
    const manifest = textOf(place("manifest.json"));
    const layout = textOf(place("packed_experts/layout.json"));
    for (let input = 0; input < WHOLE_INPUTS; input += 1) {
      fs.writeFileSync(place("packed_experts/layout.json"), layout);
      fs.writeFileSync(place("manifest.json"), manifest);
      if (input % 3 === 0) fs.writeFileSync(place("manifest.json"), damaged(manifest, random));
      else if (input % 3 === 1) damageLayout(place, { manifest, layout, random });
      else
        fs.writeFileSync(
          place("verified-install.json"),
          damaged(textOf(path.join(directory, "verified-install.json")), random),
        );
      const before = placesBelow(above, ignored);
      const isVerified = await isAccepted("verifications", () =>
        verifyPackage(copy, { full: true }),
      );
      expect(placesBelow(above, ignored)).toEqual(before);
      // A receipt is only replaced.
      if (input % 3 === 2) expect(isVerified).toBe(true);
    }
    expect(fs.readdirSync(above).toSorted()).toEqual(["x.gturbo", "x.gturbo.install.lock"]);
  });
});

/** Header and payload of a shard, the header damaged and its length as it is then. */
function damagedShard(whole: Buffer, random: Random): Uint8Array {
  const length = Number(whole.readBigUInt64LE(0));
  const header = damaged(whole.subarray(8, 8 + length).toString(), random);
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([prefix, header, whole.subarray(8 + length)]);
}

/** A damaged layout of which the manifest has the right digest. */
function damageLayout(
  place: (name: string) => string,
  { manifest, layout, random }: { manifest: string; layout: string; random: Random },
): void {
  const bytes = damaged(layout, random);
  fs.writeFileSync(place("packed_experts/layout.json"), bytes);
  const json = JSON.parse(manifest) as { files: Record<string, unknown> };
  json.files["packed_experts/layout.json"] = { size: bytes.length, sha256: sha256(bytes) };
  fs.writeFileSync(place("manifest.json"), JSON.stringify(json));
}
