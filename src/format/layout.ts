import { z } from "zod";
import { MferenceError } from "../util/errors.ts";
import { checkedArithmetic } from "./arithmetic.ts";
import {
  checkJson,
  isSameJson,
  parseJsonAs,
  sizeSchema,
  type JsonContext,
  type JsonValue,
} from "./json.ts";
import { checkLayerFileName } from "./paths.ts";
import { isSameShape } from "./quant.ts";
import { PAGE_BYTES } from "./resident.ts";

/**
 * `packed_experts/layout.json`: where each routed expert lies in its layer file, and where its nine
 * sub-tensors lie in it. Keeps one table per layer and one offset per expert, whatever the file repeats.
 *
 *     layer_NN.bin   | expert 0, padded to the stride | expert 1 | ...
 *     one expert     | gate w s b | up w s b | down w s b | zeros to the stride |
 */
export const PROJECTIONS = ["gate", "up", "down"] as const;
export type Projection = (typeof PROJECTIONS)[number];

export const SUB_TENSOR_NAMES = [
  "gate",
  "gate_scales",
  "gate_biases",
  "up",
  "up_scales",
  "up_biases",
  "down",
  "down_scales",
  "down_biases",
] as const;
export type SubTensorName = (typeof SUB_TENSOR_NAMES)[number];

/** One part of an expert. */
export interface SubTensor {
  /** Relative to the expert. */
  readonly offset: number;
  readonly bytes: number;
  readonly dtype: "U32" | "BF16";
  /** Logical shape of one expert's part. */
  readonly shape: readonly number[];
  /** Width of the codes; on weights only. */
  readonly bits?: number;
}

export type SubTensors = Readonly<Record<SubTensorName, SubTensor>>;

/** The experts of one layer. */
export interface LayerLayout {
  readonly index: number;
  /** Bare name below `packed_experts/`. */
  readonly file: string;
  /** Offset of each expert in the file, by its logical id; empty in a dense layer. */
  readonly expertOffsets: readonly number[];
  /** Absent in a dense layer. */
  readonly subTensors?: SubTensors;
}

export interface Layout {
  readonly strideBytes: number;
  readonly expertCount: number;
  readonly layers: readonly LayerLayout[];
}

/** Kernels address inside an expert with 32 bits. */
const OFFSET_END_MAX = 2 ** 32;

const subTensorSchema = z.object({
  offset: sizeSchema,
  size: z.int().positive(),
  dtype: z.enum(["U32", "BF16"]),
  shape: z.array(z.int().positive()).min(1).max(4),
  bits: z.int().min(1).max(32).optional(),
});
const tensorsSchema = z.strictObject(
  Object.fromEntries(SUB_TENSOR_NAMES.map((name) => [name, subTensorSchema])) as Record<
    SubTensorName,
    typeof subTensorSchema
  >,
);
const expertSchema = z.object({
  expert: sizeSchema.optional(),
  offset: sizeSchema,
  size: sizeSchema,
  physicalRank: sizeSchema.optional(),
  tensors: z.unknown(),
});
const layerSchema = z.object({
  layer: sizeSchema,
  file: z.string(),
  experts: z.array(expertSchema),
});
const layoutSchema = z.object({
  expertStride: sizeSchema,
  numLayers: sizeSchema,
  expertsPerLayer: sizeSchema,
  layers: z.array(z.unknown()),
});

type ParsedExpert = z.output<typeof expertSchema>;

/** What the manifest says; the layout must agree. */
export interface LayoutExpectation {
  readonly strideBytes: number;
  readonly layerCount: number;
  readonly expertCount: number;
  /** Layers below this index may have no experts. */
  readonly denseLayerCount: number;
}

/**
 * Parses and checks a layout.
 *
 * @throws MferenceError "format.layout", or "format.path" for a layer's file name
 */
export function parseLayout(bytes: Uint8Array, expected: LayoutExpectation, what: string): Layout {
  const context: JsonContext = { code: "format.layout", what };
  const json = parseJsonAs(bytes, layoutSchema, context);
  same("expertStride", json.expertStride, expected.strideBytes);
  same("numLayers", json.numLayers, expected.layerCount);
  same("expertsPerLayer", json.expertsPerLayer, expected.expertCount);
  same("the number of layers", json.layers.length, expected.layerCount);
  const layers = json.layers.map((layer) =>
    parseLayer(checkJson(layer, layerSchema, context), expected),
  );
  layers.sort((left, right) => left.index - right.index);
  const files = new Set<string>();
  for (const [index, layer] of layers.entries()) {
    if (layer.index !== index) fail(`layer ${index} is missing, or a layer appears twice`);
    checkLayerFileName(layer.file);
    if (files.has(layer.file.toLowerCase())) fail(`two layers share the file ${layer.file}`);
    files.add(layer.file.toLowerCase());
  }
  return { strideBytes: json.expertStride, expertCount: json.expertsPerLayer, layers };
}

function parseLayer(layer: z.output<typeof layerSchema>, expected: LayoutExpectation): LayerLayout {
  const place = { index: layer.layer, file: layer.file };
  const first = layer.experts[0];
  if (first === undefined) {
    if (layer.layer < expected.denseLayerCount || expected.expertCount === 0) {
      return { ...place, expertOffsets: [] };
    }
    return fail(`layer ${layer.layer} has no experts`);
  }
  same(`the expert count of layer ${layer.layer}`, layer.experts.length, expected.expertCount);
  const isExplicit = first.expert !== undefined;
  const offsets = Array.from({ length: expected.expertCount }, () => -1);
  const taken = new Set<number>();
  const table = first.tensors as JsonValue | undefined;
  const subTensors = parseTable(table, `layer ${layer.layer}`);
  checkSubTensors(subTensors, { layer: layer.layer, strideBytes: expected.strideBytes });
  for (const [position, expert] of layer.experts.entries()) {
    if ((expert.expert !== undefined) !== isExplicit) {
      fail(`layer ${layer.layer} numbers some experts and not others`);
    }
    const id = expert.expert ?? position;
    checkExpert(expert, { id, layer: layer.layer, expected });
    if (offsets[id] !== -1) fail(`layer ${layer.layer} lists expert ${id} twice`);
    if (taken.has(expert.offset))
      fail(`layer ${layer.layer}: two experts at offset ${expert.offset}`);
    taken.add(expert.offset);
    const other = expert.tensors as JsonValue | undefined;
    // Every expert repeats the table; to parse 256 of them in every layer would take a second.
    if (!isSameJson(other, table)) {
      checkSameTable(other, subTensors, `layer ${layer.layer}, expert ${id}`);
    }
    offsets[id] = expert.offset;
  }
  return { ...place, expertOffsets: offsets, subTensors };
}

function checkExpert(
  expert: ParsedExpert,
  place: { readonly id: number; readonly layer: number; readonly expected: LayoutExpectation },
): void {
  const { expertCount, strideBytes } = place.expected;
  const what = `layer ${place.layer}, expert ${place.id}`;
  if (place.id >= expertCount) fail(`${what}: ids end at ${expertCount - 1}`);
  const rank = expert.physicalRank ?? place.id;
  if (rank >= expertCount) fail(`${what}: rank ${rank} of ${expertCount}`);
  same(`${what}: size`, expert.size, strideBytes);
  same(`${what}: offset`, expert.offset, rank * strideBytes);
  if (expert.offset + strideBytes > OFFSET_END_MAX) fail(`${what}: ends beyond 2^32`);
}

function parseTable(json: JsonValue | undefined, what: string): SubTensors {
  const context = { code: "format.layout", what: `packed_experts/layout.json: ${what}` } as const;
  const tensors = checkJson(json, tensorsSchema, context);
  const table = SUB_TENSOR_NAMES.map((name): [SubTensorName, SubTensor] => {
    const { offset, size, dtype, shape, bits } = tensors[name];
    return [name, { offset, bytes: size, dtype, shape, ...(bits === undefined ? {} : { bits }) }];
  });
  return Object.fromEntries(table) as Record<SubTensorName, SubTensor>;
}

function checkSameTable(json: JsonValue | undefined, table: SubTensors, what: string): void {
  const parsed = parseTable(json, what);
  for (const name of SUB_TENSOR_NAMES) {
    const found = parsed[name];
    const first = table[name];
    const isSame =
      found.offset === first.offset &&
      found.bytes === first.bytes &&
      found.dtype === first.dtype &&
      found.bits === first.bits &&
      isSameShape(found.shape, first.shape);
    if (!isSame) fail(`${what}: ${name} differs from the first expert's`);
  }
}

/**
 * Checks a table of sub-tensors: inside the stride, disjoint, sizes as the shapes and widths say.
 *
 * @throws MferenceError "format.layout"
 */
export function checkSubTensors(
  table: SubTensors,
  place: { readonly layer: number; readonly strideBytes: number },
): void {
  for (const name of SUB_TENSOR_NAMES) {
    const part = table[name];
    const what = `layer ${place.layer}: ${name}`;
    if (part.offset + part.bytes > place.strideBytes) {
      fail(
        `${what} ends at ${part.offset + part.bytes}, beyond the stride of ${place.strideBytes}`,
      );
    }
    if (part.offset + part.bytes > OFFSET_END_MAX) fail(`${what} ends beyond 2^32`);
    if (part.offset % 2 !== 0) fail(`${what} starts at the odd offset ${part.offset}`);
    same(`${what}: size`, part.bytes, expectedBytes(part, what));
  }
  const ordered = SUB_TENSOR_NAMES.toSorted(
    (left, right) => table[left].offset - table[right].offset,
  );
  for (const [index, name] of ordered.entries()) {
    const next = ordered[index + 1];
    if (next !== undefined && table[name].offset + table[name].bytes > table[next].offset) {
      fail(`layer ${place.layer}: ${name} and ${next} overlap`);
    }
  }
  for (const projection of PROJECTIONS) checkCompanions(table, projection, place.layer);
}

function expectedBytes(part: SubTensor, what: string): number {
  const { product } = checkedArithmetic("format.layout", what);
  if (part.dtype === "BF16") return product(...part.shape, 2);
  if (part.bits === undefined) return fail(`${what} has no bits`);
  return product(...part.shape, part.bits) / 8;
}

/** Weights are packed words, companions BF16 with one value per group of each row. */
function checkCompanions(table: SubTensors, projection: Projection, layer: number): void {
  const weight = table[projection];
  if (weight.dtype !== "U32")
    fail(`layer ${layer}: ${projection} is ${weight.dtype}; expected U32`);
  const rows = weight.shape.slice(0, -1);
  const columns = weight.shape.at(-1) ?? 0;
  for (const companion of [`${projection}_scales`, `${projection}_biases`] as const) {
    const part = table[companion];
    if (part.dtype !== "BF16") fail(`layer ${layer}: ${companion} is ${part.dtype}; expected BF16`);
    const groups = part.shape.at(-1) ?? 0;
    const isFit = isSameShape(part.shape.slice(0, -1), rows) && columns % groups === 0;
    if (!isFit) {
      fail(
        `layer ${layer}: ${companion} is [${part.shape.join(", ")}] beside ${projection} [${weight.shape.join(", ")}]`,
      );
    }
  }
  const scales = table[`${projection}_scales`].shape;
  if (!isSameShape(scales, table[`${projection}_biases`].shape)) {
    fail(`layer ${layer}: scales and biases of ${projection} differ in shape`);
  }
}

/** A table for parts given in the order of `SUB_TENSOR_NAMES`: packed from offset 0. */
export function packSubTensors(parts: Readonly<Record<SubTensorName, Omit<SubTensor, "offset">>>): {
  readonly table: SubTensors;
  readonly bytes: number;
} {
  let offset = 0;
  const table = SUB_TENSOR_NAMES.map((name): [SubTensorName, SubTensor] => {
    const part = { offset, ...parts[name] };
    offset += part.bytes;
    return [name, part];
  });
  return { table: Object.fromEntries(table) as Record<SubTensorName, SubTensor>, bytes: offset };
}

/** The text of layout.json in pieces of one layer, so that 25 MB are never one string. */
export function* encodeLayout(layout: Layout): Generator<string> {
  const { strideBytes, expertCount, layers } = layout;
  yield `{"expertStride":${strideBytes},"numLayers":${layers.length},"expertsPerLayer":${expertCount},"layers":[`;
  for (const [index, layer] of layers.entries()) {
    const experts = layer.expertOffsets.map((offset, expert) => ({
      expert,
      offset,
      size: strideBytes,
      tensors: encodeTable(layer.subTensors),
    }));
    const text = JSON.stringify({ layer: layer.index, file: layer.file, experts });
    yield index === 0 ? text : `,${text}`;
  }
  yield "]}";
}

function encodeTable(table: SubTensors | undefined): Record<string, unknown> {
  if (table === undefined) return {};
  return Object.fromEntries(
    SUB_TENSOR_NAMES.map((name) => {
      const { offset, bytes, dtype, shape, bits } = table[name];
      return [name, { offset, size: bytes, dtype, shape, ...(bits === undefined ? {} : { bits }) }];
    }),
  );
}

/** The stride of experts whose largest has `bytes` bytes. */
export function strideOf(bytes: number): number {
  return Math.ceil(bytes / PAGE_BYTES) * PAGE_BYTES;
}

function same(what: string, found: number, expected: number): void {
  if (found !== expected) fail(`${what} is ${found}; expected ${expected}`);
}

function fail(problem: string): never {
  throw new MferenceError("format.layout", `packed_experts/layout.json is corrupt: ${problem}`);
}
