// Writes a GGUF file of a released model's architecture and size, 4 bits (Q4_0), for a runtime that reads such
// files to be measured beside ours:
//   bun bench/peers/gguf.ts FILE [--family gemma4|qwen36] [--overlap P] [--seed TEXT] [--layers N]
//   bun bench/peers/gguf.ts FILE --remove
// Values are random and as well conditioned as bench/synthetic.ts's, and with the same arguments the same
// ids choose the same experts. The same arguments give the same bytes; a tile at a time is in memory.
// Refuses to fill the disk. The vocabulary is made up: ids are forced.
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import {
  checkSpace,
  createTarget,
  finishTarget,
  sizeTarget,
  systemIo,
  type Target,
  writeAll,
} from "../../src/install/durable.ts";
import { formatBytes } from "../../src/util/units.ts";
import { type SyntheticId, synthetics } from "../synthetic/index.ts";
import { fractions, MARK, markIds, permutation, randomFill } from "../weights.ts";
import { type PeerFamily, type Tensor, text, u32 } from "./gguf-family.ts";
import { peerGemma4 } from "./gguf-gemma4.ts";
import { aligned, encodeHeader, tensorBytes, type Value } from "./gguf-header.ts";
import { peerQwen36 } from "./gguf-qwen36.ts";

/** Left free for everybody else. */
const SPARE_BYTES = 20e9;
const PEERS: Readonly<Record<SyntheticId, PeerFamily>> = { gemma4: peerGemma4, qwen36: peerQwen36 };
const BLOCK_BYTES = 18;
const BLOCK_VALUES = 32;
/** Spread of the codes 0 to 15 around 8, all equally likely, their scale's sign random. */
const CODE_SPREAD = Math.sqrt((16 ** 2 + 2) / 12);
const CODE_ZERO = 0x88;
const CODE_MAX = 7;
/** What bench/weights.ts gives a routers' column, so that scores are the same. */
const ROUTER_HIGH = 127 * 2 ** -8;
const TEXT = "language_model.model";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    overlap: { type: "string", default: "0.6" },
    seed: { type: "string", default: "1" },
    family: { type: "string", default: "gemma4" },
    layers: { type: "string" },
    remove: { type: "boolean", default: false },
  },
});

/** Ends with a sentence where the arguments are at fault. */
function usage(problem: string): never {
  console.error(
    `${problem}\nusage: bun bench/peers/gguf.ts FILE [--family NAME] [--overlap P] [--layers N] [--remove]`,
  );
  process.exit(2);
}

const file = path.resolve(positionals[0] ?? usage("a file was expected"));
const overlap = Number(flags.overlap);
if (!(overlap >= 0 && overlap <= 1)) usage(`--overlap ${flags.overlap}: expected 0 to 1`);
const known = Object.keys(PEERS).join(", ");
if (!(flags.family in PEERS)) usage(`--family ${flags.family}: expected one of ${known}`);
const peer = PEERS[flags.family as SyntheticId];
const synthetic = synthetics[flags.family as SyntheticId];
const { arch: A, layerStep } = synthetic;
/** Rows of the embedding, hence whole blocks and whole counters of the generator too. */
const TILE_BYTES = 512 * (A.hiddenSize / BLOCK_VALUES) * BLOCK_BYTES;
const layerCount = Number(flags.layers ?? A.numLayers);
if (!(layerCount >= layerStep && layerCount % layerStep === 0)) {
  usage(`--layers: expected a multiple of ${layerStep}`);
}
/** Says that the file is ours. */
const stamp = `${file}.synthetic.json`;

/** Each expert reads one of the marked columns, in an order that differs from layer to layer. */
function router(layer: number): Float32Array {
  const values = new Float32Array(A.numExperts * A.hiddenSize);
  const random = fractions(`${flags.seed}/${TEXT}.layers.${layer}.${synthetic.router}.weight`);
  for (const [expert, column] of permutation(A.numExperts, random).entries()) {
    values[expert * A.hiddenSize + column] = ROUTER_HIGH;
  }
  return values;
}

/** The bits of a number as half a float, low byte first in the file. */
function halfBits(value: number): number {
  return new Uint16Array(Float16Array.of(value).buffer)[0]!;
}

/** Random codes; the scale's sign is random too, so that rows have no common mean. */
function fillCodes({ name, shape, gain }: Tensor, offset: number, tile: Uint8Array): void {
  randomFill(`${flags.seed}/${name}`, offset, tile);
  const words = new Uint16Array(tile.buffer, tile.byteOffset, tile.byteLength / 2);
  const scale = halfBits(gain / (CODE_SPREAD * Math.sqrt(shape[0]!)));
  for (let at = 0; at < words.length; at += BLOCK_BYTES / 2) {
    words[at] = (words[at]! & 0x8000) | scale;
  }
}

/** Sets the first columns of each row: high for the marks of its id, zero else. */
function markRows(marks: Uint16Array, offset: number, tile: Uint8Array): void {
  const { hiddenSize, numExperts, topKExperts } = A;
  const rowBytes = (hiddenSize / BLOCK_VALUES) * BLOCK_BYTES;
  const scale = halfBits(MARK / CODE_MAX / synthetic.embeddingMultiplier);
  const half = BLOCK_VALUES / 2;
  for (let row = 0; row < tile.length; row += rowBytes) {
    for (let block = 0; block < numExperts / BLOCK_VALUES; block += 1) {
      const at = row + block * BLOCK_BYTES;
      tile[at] = scale & 255;
      tile[at + 1] = scale >> 8;
      tile.fill(CODE_ZERO, at + 2, at + BLOCK_BYTES);
    }
    const id = (offset + row) / rowBytes;
    for (const column of marks.subarray(id * topKExperts, (id + 1) * topKExperts)) {
      const [block, place] = [Math.floor(column / BLOCK_VALUES), column % BLOCK_VALUES];
      // A byte holds the code of a value and that of the value half a block on.
      tile[row + block * BLOCK_BYTES + 2 + (place % half)]! |= place < half ? 0x0f : 0xf0;
    }
  }
}

/** Writes one tensor's data, a tile at a time. */
function writeTensor(tensor: Tensor, target: Target, start: number, marks: Uint16Array): void {
  const { fill } = tensor;
  if (typeof fill === "number" || typeof fill === "function") {
    const values =
      typeof fill === "function" ? fill() : new Float32Array(tensorBytes(tensor) / 4).fill(fill);
    writeAll(target, new Uint8Array(values.buffer as ArrayBuffer), start, systemIo);
    return;
  }
  const bytes = tensorBytes(tensor);
  const whole = new Uint8Array(Math.min(TILE_BYTES, bytes));
  for (let done = 0; done < bytes; done += whole.length) {
    const tile = whole.subarray(0, Math.min(whole.length, bytes - done));
    fillCodes(tensor, done, tile);
    if (fill === "embedding") markRows(marks, done, tile);
    writeAll(target, tile, start + done, systemIo);
  }
}

function write(): void {
  if (fs.existsSync(file)) usage(`${file} is already there`);
  const tensors = peer.tensors(layerCount, router);
  const named = Object.entries(peer.keys(layerCount));
  const keys: Record<string, Value> = {
    "general.architecture": text(peer.architecture),
    "general.name": text("random values"),
    "general.file_type": u32(2),
    "general.quantization_version": u32(2),
    ...Object.fromEntries(named.map(([key, value]) => [`${peer.architecture}.${key}`, value])),
    ...peer.vocabulary(),
  };
  const header = encodeHeader(keys, tensors);
  const bytes = tensors.reduce((end, tensor) => aligned(end + tensorBytes(tensor)), header.length);
  fs.mkdirSync(path.dirname(file), { recursive: true });
  const unfinished = `${file}.unfinished`;
  fs.rmSync(unfinished, { force: true });
  checkSpace(path.dirname(file), bytes + SPARE_BYTES, systemIo);
  fs.writeFileSync(stamp, JSON.stringify({ version: 1, overlap, seed: flags.seed, layerCount }));
  const random = fractions(`${flags.seed}/marks`);
  const marks = markIds(A, overlap, random);
  const target = createTarget(unfinished, systemIo);
  sizeTarget(target, bytes, systemIo);
  writeAll(target, header, 0, systemIo);
  let start = header.length;
  for (const tensor of tensors) {
    writeTensor(tensor, target, start, marks);
    start = aligned(start + tensorBytes(tensor));
  }
  finishTarget(target, systemIo);
  fs.renameSync(unfinished, file);
  console.log(`${file}: ${formatBytes(bytes)}, overlap ${overlap}, seed ${flags.seed}`);
}

function remove(): void {
  if (!fs.existsSync(stamp)) usage(`${file} was not written by this program`);
  for (const place of [file, `${file}.unfinished`, stamp]) fs.rmSync(place, { force: true });
}

if (flags.remove) remove();
else write();
