/**
 * A command list as plain bytes: built here from the catalogue, and so printed, compared, hashed and
 * replayed without a device. The layout is include/mf.h's.
 */
import { catalogue } from "../kernels/index.ts";
import {
  type AnyKernel,
  type Buffers,
  type BufferSpec,
  extentBytes,
  type Grid,
  type KernelSpec,
  type Params,
  type ParamType,
  type ParamValues,
} from "../kernels/spec.ts";
import { assert } from "../util/errors.ts";

const DISPATCH = 1;
const WAIT = 2;
const SIGNAL = 3;
const HEADER_BYTES = 40;
const BINDING_BYTES = 24;
const EVENT_BYTES = 16;

/** What a kernel argument is bound to. */
export interface Binding {
  readonly buffer: { readonly id: number };
  /** Bytes into the buffer; 0 when absent. */
  readonly offset?: number;
}

function align8(bytes: number): number {
  return (bytes + 7) & ~7;
}

/** What encoding a kernel needs of its declaration. */
interface Encoding {
  readonly id: number;
  readonly names: readonly string[];
  readonly buffers: readonly BufferSpec[];
  readonly params: readonly (readonly [name: string, type: ParamType])[];
  readonly bytes: number;
}

const encodings = new Map<AnyKernel, Encoding>(
  catalogue.map((kernel, id) => {
    const names = Object.keys(kernel.buffers);
    const params = Object.entries(kernel.params);
    const bytes = HEADER_BYTES + BINDING_BYTES * names.length + align8(4 * params.length);
    return [kernel, { id, names, buffers: Object.values(kernel.buffers), params, bytes }];
  }),
);

/** A growing list of dispatches, waits and signals. */
export class Commands {
  #bytes: Uint8Array<ArrayBuffer>;
  #view: DataView<ArrayBuffer>;
  #length = 0;
  #count = 0;

  constructor(capacityBytes = 16 * 1024) {
    this.#bytes = new Uint8Array(capacityBytes);
    this.#view = new DataView(this.#bytes.buffer);
  }

  /** The encoded list; valid until the next change. */
  get bytes(): Uint8Array<ArrayBuffer> {
    return new Uint8Array(this.#view.buffer, 0, this.#length);
  }

  /** Number of commands. */
  get count(): number {
    return this.#count;
  }

  reset(): void {
    this.#length = 0;
    this.#count = 0;
  }

  /** Appends one dispatch; argument names and types come from the kernel's own declaration. */
  dispatch<B extends Buffers, P extends Params>(
    kernel: KernelSpec<B, P>,
    buffers: { readonly [K in keyof B]: Binding },
    params: ParamValues<P>,
  ): void {
    const encoding = encodings.get(kernel);
    assert(encoding !== undefined, NOT_IN_CATALOGUE);
    const { id, names, params: types } = encoding;
    const view = this.#reserve(encoding.bytes);
    let at = this.#length - encoding.bytes;
    view.setUint32(at, DISPATCH, true);
    view.setUint32(at + 4, id, true);
    view.setUint32(at + 8, names.length, true);
    view.setUint32(at + 12, 4 * types.length, true);
    this.#setGrid(at + 16, kernel.grid(params));
    at += HEADER_BYTES;
    for (let i = 0; i < names.length; i += 1) {
      this.#bind(at, buffers[names[i]!]!, extentBytes(encoding.buffers[i]!, params));
      at += BINDING_BYTES;
    }
    for (const [name, type] of types) {
      const value = params[name]!;
      if (type === "f32") view.setFloat32(at, value, true);
      else view.setUint32(at, checkInteger(value, name), true);
      at += 4;
    }
  }

  /** The rest of the list runs when `event` has reached `value`. */
  wait(event: { readonly id: number }, value: number): void {
    this.#event(WAIT, event.id, value);
  }

  /** `event` takes `value` when everything before has run. */
  signal(event: { readonly id: number }, value: number): void {
    this.#event(SIGNAL, event.id, value);
  }

  #bind(at: number, { buffer, offset = 0 }: Binding, extent: number): void {
    this.#view.setUint32(at, buffer.id, true);
    this.#view.setUint32(at + 4, 0, true);
    this.#view.setFloat64(at + 8, offset, true);
    this.#view.setFloat64(at + 16, extent, true);
  }

  #setGrid(at: number, { groups, threads }: Grid): void {
    for (let axis = 0; axis < 3; axis += 1) {
      this.#view.setUint32(at + 4 * axis, groups[axis]!, true);
      this.#view.setUint32(at + 12 + 4 * axis, threads[axis]!, true);
    }
  }

  #event(kind: number, id: number, value: number): void {
    const view = this.#reserve(EVENT_BYTES);
    const at = this.#length - EVENT_BYTES;
    view.setUint32(at, kind, true);
    view.setUint32(at + 4, id, true);
    view.setFloat64(at + 8, value, true);
  }

  /** Appends `bytes` zeroed bytes for one command. */
  #reserve(bytes: number): DataView<ArrayBuffer> {
    const end = this.#length + bytes;
    if (end > this.#view.byteLength) {
      const larger = new Uint8Array(2 * end);
      larger.set(this.bytes);
      this.#view = new DataView(larger.buffer);
      this.#bytes = larger;
    }
    this.#bytes.fill(0, this.#length, end);
    this.#length = end;
    this.#count += 1;
    return this.#view;
  }
}

const NOT_IN_CATALOGUE = "a kernel outside of the catalogue was dispatched";

function checkInteger(value: number, name: string): number {
  if (value >>> 0 === value) return value;
  throw new Error(`assertion failed: ${name} = ${value} is no 32-bit number`);
}

/** A list in words, one line a command: for tests, traces and people. */
export function printCommands(bytes: Uint8Array): string {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const lines: string[] = [];
  let at = 0;
  while (at < bytes.length) {
    const kind = view.getUint32(at, true);
    if (kind !== DISPATCH) {
      const verb = kind === WAIT ? "wait" : "signal";
      lines.push(
        `${verb} event ${view.getUint32(at + 4, true)} >= ${view.getFloat64(at + 8, true)}`,
      );
      at += EVENT_BYTES;
      continue;
    }
    const kernel = catalogue[view.getUint32(at + 4, true)];
    assert(kernel !== undefined, "a command list from another catalogue");
    const names = Object.keys(kernel.buffers);
    const types = Object.entries(kernel.params);
    const parts = names.map((name, i) => {
      const binding = at + HEADER_BYTES + BINDING_BYTES * i;
      const [offset, extent] = [
        view.getFloat64(binding + 8, true),
        view.getFloat64(binding + 16, true),
      ];
      return `${name}=${view.getUint32(binding, true)}+${offset}[${extent}]`;
    });
    const params = at + HEADER_BYTES + BINDING_BYTES * names.length;
    for (const [i, [name, type]] of types.entries()) {
      const where = params + 4 * i;
      const value = type === "f32" ? view.getFloat32(where, true) : view.getUint32(where, true);
      parts.push(`${name}=${value}`);
    }
    lines.push(`${kernel.name} ${parts.join(" ")}`);
    at = params + align8(4 * types.length);
  }
  return lines.join("\n");
}
