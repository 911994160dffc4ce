/**
 * The state of layers that remember a sequence as a sum instead of its rows, and snapshots of it: such a
 * state cannot go back by moving a cursor. One live state, and a few copies at positions that a session is
 * likely to go back to. The caller sees to it that the device is idle when states are copied.
 */
import type { Binding } from "../native/commands.ts";
import type { Device, SharedBuffer } from "../native/device.ts";
import { assert } from "../util/errors.ts";

/** What one recurrent layer keeps, in float32. */
export interface RecurrentShape {
  /** Raw rows that its convolution still needs, `[tailRows, channels]`. */
  readonly tailRows: number;
  readonly channels: number;
  /** The state, `[heads, valueDim, keyDim]`. */
  readonly heads: number;
  readonly valueDim: number;
  readonly keyDim: number;
}

/** As kernels bind them. */
export interface RecurrentRows {
  readonly tail: Binding;
  readonly state: Binding;
}

/** Copies that are kept beside the live state: two turns back, and the last chunk of a prompt. */
export const SNAPSHOTS_MAX = 3;
const TURNS_MAX = 2;
/** Bindings keep the alignment that vectors like. */
const ALIGN_BYTES = 64;

const aligned = (floats: number): number => Math.ceil((4 * floats) / ALIGN_BYTES) * ALIGN_BYTES;
const tailBytes = ({ tailRows, channels }: RecurrentShape): number => aligned(tailRows * channels);
const stateBytes = ({ heads, valueDim, keyDim }: RecurrentShape): number =>
  aligned(heads * valueDim * keyDim);

/** Bytes of one state of all layers. */
export function recurrentBytes(layers: readonly (RecurrentShape | undefined)[]): number {
  return layers.reduce(
    (sum, shape) => sum + (shape === undefined ? 0 : tailBytes(shape) + stateBytes(shape)),
    0,
  );
}

interface Snapshot {
  readonly position: number;
  /** Whether a turn begins here; otherwise a later chunk of its prompt does. */
  readonly isTurn: boolean;
  readonly copy: SharedBuffer;
}

export class RecurrentStates {
  readonly #device: Device;
  readonly #layers: readonly (RecurrentRows | undefined)[];
  readonly #live: SharedBuffer;
  /** By position, ascending. */
  #snapshots: Snapshot[] = [];
  readonly #spare: SharedBuffer[] = [];
  /** Position whose state is live; undefined while the device may be changing it. */
  #position: number | undefined = 0;

  constructor(device: Device, layers: readonly (RecurrentShape | undefined)[]) {
    this.#device = device;
    this.#live = device.createBuffer(recurrentBytes(layers));
    let offset = 0;
    this.#layers = layers.map((shape) => {
      if (shape === undefined) return undefined;
      const tail = { buffer: this.#live, offset };
      const state = { buffer: this.#live, offset: offset + tailBytes(shape) };
      offset = state.offset + stateBytes(shape);
      return { tail, state };
    });
  }

  /** Live state and copies. */
  get byteLength(): number {
    const copies = this.#snapshots.length + this.#spare.length;
    return (1 + copies) * this.#live.byteLength;
  }

  view(layer: number): RecurrentRows {
    const rows = this.#layers[layer];
    assert(rows !== undefined, `layer ${layer} is recurrent`);
    return rows;
  }

  /** The host's bytes from a layer's binding on, for tests that look at the state. */
  contents({ offset = 0 }: Binding): Uint8Array<ArrayBuffer> {
    return this.#live.bytes.subarray(offset);
  }

  /** The device is about to change the live state. */
  begin(): void {
    this.#position = undefined;
  }

  /** The device has finished; the live state is that of `position`. */
  settle(position: number): void {
    this.#position = position;
  }

  /** Keeps a copy of the live state. The first of a turn is kept while the next one lasts. */
  keep(isTurn: boolean): void {
    const position = this.#position;
    assert(position !== undefined, "only a finished state can be kept");
    if (position === 0 || this.#snapshots.some((kept) => kept.position === position)) return;
    this.#makeRoom(isTurn);
    const copy = this.#spare.pop() ?? this.#device.createBuffer(this.#live.byteLength);
    copy.bytes.set(this.#live.bytes);
    this.#snapshots.push({ position, isTurn, copy });
  }

  /** Positions not after `position` whose state is known, the latest first; the last is 0. */
  known(position: number): number[] {
    const kept = this.#snapshots.map((snapshot) => snapshot.position);
    const live = this.#position === undefined ? [] : [this.#position];
    const all = new Set([0, ...kept, ...live].filter((at) => at <= position));
    return [...all].toSorted((a, b) => b - a);
  }

  /** Makes the state of a known position live, and forgets the later ones. */
  restore(position: number): void {
    this.#drop((kept) => kept.position > position);
    if (this.#position === position) return;
    const kept = this.#snapshots.find((snapshot) => snapshot.position === position);
    assert(kept !== undefined || position === 0, `the state at ${position} is known`);
    if (kept === undefined) this.#live.bytes.fill(0);
    else this.#live.bytes.set(kept.copy.bytes);
    this.#position = position;
  }

  reset(): void {
    this.#position = undefined;
    this.restore(0);
  }

  close(): void {
    this.#drop(() => true);
    for (const buffer of [this.#live, ...this.#spare]) this.#device.destroyBuffer(buffer);
  }

  /** Of a prompt's later chunks only the newest is kept, of the turns' beginnings the newest few. */
  #makeRoom(isTurn: boolean): void {
    const turns = this.#snapshots.filter((kept) => kept.isTurn);
    const oldest = turns.length === TURNS_MAX && isTurn ? turns[0] : undefined;
    this.#drop((kept) => kept === oldest || (!isTurn && !kept.isTurn));
  }

  #drop(isDropped: (kept: Snapshot) => boolean): void {
    const dropped = this.#snapshots.filter(isDropped);
    this.#snapshots = this.#snapshots.filter((kept) => !dropped.includes(kept));
    this.#spare.push(...dropped.map(({ copy }) => copy));
  }
}
