import { MferenceError } from "../util/errors.ts";
import { alignUp } from "../util/units.ts";
import { checkedArithmetic } from "./arithmetic.ts";
import { dtypeCode, dtypeOfCode, type Dtype } from "./dtype.ts";
import { readExactly, type OpenFile } from "./files.ts";
import { METADATA_BYTES_MAX } from "./paths.ts";

/**
 * The index of `model_weights.bin`: which non-routed tensor lies where. Owns the bytes of the index
 * region and their checks; the payload behind it is copied by the installer and mapped by the engine.
 *
 *     0            24              24 + 72 n        indexBytes            indexBytes + residentBytes
 *     | header 24 | n entries of 72 | names | zeros | payload, unpadded ... |
 *
 * Payload is packed without padding: a matrix behind an odd number of BF16 values starts at an offset
 * that is 2 modulo 4.
 */
export const PAGE_BYTES = 16_384;
const HEADER_BYTES = 24;
const ENTRY_BYTES = 72;
const RANK_MAX = 4;
const U32_MAX = 0xffff_ffff;

/** A byte range of the file. */
export interface FileRange {
  /** Absolute offset in the file. */
  readonly offset: number;
  readonly bytes: number;
}

/** One tensor of the index. */
export interface ResidentEntry extends FileRange {
  readonly name: string;
  readonly dtype: Dtype;
  /** Logical: the last axis of a packed matrix counts values, not words. */
  readonly shape: readonly number[];
  /** Present on quantized matrices, both or none. */
  readonly scales?: FileRange;
  readonly biases?: FileRange;
}

/** A parsed index. */
export interface ResidentIndex {
  readonly indexBytes: number;
  readonly residentBytes: number;
  readonly entries: ReadonlyMap<string, ResidentEntry>;
}

/** A tensor to be given a place: sizes only. */
export interface ResidentItem {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly bytes: number;
  readonly scaleBytes: number;
  readonly biasBytes: number;
}

/**
 * Places tensors in the given order: weight, scales and biases of each, back to back.
 *
 * @throws MferenceError "format.index" when a shape or the table exceeds the format
 */
export function placeResident(items: readonly ResidentItem[]): ResidentIndex {
  const { product, sum } = checkedArithmetic("format.index", "the resident index");
  const nameBytes = items.reduce((total, item) => total + Buffer.byteLength(item.name), 0);
  const tableBytes = sum(HEADER_BYTES, product(ENTRY_BYTES, items.length), nameBytes);
  const indexBytes = alignUp(tableBytes, PAGE_BYTES);
  if (indexBytes > METADATA_BYTES_MAX.residentIndex) {
    fail(`the table needs ${indexBytes} bytes; at most ${METADATA_BYTES_MAX.residentIndex}`);
  }
  const entries = new Map<string, ResidentEntry>();
  let offset = indexBytes;
  for (const item of items) {
    const scaleOffset = sum(offset, item.bytes);
    const biasOffset = sum(scaleOffset, item.scaleBytes);
    const place = {
      name: item.name,
      dtype: item.dtype,
      shape: item.shape,
      offset,
      bytes: item.bytes,
    };
    const isQuantized = item.scaleBytes > 0;
    entries.set(item.name, {
      ...place,
      ...(isQuantized ? { scales: { offset: scaleOffset, bytes: item.scaleBytes } } : {}),
      ...(isQuantized ? { biases: { offset: biasOffset, bytes: item.biasBytes } } : {}),
    });
    offset = sum(biasOffset, item.biasBytes);
  }
  return { indexBytes, residentBytes: offset - indexBytes, entries };
}

/** The bytes of the index region, zero padded to whole pages. */
export function encodeResidentIndex(index: ResidentIndex): Uint8Array {
  const bytes = new Uint8Array(index.indexBytes);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, BigInt(index.indexBytes), true);
  view.setBigUint64(8, BigInt(index.residentBytes), true);
  view.setBigUint64(16, BigInt(index.entries.size), true);
  let nameOffset = HEADER_BYTES + ENTRY_BYTES * index.entries.size;
  let at = HEADER_BYTES;
  for (const entry of index.entries.values()) {
    const name = new TextEncoder().encode(entry.name);
    checkShape(entry);
    bytes.set(name, nameOffset);
    view.setUint32(at, nameOffset, true);
    view.setUint16(at + 4, name.length, true);
    view.setUint8(at + 6, dtypeCode(entry.dtype));
    setRange(view, at + 8, entry);
    for (let axis = 0; axis < RANK_MAX; axis += 1) {
      view.setUint32(at + 24 + 4 * axis, entry.shape[axis] ?? 0, true);
    }
    setRange(view, at + 40, entry.scales);
    setRange(view, at + 56, entry.biases);
    nameOffset += name.length;
    at += ENTRY_BYTES;
  }
  return bytes;
}

function setRange(view: DataView, at: number, range: FileRange | undefined): void {
  view.setBigUint64(at, BigInt(range?.offset ?? 0), true);
  view.setBigUint64(at + 8, BigInt(range?.bytes ?? 0), true);
}

function checkShape(entry: ResidentEntry): void {
  if (entry.shape.length === 0 || entry.shape.length > RANK_MAX) {
    fail(`${entry.name} has ${entry.shape.length} dimensions; 1 to ${RANK_MAX} fit`);
  }
  const wrong = entry.shape.find((size) => size < 1 || size > U32_MAX);
  if (wrong !== undefined) fail(`${entry.name} has a dimension of ${wrong}`);
}

/**
 * Reads the index region of an open `model_weights.bin` and checks it against the file's size.
 *
 * @throws MferenceError "format.index"
 */
export function readResidentIndex(file: OpenFile): ResidentIndex {
  if (file.sizeBytes < HEADER_BYTES)
    fail(`${file.path} has ${file.sizeBytes} bytes, less than its header`);
  const header = readExactly(file, { offset: 0, length: HEADER_BYTES }, "format.index");
  const indexBytes = readU64(new DataView(header.buffer), 0, "index size");
  if (indexBytes === 0 || indexBytes % PAGE_BYTES !== 0) {
    fail(`the index size ${indexBytes} is not a multiple of ${PAGE_BYTES}`);
  }
  if (indexBytes > METADATA_BYTES_MAX.residentIndex || indexBytes > file.sizeBytes) {
    fail(`the index size ${indexBytes} exceeds the file (${file.sizeBytes} bytes) or the cap`);
  }
  const region = readExactly(file, { offset: 0, length: indexBytes }, "format.index");
  return decodeResidentIndex(region, file.sizeBytes);
}

/**
 * Decodes an index region.
 *
 * @throws MferenceError "format.index"
 */
export function decodeResidentIndex(region: Uint8Array, fileBytes: number): ResidentIndex {
  const view = new DataView(region.buffer, region.byteOffset, region.byteLength);
  const indexBytes = region.length;
  const residentBytes = readU64(view, 8, "payload size");
  const entryCount = readU64(view, 16, "entry count");
  const { product, sum } = checkedArithmetic("format.index", "the resident index");
  if (sum(indexBytes, residentBytes) !== fileBytes) {
    fail(
      `index and payload are ${indexBytes + residentBytes} bytes, but the file has ${fileBytes}`,
    );
  }
  if (entryCount === 0) fail("it lists no tensor");
  const namesStart = sum(HEADER_BYTES, product(ENTRY_BYTES, entryCount));
  if (namesStart > indexBytes) fail(`${entryCount} entries do not fit into ${indexBytes} bytes`);
  const bounds: Bounds = { namesStart, indexBytes, fileBytes };
  const entries = new Map<string, ResidentEntry>();
  for (let index = 0; index < entryCount; index += 1) {
    const entry = decodeEntry(view, HEADER_BYTES + ENTRY_BYTES * index, bounds);
    if (entries.has(entry.name)) fail(`the tensor ${entry.name} appears twice`);
    entries.set(entry.name, entry);
  }
  checkOverlap([...entries.values()]);
  return { indexBytes, residentBytes, entries };
}

interface Bounds {
  readonly namesStart: number;
  readonly indexBytes: number;
  readonly fileBytes: number;
}

function decodeEntry(view: DataView, at: number, bounds: Bounds): ResidentEntry {
  const name = decodeName(view, at, bounds);
  const code = view.getUint8(at + 6);
  const dtype = dtypeOfCode(code);
  if (dtype === undefined) return fail(`${name} has the unknown dtype code ${code}`);
  if (view.getUint8(at + 7) !== 0) fail(`${name} has a reserved byte that is not 0`);
  const range = decodeRange(view, at + 8, { name, bounds });
  if (range === undefined) return fail(`${name} has no bytes`);
  const scales = decodeRange(view, at + 40, { name: `${name} (scales)`, bounds });
  const biases = decodeRange(view, at + 56, { name: `${name} (biases)`, bounds });
  if ((scales === undefined) !== (biases === undefined))
    fail(`${name} has scales or biases, but not both`);
  return {
    name,
    dtype,
    shape: decodeShape(view, at + 24, name),
    ...range,
    ...(scales === undefined ? {} : { scales }),
    ...(biases === undefined ? {} : { biases }),
  };
}

function decodeName(view: DataView, at: number, bounds: Bounds): string {
  const offset = view.getUint32(at, true);
  const length = view.getUint16(at + 4, true);
  if (length === 0) fail("a tensor has no name");
  if (offset < bounds.namesStart || offset + length > bounds.indexBytes) {
    fail(`a name at ${offset} of ${length} bytes lies outside the name table`);
  }
  try {
    const bytes = new Uint8Array(view.buffer, view.byteOffset + offset, length);
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (error) {
    throw new MferenceError("format.index", `a name at ${offset} is not valid UTF-8`, {
      cause: error,
    });
  }
}

function decodeShape(view: DataView, at: number, name: string): readonly number[] {
  const axes = Array.from({ length: RANK_MAX }, (_, axis) => view.getUint32(at + 4 * axis, true));
  const rank = axes.findLastIndex((size) => size !== 0) + 1;
  const shape = axes.slice(0, rank);
  if (rank === 0 || shape.includes(0)) fail(`${name} has the shape [${axes.join(", ")}]`);
  return shape;
}

function decodeRange(
  view: DataView,
  at: number,
  place: { readonly name: string; readonly bounds: Bounds },
): FileRange | undefined {
  const offset = readU64(view, at, `offset of ${place.name}`);
  const bytes = readU64(view, at + 8, `size of ${place.name}`);
  if (bytes === 0) {
    if (offset !== 0) fail(`${place.name} is absent and yet has the offset ${offset}`);
    return undefined;
  }
  const { sum } = checkedArithmetic("format.index", place.name);
  if (offset < place.bounds.indexBytes || sum(offset, bytes) > place.bounds.fileBytes) {
    fail(`${place.name} at ${offset} of ${bytes} bytes lies outside the payload`);
  }
  return { offset, bytes };
}

function checkOverlap(entries: readonly ResidentEntry[]): void {
  const ranges = entries
    .flatMap((entry) =>
      [entry, entry.scales, entry.biases].map((range) => ({ range, name: entry.name })),
    )
    .filter((item): item is { range: FileRange; name: string } => item.range !== undefined)
    .toSorted((left, right) => left.range.offset - right.range.offset);
  for (const [index, { range, name }] of ranges.entries()) {
    const next = ranges[index + 1];
    if (next !== undefined && range.offset + range.bytes > next.range.offset) {
      fail(`the bytes of ${name} and ${next.name} overlap`);
    }
  }
}

function readU64(view: DataView, at: number, what: string): number {
  const value = view.getBigUint64(at, true);
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) fail(`the ${what} is ${value}, beyond 2^53 - 1`);
  return Number(value);
}

function fail(problem: string): never {
  throw new MferenceError("format.index", `the index of model_weights.bin is corrupt: ${problem}`);
}
