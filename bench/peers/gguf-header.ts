/**
 * The beginning of a GGUF file, version 3: keys with values, then the names, shapes and places of tensors.
 * Knows no tensor's contents. Source: the format's description in the ggml project.
 */

/** Where a tensor's data begin: multiples of this. */
export const ALIGNMENT_BYTES = 32;

/** A value with the type that its reader expects. */
export type Value =
  | { readonly type: "u32" | "i32" | "f32" | "bool"; readonly value: number }
  | { readonly type: "string"; readonly value: string }
  | { readonly type: "u32[]" | "i32[]" | "f32[]" | "bool[]"; readonly value: readonly number[] }
  | { readonly type: "string[]"; readonly value: readonly string[] };

const TYPE_IDS = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8 } as const;
const ARRAY_ID = 9;
type Scalar = keyof typeof TYPE_IDS;

/** Types of tensors, with the bytes of a block and the values in it. */
export const TENSOR_TYPES = {
  f32: { id: 0, blockBytes: 4, blockValues: 1 },
  q4_0: { id: 2, blockBytes: 18, blockValues: 32 },
} as const;

export interface TensorInfo {
  readonly name: string;
  /** Fastest dimension first. */
  readonly shape: readonly number[];
  readonly type: keyof typeof TENSOR_TYPES;
}

/** Bytes of a tensor's data. */
export function tensorBytes({ shape, type }: TensorInfo): number {
  const { blockBytes, blockValues } = TENSOR_TYPES[type];
  return (shape.reduce((a, b) => a * b) / blockValues) * blockBytes;
}

/** The next place at which a tensor may begin. */
export const aligned = (offset: number): number =>
  Math.ceil(offset / ALIGNMENT_BYTES) * ALIGNMENT_BYTES;

/** Grows as it is written to. */
class Writer {
  #bytes = new Uint8Array(1 << 20);
  #length = 0;

  get bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  scalar(type: Exclude<Scalar, "string">, value: number): void {
    const view = this.#reserve(type === "bool" ? 1 : 4);
    if (type === "u32") view.setUint32(0, value, true);
    else if (type === "i32") view.setInt32(0, value, true);
    else if (type === "f32") view.setFloat32(0, value, true);
    else view.setUint8(0, value);
  }

  u64(value: number): void {
    this.#reserve(8).setBigUint64(0, BigInt(value), true);
  }

  string(text: string): void {
    const bytes = new TextEncoder().encode(text);
    this.u64(bytes.length);
    this.raw(bytes);
  }

  raw(bytes: Uint8Array): void {
    const { buffer, byteOffset } = this.#reserve(bytes.length);
    new Uint8Array(buffer, byteOffset, bytes.length).set(bytes);
  }

  #reserve(count: number): DataView<ArrayBuffer> {
    while (this.#length + count > this.#bytes.length) {
      const larger = new Uint8Array(2 * this.#bytes.length);
      larger.set(this.#bytes);
      this.#bytes = larger;
    }
    this.#length += count;
    return new DataView(this.#bytes.buffer, this.#length - count, count);
  }
}

function writeValue(writer: Writer, { type, value }: Value): void {
  const isArray = type.endsWith("[]");
  const scalar = type.replace("[]", "") as Scalar;
  if (isArray) writer.scalar("u32", ARRAY_ID);
  writer.scalar("u32", TYPE_IDS[scalar]);
  const items = (isArray ? value : [value]) as readonly (number | string)[];
  if (isArray) writer.u64(items.length);
  for (const item of items) {
    if (scalar === "string") writer.string(String(item));
    else writer.scalar(scalar, Number(item));
  }
}

/** Everything before the data of the first tensor; tensors follow each other in the order given. */
export function encodeHeader(
  keys: Readonly<Record<string, Value>>,
  tensors: readonly TensorInfo[],
): Uint8Array {
  const writer = new Writer();
  writer.raw(new TextEncoder().encode("GGUF"));
  writer.scalar("u32", 3);
  writer.u64(tensors.length);
  writer.u64(Object.keys(keys).length);
  for (const [key, value] of Object.entries(keys)) {
    writer.string(key);
    writeValue(writer, value);
  }
  let offset = 0;
  for (const tensor of tensors) {
    writer.string(tensor.name);
    writer.scalar("u32", tensor.shape.length);
    for (const count of tensor.shape) writer.u64(count);
    writer.scalar("u32", TENSOR_TYPES[tensor.type].id);
    writer.u64(offset);
    offset = aligned(offset + tensorBytes(tensor));
  }
  writer.raw(new Uint8Array(aligned(writer.bytes.length) - writer.bytes.length));
  return writer.bytes;
}
