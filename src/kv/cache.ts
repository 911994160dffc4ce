/**
 * What every layer remembers of a sequence, and one cursor. An attention layer keeps rows: a ring (it
 * forgets what its window cannot see) or all; row `position` lives at slot `position mod rows`. A recurrent
 * layer keeps a state.
 *
 * Invariant: rows at or beyond the cursor are never attended; going back moves the cursor and restores
 * states.
 */
import type { Device, SharedBuffer } from "../native/device.ts";
import type { KvRows, Precision } from "../ops/ops.ts";
import { assert } from "../util/errors.ts";
import { canRewind, kvRows, type KvShape } from "./plan.ts";
import { type RecurrentRows, type RecurrentShape, RecurrentStates } from "./recurrent.ts";

interface Layer {
  readonly shape: KvShape;
  readonly rows: number;
  readonly keys: SharedBuffer;
  readonly values: SharedBuffer;
}

export interface KvOptions {
  /** Undefined for a layer without keys and values. */
  readonly layers: readonly (KvShape | undefined)[];
  /** Undefined for a layer without a recurrent state. */
  readonly recurrent?: readonly (RecurrentShape | undefined)[] | undefined;
  readonly contextRows: number;
  readonly chunkRows: number;
  readonly dtype: Precision["kvDtype"];
}

const ELEMENT_BYTES = { f32: 4, f16: 2 } as const;

export class KvCache {
  readonly #device: Device;
  readonly #layers: readonly (Layer | undefined)[];
  readonly #states: RecurrentStates | undefined;
  readonly contextRows: number;
  /** Positions whose rows are complete. */
  #cursor = 0;
  /** Highest position ever written since the last reset, exclusive: what rings have forgotten. */
  #written = 0;

  constructor(device: Device, options: KvOptions) {
    this.#device = device;
    this.contextRows = options.contextRows;
    this.#layers = options.layers.map((shape) => {
      if (shape === undefined) return undefined;
      const rows = kvRows(shape, options);
      const bytes = ELEMENT_BYTES[options.dtype] * rows * shape.kvHeads * shape.headDim;
      return { shape, rows, keys: device.createBuffer(bytes), values: device.createBuffer(bytes) };
    });
    const { recurrent = [] } = options;
    const isRecurrent = recurrent.some((shape) => shape !== undefined);
    this.#states = isRecurrent ? new RecurrentStates(device, recurrent) : undefined;
  }

  get byteLength(): number {
    return this.#kept.reduce(
      (sum, { keys, values }) => sum + keys.byteLength + values.byteLength,
      this.#states?.byteLength ?? 0,
    );
  }

  get #kept(): readonly Layer[] {
    return this.#layers.filter((layer) => layer !== undefined);
  }

  get cursor(): number {
    return this.#cursor;
  }

  /** What kernels bind for a layer. */
  view(layer: number): KvRows {
    const { keys, values, rows } = this.contents(layer);
    return { keys: { buffer: keys }, values: { buffer: values }, rows };
  }

  /** What kernels bind for a recurrent layer. */
  recurrent(layer: number): RecurrentRows {
    return this.states().view(layer);
  }

  /** The recurrent states; for tests that look at them. */
  states(): RecurrentStates {
    assert(this.#states !== undefined, "the model has recurrent layers");
    return this.#states;
  }

  /** The host's bytes of a layer's keys and values, for tests that look at the cache. */
  contents(layer: number): { keys: SharedBuffer; values: SharedBuffer; rows: number } {
    const found = this.#layers[layer];
    assert(found !== undefined, `layer ${layer} has keys and values`);
    return found;
  }

  /**
   * Rows `cursor .. cursor + rows - 1` are about to be written. Where a prompt begins, or another chunk of
   * it, a copy of the states is kept: then the device must be idle.
   */
  begin(rows: number, isFirstChunk = true): void {
    if (rows > 1) this.#states?.keep(isFirstChunk);
    this.#states?.begin();
    this.#written = Math.max(this.#written, this.#cursor + rows);
  }

  /** The rows begun are complete. */
  advance(rows: number): void {
    this.#cursor += rows;
  }

  /** The device has finished everything up to the cursor. */
  settle(): void {
    this.#states?.settle(this.#cursor);
  }

  /** The latest position, not after `position`, that the cache can go back to exactly; 0 always is one. */
  restorable(position: number): number {
    const known = this.#states?.known(position) ?? [position];
    return known.find((at) => this.canRewind(at)) ?? 0;
  }

  /** Whether every attention layer still holds what a token at `position` would see. */
  canRewind(position: number): boolean {
    if (position > this.#cursor) return false;
    const written = this.#written;
    return this.#kept.every(({ shape, rows }) => canRewind({ position, written, rows, shape }));
  }

  /** Goes back to a restorable position; the device must be idle. */
  rewind(position: number): void {
    this.#states?.restore(position);
    this.#cursor = position;
  }

  reset(): void {
    this.#cursor = 0;
    this.#written = 0;
    this.#states?.reset();
  }

  close(): void {
    this.#states?.close();
    for (const { keys, values } of this.#kept) {
      this.#device.destroyBuffer(keys);
      this.#device.destroyBuffer(values);
    }
  }
}
