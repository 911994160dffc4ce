// Writes a GGUF file of Gemma 4 26B-A4B's architecture and size, 4 bits (Q4_0), for a runtime that reads such
// files to be measured beside ours:
//   bun bench/peers/gguf.ts FILE [--overlap P] [--seed TEXT] [--layers N]
//   bun bench/peers/gguf.ts FILE --remove
// Values are random and as well conditioned as bench/synthetic.ts's, and with the same arguments the same
// ids choose the same experts. The same arguments give the same bytes; a tile at a time is in memory.
// Refuses to fill the disk. The vocabulary is made up: ids are forced.
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { ARCH_26B } from "../../src/families/gemma4/config.ts";
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
import { fractions, MARK, markIds, permutation, randomFill } from "../weights.ts";
import { aligned, encodeHeader, type TensorInfo, tensorBytes, type Value } from "./gguf-header.ts";

/** Left free for everybody else. */
const SPARE_BYTES = 20e9;
const A = ARCH_26B;
const BLOCK_BYTES = 18;
const BLOCK_VALUES = 32;
/** Rows of the embedding, hence whole blocks and whole counters of the generator too. */
const TILE_BYTES = 512 * (A.hiddenSize / BLOCK_VALUES) * BLOCK_BYTES;
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
    layers: { type: "string", default: String(A.numLayers) },
    remove: { type: "boolean", default: false },
  },
});

/** Ends with a sentence where the arguments are at fault. */
function usage(problem: string): never {
  console.error(
    `${problem}\nusage: bun bench/peers/gguf.ts FILE [--overlap P] [--seed TEXT] [--layers N] [--remove]`,
  );
  process.exit(2);
}

const file = path.resolve(positionals[0] ?? usage("a file was expected"));
const overlap = Number(flags.overlap);
if (!(overlap >= 0 && overlap <= 1)) usage(`--overlap ${flags.overlap}: expected 0 to 1`);
const layerCount = Number(flags.layers);
if (!(layerCount >= 6 && layerCount % 6 === 0)) usage("--layers: expected a multiple of 6");
/** Says that the file is ours. */
const stamp = `${file}.synthetic.json`;

/** A tensor and what it holds: random codes, one number everywhere, or numbers made by a function. */
interface Tensor extends TensorInfo {
  readonly fill: "random" | "embedding" | number | (() => Float32Array);
}

const isFull = (layer: number): boolean => layer % 6 === 5;
const layers = Array.from({ length: layerCount }, (_, layer) => layer);

const matrix = (name: string, ...shape: number[]): Tensor => ({
  name: `${name}.weight`,
  shape,
  type: "q4_0",
  fill: "random",
});

const vector = (name: string, length: number, value = 1): Tensor => ({
  name: name.endsWith(".scale") ? name : `${name}.weight`,
  shape: [length],
  type: "f32",
  fill: value,
});

/** Each expert reads one of the marked columns, in an order that differs from layer to layer. */
function router(layer: number): Float32Array {
  const values = new Float32Array(A.numExperts * A.hiddenSize);
  const random = fractions(`${flags.seed}/${TEXT}.layers.${layer}.router.proj.weight`);
  for (const [expert, column] of permutation(A.numExperts, random).entries()) {
    values[expert * A.hiddenSize + column] = ROUTER_HIGH;
  }
  return values;
}

function attentionTensors(layer: number): Tensor[] {
  const b = `blk.${layer}.`;
  const headDim = isFull(layer) ? A.fullHeadDim : A.headDim;
  const kvWidth = headDim * (isFull(layer) ? A.numFullKVHeads : A.numKVHeads);
  const width = headDim * A.numHeads;
  return [
    vector(`${b}attn_norm`, A.hiddenSize),
    matrix(`${b}attn_q`, A.hiddenSize, width),
    matrix(`${b}attn_k`, A.hiddenSize, kvWidth),
    // Full layers use their keys as values.
    ...(isFull(layer) ? [] : [matrix(`${b}attn_v`, A.hiddenSize, kvWidth)]),
    matrix(`${b}attn_output`, width, A.hiddenSize),
    vector(`${b}attn_q_norm`, headDim, headDim ** -0.5),
    vector(`${b}attn_k_norm`, headDim),
    vector(`${b}post_attention_norm`, A.hiddenSize, 0.15),
    vector(`${b}layer_output_scale`, 1),
  ];
}

function feedForwardTensors(layer: number): Tensor[] {
  const b = `blk.${layer}.`;
  const { hiddenSize, ffnIntermediate, moeIntermediateSize, numExperts } = A;
  const routerShape = [hiddenSize, numExperts];
  return [
    vector(`${b}ffn_norm`, hiddenSize),
    matrix(`${b}ffn_gate`, hiddenSize, ffnIntermediate),
    matrix(`${b}ffn_up`, hiddenSize, ffnIntermediate),
    matrix(`${b}ffn_down`, ffnIntermediate, hiddenSize),
    vector(`${b}post_ffw_norm_1`, hiddenSize, 0.15),
    {
      name: `${b}ffn_gate_inp.weight`,
      shape: routerShape,
      type: "f32",
      fill: () => router(layer),
    },
    vector(`${b}ffn_gate_inp.scale`, hiddenSize, 2 * Math.sqrt(hiddenSize)),
    vector(`${b}pre_ffw_norm_2`, hiddenSize),
    vector(`${b}post_ffw_norm_2`, hiddenSize, 0.15),
    matrix(`${b}ffn_gate_up_exps`, hiddenSize, 2 * moeIntermediateSize, numExperts),
    matrix(`${b}ffn_down_exps`, moeIntermediateSize, hiddenSize, numExperts),
    vector(`${b}ffn_down_exps.scale`, numExperts),
    vector(`${b}post_ffw_norm`, hiddenSize, 0.15),
  ];
}

/** Of a full layer's rotations only the first part turns; the others are divided by almost infinity. */
function rotations(): Float32Array {
  const count = A.fullHeadDim / 2;
  return new Float32Array(count).fill(1e30).fill(1, 0, count * A.partialRotaryFactor);
}

function tensorsOf(): Tensor[] {
  return [
    { ...matrix("token_embd", A.hiddenSize, A.vocabSize), fill: "embedding" },
    vector("output_norm", A.hiddenSize),
    { name: "rope_freqs.weight", shape: [A.fullHeadDim / 2], type: "f32", fill: rotations },
    ...layers.flatMap((layer) => [...attentionTensors(layer), ...feedForwardTensors(layer)]),
  ];
}

const u32 = (value: number): Value => ({ type: "u32", value });
const f32 = (value: number): Value => ({ type: "f32", value });
const text = (value: string): Value => ({ type: "string", value });

function architectureKeys(): Record<string, Value> {
  const windows = layers.map((layer) => Number(!isFull(layer)));
  const kvHeads = layers.map((layer) => (isFull(layer) ? A.numFullKVHeads : A.numKVHeads));
  const keys: Record<string, Value> = {
    context_length: u32(262_144),
    embedding_length: u32(A.hiddenSize),
    block_count: u32(layerCount),
    feed_forward_length: u32(A.ffnIntermediate),
    "attention.head_count": u32(A.numHeads),
    "attention.head_count_kv": { type: "u32[]", value: kvHeads },
    "attention.layer_norm_rms_epsilon": f32(1e-6),
    "attention.key_length": u32(A.fullHeadDim),
    "attention.value_length": u32(A.fullHeadDim),
    "attention.key_length_swa": u32(A.headDim),
    "attention.value_length_swa": u32(A.headDim),
    "attention.sliding_window": u32(A.slidingWindow),
    "attention.sliding_window_pattern": { type: "bool[]", value: windows },
    "attention.shared_kv_layers": u32(0),
    "rope.freq_base": f32(A.fullRopeTheta),
    "rope.freq_base_swa": f32(A.ropeTheta),
    "rope.dimension_count": u32(A.fullHeadDim),
    "rope.dimension_count_swa": u32(A.headDim),
    final_logit_softcapping: f32(A.finalLogitSoftcap),
    embedding_length_per_layer_input: u32(0),
    expert_count: u32(A.numExperts),
    expert_used_count: u32(A.topKExperts),
    expert_feed_forward_length: u32(A.moeIntermediateSize),
  };
  return Object.fromEntries(Object.entries(keys).map(([key, value]) => [`gemma4.${key}`, value]));
}

/** As much of a vocabulary as a reader insists on. */
function vocabularyKeys(): Record<string, Value> {
  const specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"];
  const byteTokens = Array.from(
    { length: 256 },
    (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`,
  );
  const known = [...specials, ...byteTokens];
  const [control, byte, normal] = [3, 6, 1];
  const count = A.vocabSize;
  const kindOf = (id: number): number =>
    id < specials.length ? control : id < known.length ? byte : normal;
  const ids = Array.from({ length: count }, (_, id) => id);
  return {
    "tokenizer.ggml.model": text("gemma4"),
    "tokenizer.ggml.tokens": { type: "string[]", value: ids.map((id) => known[id] ?? `word${id}`) },
    "tokenizer.ggml.scores": { type: "f32[]", value: ids.map(() => 0) },
    "tokenizer.ggml.token_type": { type: "i32[]", value: ids.map(kindOf) },
    "tokenizer.ggml.merges": { type: "string[]", value: ["w o"] },
    "tokenizer.ggml.padding_token_id": u32(0),
    "tokenizer.ggml.eos_token_id": u32(1),
    "tokenizer.ggml.bos_token_id": u32(2),
    "tokenizer.ggml.unknown_token_id": u32(3),
    "tokenizer.ggml.mask_token_id": u32(4),
  };
}

/** The bits of a number as half a float, low byte first in the file. */
function halfBits(value: number): number {
  return new Uint16Array(Float16Array.of(value).buffer)[0]!;
}

/** Random codes; the scale's sign is random too, so that rows have no common mean. */
function fillCodes(name: string, columns: number, offset: number, tile: Uint8Array): void {
  randomFill(`${flags.seed}/${name}`, offset, tile);
  const words = new Uint16Array(tile.buffer, tile.byteOffset, tile.byteLength / 2);
  const scale = halfBits(1 / (CODE_SPREAD * Math.sqrt(columns)));
  for (let at = 0; at < words.length; at += BLOCK_BYTES / 2) {
    words[at] = (words[at]! & 0x8000) | scale;
  }
}

/** Sets the first columns of each row: high for the marks of its id, zero else. */
function markRows(marks: Uint16Array, offset: number, tile: Uint8Array): void {
  const { hiddenSize, numExperts, topKExperts } = A;
  const rowBytes = (hiddenSize / BLOCK_VALUES) * BLOCK_BYTES;
  const scale = halfBits(MARK / CODE_MAX / Math.sqrt(hiddenSize));
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
  const { name, shape, fill } = tensor;
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
    fillCodes(name, shape[0]!, done, tile);
    if (fill === "embedding") markRows(marks, done, tile);
    writeAll(target, tile, start + done, systemIo);
  }
}

function write(): void {
  if (fs.existsSync(file)) usage(`${file} is already there`);
  const tensors = tensorsOf();
  const keys: Record<string, Value> = {
    "general.architecture": text("gemma4"),
    "general.name": text("random values"),
    "general.file_type": u32(2),
    "general.quantization_version": u32(2),
    ...architectureKeys(),
    ...vocabularyKeys(),
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
