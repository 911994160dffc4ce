/**
 * A command list as plain bytes: built here from the catalogue, and so printed, compared, hashed and
 * replayed without a device. The layout is include/mf.h's.
 */
import { catalogue } from "../kernels/index.ts";
import {
  type AnyKernel,
  type Buffers,
  extentBytes,
  type KernelSpec,
  type Params,
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

const ids = new Map<AnyKernel, number>(catalogue.map((kernel, id) => [kernel, id]));

const align8 = (bytes: number): number => (bytes + 7) & ~7;

/** A growing list of dispatches, waits and signals. */
export class Commands {
  #view: DataView<ArrayBuffer>;
  #length = 0;
  #count = 0;

  constructor(capacityBytes = 16 * 1024) {
    this.#view = new DataView(new ArrayBuffer(capacityBytes));
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
    const id = ids.get(kernel);
    assert(id !== undefined, `kernel ${kernel.name} is not in the catalogue`);
    const names = Object.keys(kernel.buffers);
    const types = Object.entries(kernel.params);
    const { groups, threads } = kernel.grid(params);
    const at = this.#append(HEADER_BYTES + BINDING_BYTES * names.length + align8(4 * types.length));
    const header = [DISPATCH, id, names.length, 4 * types.length, ...groups, ...threads];
    for (const [i, value] of header.entries()) this.#view.setUint32(at + 4 * i, value, true);
    let cursor = at + HEADER_BYTES;
    for (const name of names) {
      this.#bind(cursor, buffers[name]!, extentBytes(kernel.buffers[name]!, params));
      cursor += BINDING_BYTES;
    }
    for (const [name, type] of types) {
      const value = params[name]!;
      if (type === "f32") this.#view.setFloat32(cursor, value, true);
      else this.#setInteger(cursor, value, `${kernel.name}.${name}`);
      cursor += 4;
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

  #setInteger(at: number, value: number, name: string): void {
    assert(Number.isInteger(value) && value >= 0 && value < 2 ** 32, `${name} = ${value}`);
    this.#view.setUint32(at, value, true);
  }

  #event(kind: number, id: number, value: number): void {
    const at = this.#append(EVENT_BYTES);
    this.#view.setUint32(at, kind, true);
    this.#view.setUint32(at + 4, id, true);
    this.#view.setFloat64(at + 8, value, true);
  }

  /** Makes room for `bytes` zeroed bytes and returns where they begin. */
  #append(bytes: number): number {
    const at = this.#length;
    if (at + bytes > this.#view.byteLength) {
      const larger = new Uint8Array(2 * (at + bytes));
      larger.set(this.bytes);
      this.#view = new DataView(larger.buffer);
    }
    new Uint8Array(this.#view.buffer, at, bytes).fill(0);
    this.#length += bytes;
    this.#count += 1;
    return at;
  }
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
