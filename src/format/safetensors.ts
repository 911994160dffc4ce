import { z } from "zod";
import { MferenceError } from "../util/errors.ts";
import { checkedArithmetic } from "./arithmetic.ts";
import { DTYPES, elementBytes, type Dtype } from "./dtype.ts";
import { readExactly, type OpenFile } from "./files.ts";
import { checkJson, parseJson, type JsonContext } from "./json.ts";

/**
 * The header of a safetensors file: where each tensor lies. Every defect that other readers were
 * reported to survive (overlaps, holes, sizes that disagree with shapes, reversed offsets, duplicate
 * names) is refused here, before any offset is used. Never reads tensor bytes.
 *
 *     | u64 n | n bytes of JSON | tensor | tensor | ... |
 */
export interface SourceTensor {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Absolute offset in the file. */
  readonly offset: number;
  readonly bytes: number;
}

export const PREFIX_BYTES = 8;
export const HEADER_BYTES_MAX = 1 << 24;
const TENSORS_MAX = 100_000;
const NAME_BYTES_MAX = 65_535;
/** Control characters of C0, DEL and C1. */
// oxlint-disable-next-line no-control-regex -- finding control characters is the purpose
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

const entrySchema = z.strictObject({
  dtype: z.string(),
  shape: z.array(z.int().nonnegative()),
  data_offsets: z.tuple([z.int().nonnegative(), z.int().nonnegative()]),
});

/**
 * Reads and checks the header of an open file.
 *
 * @throws MferenceError "format.safetensors"
 */
export function readSafetensors(file: OpenFile): Map<string, SourceTensor> {
  const fail = failure(file.path);
  if (file.sizeBytes < PREFIX_BYTES) fail(`has ${file.sizeBytes} bytes, less than its prefix of 8`);
  const prefix = readExactly(file, { offset: 0, length: PREFIX_BYTES }, "format.safetensors");
  const length = new DataView(prefix.buffer).getBigUint64(0, true);
  if (length === 0n) fail("declares an empty header");
  if (length > BigInt(HEADER_BYTES_MAX)) {
    fail(`declares a header of ${length} bytes; at most ${HEADER_BYTES_MAX} are accepted`);
  }
  if (length > BigInt(file.sizeBytes - PREFIX_BYTES)) {
    fail(
      `declares a header of ${length} bytes, but the file has ${file.sizeBytes}: it is truncated`,
    );
  }
  const range = { offset: PREFIX_BYTES, length: Number(length) };
  const header = readExactly(file, range, "format.safetensors");
  return parseSafetensorsHeader(header, file);
}

/**
 * Checks the JSON of a header against the size of its file.
 *
 * @throws MferenceError "format.safetensors"
 */
export function parseSafetensorsHeader(
  header: Uint8Array,
  file: { readonly path: string; readonly sizeBytes: number },
): Map<string, SourceTensor> {
  const fail = failure(file.path);
  const context: JsonContext = { code: "format.safetensors", what: `the header of ${file.path}` };
  const json = parseJson(header, context);
  if (json === null || typeof json !== "object" || Array.isArray(json)) {
    return fail("has a header that is not a JSON object");
  }
  const names = Object.keys(json).filter((name) => name !== "__metadata__");
  if (names.length > TENSORS_MAX) fail(`lists ${names.length} tensors; at most ${TENSORS_MAX}`);
  const dataStart = PREFIX_BYTES + header.length;
  const tensors = new Map<string, SourceTensor>();
  for (const name of names) {
    checkName(name, fail);
    const entry = checkJson(json[name], entrySchema, {
      code: context.code,
      what: `tensor ${name.slice(0, 200)} of ${file.path}`,
    });
    tensors.set(name, sourceTensor(name, entry, { dataStart, file }));
  }
  checkCoverage([...tensors.values()], { dataStart, file });
  return tensors;
}

interface Place {
  readonly dataStart: number;
  readonly file: { readonly path: string; readonly sizeBytes: number };
}

function sourceTensor(
  name: string,
  entry: z.output<typeof entrySchema>,
  place: Place,
): SourceTensor {
  const fail = failure(place.file.path);
  const dtype = DTYPES.find((known) => known === entry.dtype);
  if (dtype === undefined) {
    return fail(`has tensor ${name} of dtype "${entry.dtype}"; known are ${DTYPES.join(", ")}`);
  }
  const [begin, end] = entry.data_offsets;
  if (begin > end) fail(`has tensor ${name} with reversed offsets ${begin} and ${end}`);
  const { product, sum } = checkedArithmetic("format.safetensors", `${place.file.path}: ${name}`);
  const expected = product(...entry.shape, elementBytes(dtype));
  if (expected !== end - begin) {
    fail(
      `has tensor ${name} of shape [${entry.shape.join(", ")}] and dtype ${dtype}, ${expected} bytes, but its offsets span ${end - begin}`,
    );
  }
  if (sum(place.dataStart, end) > place.file.sizeBytes) {
    fail(
      `has tensor ${name} ending at ${place.dataStart + end}, beyond the file's ${place.file.sizeBytes} bytes: it is truncated`,
    );
  }
  const offset = place.dataStart + begin;
  return { name, dtype, shape: entry.shape, offset, bytes: expected };
}

/** The tensors must tile the data region: no byte in two tensors, none in no tensor. */
function checkCoverage(tensors: readonly SourceTensor[], place: Place): void {
  const fail = failure(place.file.path);
  const ordered = tensors.toSorted(
    (left, right) => left.offset - right.offset || left.bytes - right.bytes,
  );
  let end = place.dataStart;
  let previous = "the header";
  for (const tensor of ordered) {
    if (tensor.offset < end) fail(`has tensors ${previous} and ${tensor.name} that overlap`);
    if (tensor.offset > end) {
      fail(`has a hole of ${tensor.offset - end} bytes between ${previous} and ${tensor.name}`);
    }
    end = tensor.offset + tensor.bytes;
    previous = tensor.name;
  }
  if (end !== place.file.sizeBytes) {
    fail(`has ${place.file.sizeBytes - end} bytes after its last tensor`);
  }
}

function checkName(name: string, fail: (problem: string) => never): void {
  if (name === "") fail("has a tensor without a name");
  if (CONTROL.test(name))
    fail(`has a tensor name with control characters: ${JSON.stringify(name)}`);
  if (Buffer.byteLength(name) > NAME_BYTES_MAX) fail("has a tensor name beyond 65,535 bytes");
}

/** Names may be long; a sentence must not be. */
const PROBLEM_CHARS_MAX = 1000;

function failure(path: string): (problem: string) => never {
  return (problem) => {
    throw new MferenceError("format.safetensors", `${path} ${problem.slice(0, PROBLEM_CHARS_MAX)}`);
  };
}
