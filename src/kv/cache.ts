/**
 * The keys and values of every attention layer, and one cursor. A layer is a ring (it forgets what its
 * window cannot see) or linear. Row `position` lives at slot `position mod rows`.
 *
 * Invariant: rows at or beyond the cursor are never attended; going back moves only the cursor.
 */
import type { Device, SharedBuffer } from "../native/device.ts";
import type { KvRows, Precision } from "../ops/ops.ts";
import { canRewind, kvRows, type KvShape } from "./plan.ts";

interface Layer {
  readonly shape: KvShape;
  readonly rows: number;
  readonly keys: SharedBuffer;
  readonly values: SharedBuffer;
}

export interface KvOptions {
  readonly layers: readonly KvShape[];
  readonly contextRows: number;
  readonly chunkRows: number;
  readonly dtype: Precision["kvDtype"];
}

const ELEMENT_BYTES = { f32: 4, f16: 2 } as const;

export class KvCache {
  readonly #device: Device;
  readonly #layers: readonly Layer[];
  readonly contextRows: number;
  /** Positions whose rows are complete. */
  #cursor = 0;
  /** Highest position ever written since the last reset, exclusive: what rings have forgotten. */
  #written = 0;

  constructor(device: Device, options: KvOptions) {
    this.#device = device;
    this.contextRows = options.contextRows;
    this.#layers = options.layers.map((shape) => {
      const rows = kvRows(shape, options);
      const bytes = ELEMENT_BYTES[options.dtype] * rows * shape.kvHeads * shape.headDim;
      return { shape, rows, keys: device.createBuffer(bytes), values: device.createBuffer(bytes) };
    });
  }

  get byteLength(): number {
    return this.#layers.reduce(
      (sum, { keys, values }) => sum + keys.byteLength + values.byteLength,
      0,
    );
  }

  get cursor(): number {
    return this.#cursor;
  }

  /** What kernels bind for a layer. */
  view(layer: number): KvRows {
    const { keys, values, rows } = this.#layers[layer]!;
    return { keys: { buffer: keys }, values: { buffer: values }, rows };
  }

  /** The host's bytes of a layer's keys and values, for tests that look at the cache. */
  contents(layer: number): { keys: SharedBuffer; values: SharedBuffer; rows: number } {
    return this.#layers[layer]!;
  }

  /** Rows `cursor .. cursor + rows - 1` are about to be written. */
  begin(rows: number): void {
    this.#written = Math.max(this.#written, this.#cursor + rows);
  }

  /** The rows begun are complete. */
  advance(rows: number): void {
    this.#cursor += rows;
  }

  /** Whether every layer still holds what a token at `position` would see. */
  canRewind(position: number): boolean {
    if (position > this.#cursor) return false;
    const written = this.#written;
    return this.#layers.every(({ shape, rows }) => canRewind({ position, written, rows, shape }));
  }

  /** Moves the cursor back; call only where `canRewind` agrees. */
  rewind(position: number): void {
    this.#cursor = position;
  }

  reset(): void {
    this.#cursor = 0;
    this.#written = 0;
  }

  close(): void {
    for (const { keys, values } of this.#layers) {
      this.#device.destroyBuffer(keys);
      this.#device.destroyBuffer(values);
    }
  }
}
