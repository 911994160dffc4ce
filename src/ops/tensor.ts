/** Handles of values on the device: what an operation takes instead of buffers, offsets and strides. */
import type { Binding } from "../native/commands.ts";
import type { Device, SharedBuffer } from "../native/device.ts";
import { assert } from "../util/errors.ts";

/** Activations, float32, row-major: `rows` rows of `columns`. The host may read them when idle. */
export interface Tensor extends Binding {
  readonly buffer: SharedBuffer;
  readonly offset: number;
  readonly rows: number;
  readonly columns: number;
}

/** A vector of BF16 weights where its file has them. */
export interface Vector extends Binding {
  readonly length: number;
}

/** An affine-quantised matrix `[rows, columns]` where its file has it. */
export interface QuantTensor {
  readonly codes: Binding;
  readonly scales: Binding;
  readonly biases: Binding;
  readonly rows: number;
  readonly columns: number;
  readonly bits: number;
}

/** Owns the activations of one forward pass; everything is freed together. */
export class Scratch {
  readonly #device: Device;
  readonly #buffers: SharedBuffer[] = [];

  constructor(device: Device) {
    this.#device = device;
  }

  /** A float32 tensor `[rows, columns]`. */
  tensor(rows: number, columns: number): Tensor {
    const buffer = this.#create(4 * rows * columns);
    return { buffer, offset: 0, rows, columns };
  }

  /** Whole numbers that the host writes and kernels read, or the other way round. */
  integers(count: number): SharedBuffer {
    return this.#create(4 * count);
  }

  get byteLength(): number {
    return this.#buffers.reduce((sum, buffer) => sum + buffer.byteLength, 0);
  }

  close(): void {
    for (const buffer of this.#buffers) this.#device.destroyBuffer(buffer);
    this.#buffers.length = 0;
  }

  #create(bytes: number): SharedBuffer {
    const buffer = this.#device.createBuffer(bytes);
    this.#buffers.push(buffer);
    return buffer;
  }
}

/** Rows `first .. first + count - 1` of a tensor, as a tensor of their own. */
export function rowsOf(tensor: Tensor, first: number, count: number): Tensor {
  assert(first >= 0 && first + count <= tensor.rows, `rows ${first}+${count} of ${tensor.rows}`);
  return { ...tensor, offset: tensor.offset + 4 * first * tensor.columns, rows: count };
}

/** The host's view of the first `rows` rows; valid while the device does not write them. */
export function floatsOf(tensor: Tensor, rows = tensor.rows): Float32Array<ArrayBuffer> {
  const { buffer, offset, columns } = tensor;
  return new Float32Array(buffer.bytes.buffer, offset, rows * columns);
}

/** The host's view of a buffer of whole numbers. */
export function integersOf(
  buffer: SharedBuffer,
  count = buffer.byteLength / 4,
): Uint32Array<ArrayBuffer> {
  return new Uint32Array(buffer.bytes.buffer, 0, count);
}
