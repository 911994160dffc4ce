/**
 * One opened device and what it owns: buffers, memory, events, and the submission of command lists.
 * Every failure is an exception with the library's sentence. Knows no kernel and no model.
 */
import { MferenceError } from "../util/errors.ts";
import { check, openLibrary, type Symbols, viewMemory } from "./library.ts";

/** Seconds after which a host wait gives up: longer than any single command list may take. */
const WAIT_SECONDS = 600;

export interface DeviceOptions {
  /** Path of the library. */
  readonly library: string;
  /** Worker threads; 0 or absent: one for each core that the process may use. */
  readonly threads?: number;
  /** Forced instruction set; absent: the best. */
  readonly simd?: string;
}

export interface DeviceInfo {
  readonly name: string;
  readonly simd: string;
  readonly threads: number;
  readonly pageBytes: number;
  readonly bufferBytesMax: number;
  readonly memoryBytes: number;
}

export interface DeviceCounters {
  readonly lists: number;
  readonly dispatches: number;
  readonly busySeconds: number;
  readonly eventSeconds: number;
  readonly bufferBytes: number;
}

/** A region that kernels bind. */
export interface Buffer {
  readonly id: number;
  readonly byteLength: number;
}

/** A buffer that the host may also read and write through `bytes`, without a copy. */
export interface SharedBuffer extends Buffer {
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** Memory that a device library owns: a slab, or a file mapped read-only. */
export interface Memory {
  readonly id: number;
  readonly byteLength: number;
  /** Address of the first byte; views over parts of it are made by `Device.view`. */
  readonly address: number;
}

export interface DeviceEvent {
  readonly id: number;
}

const INFO_BYTES = 104;
const OPTIONS_BYTES = 16;
const SIMD_OFFSET = 64;
const THREADS_OFFSET = 76;

function encodeOptions({ threads = 0, simd = "" }: DeviceOptions): Uint8Array {
  const bytes = new Uint8Array(OPTIONS_BYTES);
  new DataView(bytes.buffer).setUint32(0, threads, true);
  bytes.set(new TextEncoder().encode(simd).subarray(0, 11), 4);
  return bytes;
}

const text = (bytes: Uint8Array): string =>
  new TextDecoder().decode(bytes.subarray(0, Math.max(0, bytes.indexOf(0))));

export class Device {
  readonly #symbols: Symbols;
  readonly #id: number;
  readonly #out = new Uint32Array(1);
  readonly #address = new BigUint64Array(1);
  readonly #size = new Float64Array(1);
  readonly info: DeviceInfo;

  /** @throws MferenceError "native.load", "native.abi", "native.call" */
  constructor(options: DeviceOptions) {
    this.#symbols = openLibrary(options.library);
    const encoded = encodeOptions(options);
    check(this.#symbols, this.#symbols.mf_device_create(encoded, this.#out), "opening the device");
    this.#id = this.#out[0]!;
    this.info = this.#readInfo();
  }

  /** The handle; another thread of this process cancels the device with it. */
  get id(): number {
    return this.#id;
  }

  #readInfo(): DeviceInfo {
    const bytes = new Uint8Array(INFO_BYTES);
    const view = new DataView(bytes.buffer);
    this.#check(this.#symbols.mf_device_info(this.#id, bytes), "asking for the device's facts");
    return {
      name: text(bytes.subarray(0, SIMD_OFFSET)),
      simd: text(bytes.subarray(SIMD_OFFSET, THREADS_OFFSET)),
      threads: view.getUint32(THREADS_OFFSET, true),
      pageBytes: view.getUint32(THREADS_OFFSET + 4, true),
      bufferBytesMax: view.getFloat64(THREADS_OFFSET + 12, true),
      memoryBytes: view.getFloat64(THREADS_OFFSET + 20, true),
    };
  }

  counters(): DeviceCounters {
    const values = new Float64Array(5);
    this.#check(this.#symbols.mf_counters(this.#id, values), "reading the counters");
    const [lists = 0, dispatches = 0, busySeconds = 0, eventSeconds = 0, bufferBytes = 0] = values;
    return { lists, dispatches, busySeconds, eventSeconds, bufferBytes };
  }

  /** Allocates zeroed bytes shared by host and device. */
  createBuffer(byteLength: number): SharedBuffer {
    const status = this.#symbols.mf_buffer_create(this.#id, byteLength, this.#out);
    this.#check(status, `allocating a buffer of ${byteLength} bytes`);
    const id = this.#out[0]!;
    const found = this.#symbols.mf_buffer_contents(id, this.#address, this.#size);
    this.#check(found, "asking where a buffer lies");
    return { id, byteLength, bytes: viewMemory(Number(this.#address[0]), byteLength) };
  }

  /** A buffer over part of a memory, without a copy. */
  bindMemory(memory: Memory, offset = 0, byteLength = memory.byteLength - offset): Buffer {
    const status = this.#symbols.mf_buffer_from_memory(
      this.#id,
      memory.id,
      offset,
      byteLength,
      this.#out,
    );
    this.#check(status, `binding ${byteLength} bytes of memory at ${offset}`);
    return { id: this.#out[0]!, byteLength };
  }

  destroyBuffer(buffer: Buffer): void {
    this.#check(this.#symbols.mf_buffer_destroy(buffer.id), "releasing a buffer");
  }

  /** A 2 MiB-aligned slab; its pages become physical only when they are written. */
  allocate(byteLength: number): Memory {
    const status = this.#symbols.mf_memory_allocate(byteLength, this.#out);
    return this.#memory(status, `allocating a slab of ${byteLength} bytes`);
  }

  /** Maps a whole file read-only. */
  mapFile(path: string): Memory {
    const bytes = new TextEncoder().encode(`${path}\0`);
    return this.#memory(this.#symbols.mf_memory_map(bytes, this.#out), `mapping ${path}`);
  }

  /** The host's view of part of a memory. It must not be used once the memory is released. */
  view(memory: Memory, offset: number, byteLength: number): Uint8Array<ArrayBuffer> {
    if (!(offset >= 0 && byteLength >= 0 && offset + byteLength <= memory.byteLength)) {
      throw new MferenceError(
        "native.memory",
        `a view of ${byteLength} bytes at ${offset} leaves a memory of ${memory.byteLength}`,
      );
    }
    return viewMemory(memory.address + offset, byteLength);
  }

  release(memory: Memory): void {
    this.#check(this.#symbols.mf_memory_release(memory.id), "releasing memory");
  }

  #memory(status: number, what: string): Memory {
    this.#check(status, what);
    const id = this.#out[0]!;
    this.#check(this.#symbols.mf_memory_contents(id, this.#address, this.#size), what);
    return { id, byteLength: this.#size[0]!, address: Number(this.#address[0]) };
  }

  createEvent(): DeviceEvent {
    this.#check(this.#symbols.mf_event_create(this.#id, this.#out), "creating an event");
    return { id: this.#out[0]! };
  }

  signal(event: DeviceEvent, value: number): void {
    this.#check(this.#symbols.mf_event_signal(event.id, value), "signalling an event");
  }

  eventValue(event: DeviceEvent): number {
    this.#check(this.#symbols.mf_event_value(event.id, this.#size), "reading an event");
    return this.#size[0]!;
  }

  /**
   * Blocks this thread until the event has reached the value.
   *
   * @throws MferenceError "native.cancelled", "native.timeout", "native.call" when a list failed
   */
  wait(event: DeviceEvent, value: number, timeoutSeconds = WAIT_SECONDS): void {
    const status = this.#symbols.mf_event_wait(event.id, value, timeoutSeconds);
    if (status !== 0) this.#check(status, "waiting for the device");
  }

  destroyEvent(event: DeviceEvent): void {
    this.#check(this.#symbols.mf_event_destroy(event.id), "releasing an event");
  }

  /** Hands over an encoded command list; returns before it has run. */
  submit(commands: Uint8Array): void {
    const status = this.#symbols.mf_submit(this.#id, commands, commands.length);
    if (status !== 0) this.#check(status, "submitting work");
  }

  /** Blocks until everything submitted has run. */
  finish(timeoutSeconds = WAIT_SECONDS): void {
    this.#check(this.#symbols.mf_finish(this.#id, timeoutSeconds), "waiting for the device");
  }

  cancel(): void {
    this.#check(this.#symbols.mf_cancel(this.#id), "cancelling");
  }

  resume(): void {
    this.#check(this.#symbols.mf_resume(this.#id), "resuming");
  }

  close(): void {
    this.#check(this.#symbols.mf_device_destroy(this.#id), "closing the device");
  }

  #check(status: number, call: string): void {
    check(this.#symbols, status, call);
  }
}

/**
 * Cancels a device that another thread of this process owns and may be blocked on; the library's handle
 * tables are the process's, not the thread's.
 */
export function cancelDevice(library: string, deviceId: number): void {
  const symbols = openLibrary(library);
  check(symbols, symbols.mf_cancel(deviceId), "cancelling");
}
