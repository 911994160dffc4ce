/** The device's core through the ABI: handles, checked lists, events, cancelling, memory, threads. */
import { afterAll, afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { matmulAffine } from "../../src/kernels/matmul.ts";
import { routedReduce } from "../../src/kernels/moe.ts";
import { argmax, penalize } from "../../src/kernels/sampling.ts";
import { Commands } from "../../src/native/commands.ts";
import { Device, type SharedBuffer } from "../../src/native/device.ts";
import { openLibrary } from "../../src/native/library.ts";
import { sentenceOf } from "../../src/util/errors.ts";
import { isMetal, isOnMac, library } from "../fixtures/devices.ts";

const raw = openLibrary(library);
const folder = mkdtempSync(join(tmpdir(), "mference-device-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const ARGUMENT = -1;
const HANDLE = -2;
const KERNEL = -4;
const DEVICE = -8;

let device: Device;
beforeEach(() => {
  device = new Device({ library, threads: 2 });
});
afterEach(() => {
  try {
    device.close();
  } catch {
    // The test closed it.
  }
});

const out = new Uint32Array(1);

function lastSentence(): string {
  const text = new Uint8Array(512);
  raw.mf_last_error(text, text.length);
  return new TextDecoder().decode(text.subarray(0, text.indexOf(0)));
}

/** Floats of a shared buffer. */
const floats = ({ bytes }: SharedBuffer): Float32Array =>
  new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);

/**
 * Dispatches that count: each adds a row of ones to the sum so far, in turn from one buffer to the
 * other, so that the sum is the number of dispatches that ran, each after the one before.
 */
class Counter {
  readonly width: number;
  readonly sums: readonly SharedBuffer[];
  readonly weights: SharedBuffer;
  run = 0;

  constructor(owner: Device, width = 4096) {
    this.width = width;
    this.sums = [0, 1].map(() => owner.createBuffer(8 * width));
    this.weights = owner.createBuffer(8);
    floats(this.weights).fill(1);
    for (const sum of this.sums) floats(sum).fill(1, width);
  }

  append(commands: Commands, count: number): void {
    for (let i = 0; i < count; i += 1) {
      const [experts, y] = [this.sums[this.run % 2]!, this.sums[(this.run + 1) % 2]!];
      commands.dispatch(
        routedReduce,
        { experts: { buffer: experts }, weights: { buffer: this.weights }, y: { buffer: y } },
        { T: 1, K: 2, D: this.width },
      );
      this.run += 1;
    }
  }

  expectAllRun(): void {
    const sums = floats(this.sums[this.run % 2]!).subarray(0, this.width);
    expect(sums.every((sum) => sum === this.run)).toBe(true);
  }
}

describe("handles", () => {
  test("zero, stale ones, ones of another kind and any other number are refused", () => {
    const buffer = device.createBuffer(64);
    const event = device.createEvent();
    const value = new Float64Array(1);
    expect(raw.mf_event_value(0, value)).toBe(HANDLE);
    expect(lastSentence()).toBe("0 is no handle; the one of an event was expected");
    expect(raw.mf_event_value(buffer.id, value)).toBe(HANDLE);
    expect(lastSentence()).toContain("is the one of a buffer");
    device.destroyEvent(event);
    expect(raw.mf_event_value(event.id, value)).toBe(HANDLE);
    expect(lastSentence()).toContain("destroyed or never created");
    const later = device.createEvent();
    expect(later.id).not.toBe(event.id);
    for (let i = 0; i < 32; i += 1) {
      const number = (later.id ^ (1 << i)) >>> 0;
      expect(raw.mf_event_signal(number, 1)).toBe(HANDLE);
    }
    expect(device.eventValue(later)).toBe(0);
  });

  test("a handle does not come back while a hundred thousand others are made", () => {
    const first = device.createEvent();
    device.destroyEvent(first);
    let isSeen = false;
    for (let i = 0; i < 100_000; i += 1) {
      raw.mf_event_create(device.id, out);
      isSeen ||= out[0] === first.id;
      raw.mf_event_destroy(out[0]!);
    }
    expect(isSeen).toBe(false);
  });

  test("they run out in a sentence", () => {
    const made: number[] = [];
    while (raw.mf_event_create(device.id, out) === 0) made.push(out[0]!);
    expect(lastSentence()).toBe("no handle is left for an event: destroy what is no longer used");
    expect(made.length).toBeGreaterThan(100_000);
    for (const id of made) raw.mf_event_destroy(id);
    device.destroyEvent(device.createEvent());
  });

  test("what belongs to another device is refused", () => {
    const other = new Device({ library, threads: 1 });
    const counter = new Counter(other);
    const commands = new Commands();
    counter.append(commands, 1);
    expect(raw.mf_submit(device.id, commands.bytes, commands.bytes.length)).toBe(HANDLE);
    expect(lastSentence()).toContain("another device");
    const signals = new Commands();
    signals.signal(other.createEvent(), 1);
    expect(raw.mf_submit(device.id, signals.bytes, signals.bytes.length)).toBe(HANDLE);
    other.submit(commands.bytes);
    other.finish(60);
    counter.expectAllRun();
    other.close();
  });
});

describe("sizes", () => {
  test.each([Number.NaN, -1, 0.5, -0.5, Infinity, -Infinity, 2 ** 53 + 2, 0])(
    "a buffer of %p bytes is refused",
    (bytes) => {
      expect(raw.mf_buffer_create(device.id, bytes, out)).toBe(ARGUMENT);
      expect(raw.mf_memory_allocate(bytes, out)).toBe(ARGUMENT);
      expect(lastSentence()).toContain("expected");
    },
  );

  test("more than there is, is a sentence", () => {
    expect(() => device.createBuffer(2 ** 52)).toThrow(/could not be had/);
    expect(() => device.allocate(2 ** 52)).toThrow(/could not be had/);
  });

  test("a range must lie in its memory", () => {
    const memory = device.allocate(4096);
    for (const [offset, bytes] of [
      [4096, 1],
      [0, 4097],
      [4095, 2],
      [2 ** 53, 2 ** 53],
      [0, 0],
      [Number.NaN, 1],
      [-8, 16],
    ] as const) {
      expect(raw.mf_buffer_from_memory(device.id, memory.id, offset, bytes, out)).toBe(ARGUMENT);
    }
    expect(device.bindMemory(memory, 4095, 1).byteLength).toBe(1);
    device.release(memory);
  });
});

describe("lists are checked before they run", () => {
  /** A list of one good dispatch whose bytes the test then spoils. */
  function goodList(): Uint8Array<ArrayBuffer> {
    const commands = new Commands();
    new Counter(device).append(commands, 1);
    return commands.bytes.slice();
  }

  test.each<[string, (view: DataView) => void, number, RegExp]>([
    ["kind", (view) => view.setUint32(0, 4, true), ARGUMENT, /kind 4/],
    ["kernel", (view) => view.setUint32(4, 999, true), KERNEL, /names kernel 999/],
    ["buffer count", (view) => view.setUint32(8, 4, true), KERNEL, /has 4 buffers/],
    ["buffer count", (view) => view.setUint32(8, 2 ** 32 - 1, true), KERNEL, /buffers/],
    ["parameter bytes", (view) => view.setUint32(12, 16, true), KERNEL, /16 parameter bytes/],
    ["buffer", (view) => view.setUint32(40, 12345, true), HANDLE, /handle 12345/],
    ["reserved word", (view) => view.setUint32(44, 1, true), ARGUMENT, /reserved/],
    ["offset", (view) => view.setFloat64(48, -4, true), ARGUMENT, /offset .* -4/],
    ["offset", (view) => view.setFloat64(48, Number.NaN, true), ARGUMENT, /offset/],
    ["offset", (view) => view.setFloat64(48, 4, true), KERNEL, /leaves its buffer/],
    ["size", (view) => view.setFloat64(56, 32764, true), KERNEL, /32764 bytes; 32768 are/],
    ["size", (view) => view.setFloat64(56, Infinity, true), ARGUMENT, /size/],
    ["parameter", (view) => view.setUint32(112, 2 ** 32 - 1, true), KERNEL, /binding 0 has/],
  ])("a wrong %s is refused with a sentence", (_, spoil, status, sentence) => {
    const bytes = goodList();
    expect(raw.mf_submit(device.id, bytes, bytes.length)).toBe(0);
    spoil(new DataView(bytes.buffer));
    expect(raw.mf_submit(device.id, bytes, bytes.length)).toBe(status);
    expect(lastSentence()).toMatch(sentence);
  });

  test("a list cut anywhere is refused, and nothing of it runs", () => {
    const counter = new Counter(device);
    const commands = new Commands();
    counter.append(commands, 2);
    const { bytes } = commands;
    const middle = bytes.length / 2;
    for (let length = 1; length < bytes.length; length += 1) {
      const expected = length === middle ? 0 : ARGUMENT;
      expect(raw.mf_submit(device.id, bytes, length)).toBe(expected);
    }
    device.finish(60);
    expect(device.counters().dispatches).toBe(1);
    expect(raw.mf_submit(device.id, bytes, 0)).toBe(0);
    for (const size of [Number.NaN, -8, 7.5, 2 ** 40]) {
      expect(raw.mf_submit(device.id, bytes, size)).toBe(ARGUMENT);
    }
    expect(raw.mf_submit(device.id, null, 8)).toBe(ARGUMENT);
  });

  test("elements start at their multiples, and read-only memory is not written", () => {
    const path = join(folder, "zeros");
    writeFileSync(path, new Uint8Array(4096));
    const memory = device.mapFile(path);
    const mapped = device.bindMemory(memory);
    const buffer = device.createBuffer(4096);
    const list = (logits: { buffer: { id: number }; offset?: number }, result: { id: number }) => {
      const commands = new Commands();
      commands.dispatch(argmax, { logits, result: { buffer: result } }, { T: 1, V: 8 });
      return commands.bytes;
    };
    device.submit(list({ buffer: mapped, offset: 4 }, buffer));
    device.finish(60);
    expect(() => device.submit(list({ buffer: mapped, offset: 2 }, buffer))).toThrow(
      /multiple of 4/,
    );
    expect(() => device.submit(list({ buffer }, mapped))).toThrow(/read-only/);
    device.release(memory);
  });

  test("random bytes get a status and never crash", () => {
    const event = device.createEvent();
    const counter = new Counter(device, 64);
    const good = new Commands();
    counter.append(good, 2);
    const dispatchBytes = good.bytes.length / 2;
    good.wait(event, 0);
    let state = 1;
    const random = (below: number): number => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    for (let round = 0; round < 3000; round += 1) {
      const bytes = good.bytes.slice();
      for (let i = random(4); i >= 0; i -= 1) {
        const place = random(bytes.length);
        // A grid is the caller's word; a GPU would take the time for all that it says.
        if (!isMetal || place % dispatchBytes < 16 || place % dispatchBytes >= 40) {
          bytes[place] = random(256);
        }
      }
      const status = raw.mf_submit(device.id, bytes, bytes.length - 8 * random(3));
      expect(status <= 0 && status >= DEVICE).toBe(true);
      if (status !== 0) expect(lastSentence()).not.toBe("");
    }
    device.cancel();
    raw.mf_finish(device.id, 60);
    device.resume();
  });
});

describe("events", () => {
  test("values grow and never fall", () => {
    const event = device.createEvent();
    expect(device.eventValue(event)).toBe(0);
    device.signal(event, 5);
    device.signal(event, 3);
    expect(device.eventValue(event)).toBe(5);
    device.wait(event, 5, 0);
    expect(() => device.wait(event, 6, 0)).toThrow(/not done in time/);
    for (const value of [Number.NaN, -1, 0.5, 2 ** 53 + 2]) {
      expect(raw.mf_event_signal(event.id, value)).toBe(ARGUMENT);
      expect(raw.mf_event_wait(event.id, value, 0)).toBe(ARGUMENT);
    }
    for (const timeout of [Number.NaN, -1]) {
      expect(raw.mf_event_wait(event.id, 1, timeout)).toBe(ARGUMENT);
    }
  });

  test("a list waits for the host, and the host for the list", () => {
    const [gate, done] = [device.createEvent(), device.createEvent()];
    const counter = new Counter(device);
    const commands = new Commands();
    counter.append(commands, 3);
    commands.signal(done, 1);
    commands.wait(gate, 7);
    counter.append(commands, 2);
    commands.signal(done, 2);
    device.submit(commands.bytes);
    device.wait(done, 1, 60);
    expect(floats(counter.sums[1]!)[0]).toBe(3);
    expect(() => device.wait(done, 2, 0.005)).toThrow(/not done in time/);
    expect(() => device.finish(0.005)).toThrow(/not done in time/);
    device.signal(gate, 6);
    expect(device.eventValue(done)).toBe(1);
    expect(() => device.destroyEvent(gate)).toThrow(/waits for event/);
    expect(() => device.destroyBuffer(counter.weights)).toThrow(/submitted command list/);
    device.signal(gate, 7);
    device.wait(done, 2, 60);
    counter.expectAllRun();
    device.destroyEvent(gate);
    device.destroyBuffer(counter.weights);
  });

  test("lists run in the order of their submission", () => {
    const counter = new Counter(device);
    for (let i = 0; i < 50; i += 1) {
      const commands = new Commands();
      counter.append(commands, i % 4);
      device.submit(commands.bytes);
    }
    device.finish(60);
    counter.expectAllRun();
    const { lists, dispatches, busySeconds, bufferBytes } = device.counters();
    expect(lists).toBe(50);
    expect(dispatches).toBe(counter.run);
    expect(busySeconds).toBeGreaterThan(0);
    expect(bufferBytes).toBe(2 * 8 * 4096 + 8);
  });

  test("work goes on while nobody waits", async () => {
    const done = device.createEvent();
    const counter = new Counter(device);
    const commands = new Commands();
    counter.append(commands, 10);
    commands.signal(done, 1);
    device.submit(commands.bytes);
    while (device.eventValue(done) < 1) await Bun.sleep(1);
    counter.expectAllRun();
  });
});

describe("cancelling and failing", () => {
  test("cancelled lists signal, and run no more where they can be stopped, until resumed", () => {
    const [gate, done] = [device.createEvent(), device.createEvent()];
    const counter = new Counter(device);
    const commands = new Commands();
    commands.wait(gate, 1);
    counter.append(commands, 5);
    commands.signal(done, 1);
    device.submit(commands.bytes);
    device.cancel();
    expect(() => device.wait(done, 1, 60)).toThrow(/cancelled/);
    expect(() => device.submit(commands.bytes)).toThrow(/cancelled/);
    expect(() => device.finish(60)).toThrow(/cancelled/);
    expect(device.eventValue(done)).toBe(1);
    // A committed command buffer cannot be taken back: what it computes is for nobody.
    expect(device.counters().dispatches).toBe(isMetal ? 5 : 0);
    for (const sum of counter.sums) floats(sum).fill(0, 0, counter.width);
    device.resume();
    device.signal(gate, 1);
    device.submit(commands.bytes);
    device.finish(60);
    counter.expectAllRun();
  });

  test("another thread cancels a wait", async () => {
    const event = device.createEvent();
    const script = join(folder, "cancel.ts");
    const module = join(import.meta.dir, "../../src/native/device.ts");
    writeFileSync(
      script,
      `import { cancelDevice } from ${JSON.stringify(module)};
       self.onmessage = ({ data }) => cancelDevice(data.library, data.id);
       self.postMessage("ready");`,
    );
    const worker = new Worker(script);
    await new Promise((resolve) => worker.addEventListener("message", resolve, { once: true }));
    worker.postMessage({ library, id: device.id });
    expect(() => device.wait(event, 1, 60)).toThrow(/cancelled/);
    worker.terminate();
  });

  // A GPU cannot fail for what it reads; how it fails is in metal.test.ts.
  test.skipIf(isMetal)("a failed list makes waits say why, until resumed", () => {
    const done = device.createEvent();
    const [logits, ids] = [device.createBuffer(64), device.createBuffer(16)];
    new Uint32Array(ids.bytes.buffer, ids.bytes.byteOffset, 1)[0] = 99;
    const commands = new Commands();
    commands.dispatch(
      penalize,
      { logits: { buffer: logits }, ids: { buffer: ids } },
      { V: 16, N: 1, penalty: 2 },
    );
    commands.signal(done, 1);
    device.submit(commands.bytes);
    expect(() => device.wait(done, 1, 60)).toThrow(/99/);
    expect(() => device.finish(60)).toThrow(/99/);
    expect(() => device.submit(commands.bytes)).toThrow(/99/);
    device.resume();
    new Uint32Array(ids.bytes.buffer, ids.bytes.byteOffset, 1)[0] = 3;
    device.submit(commands.bytes);
    device.wait(done, 1, 60);
    device.finish(60);
  });
});

describe("the end", () => {
  test("a busy device, a blocked one and one with lists not begun end", () => {
    const [gate, done] = [device.createEvent(), device.createEvent()];
    const counter = new Counter(device);
    const commands = new Commands();
    counter.append(commands, 20);
    commands.wait(gate, 1);
    commands.signal(done, 1);
    for (let i = 0; i < 3; i += 1) device.submit(commands.bytes);
    device.close();
    expect(raw.mf_event_wait(done.id, 0, 1)).toBe(DEVICE);
    expect(raw.mf_submit(device.id, commands.bytes, 0)).toBe(HANDLE);
    expect(raw.mf_device_destroy(device.id)).toBe(HANDLE);
    for (const { id } of counter.sums) expect(raw.mf_buffer_destroy(id)).toBe(0);
    expect(raw.mf_event_destroy(gate.id)).toBe(0);
    expect(raw.mf_event_destroy(done.id)).toBe(0);
  });

  test("memory lives until its handle and every buffer over it are gone", () => {
    const memory = device.allocate(3 * 2 ** 20);
    expect(memory.address % 2 ** 21).toBe(0);
    device.view(memory, 0, 64).fill(7);
    const path = join(folder, "mapped");
    writeFileSync(path, new Uint8Array(64).fill(9));
    const file = device.mapFile(path);
    rmSync(path);
    for (const [owner, value] of [
      [memory, 7],
      [file, 9],
    ] as const) {
      const view = device.view(owner, 0, 64);
      const buffers = [device.bindMemory(owner, 0, 64), device.bindMemory(owner, 32, 32)];
      device.release(owner);
      expect(() => device.release(owner)).toThrow(/destroyed or never created/);
      device.destroyBuffer(buffers[0]!);
      expect(view.every((byte) => byte === value)).toBe(true);
      device.destroyBuffer(buffers[1]!);
    }
    expect(device.counters().bufferBytes).toBe(0);
  });

  // What a GPU does then is not known (docs/metal.md).
  test.skipIf(isOnMac && isMetal)("a mapped file that is cut fails only lists that use it", () => {
    const path = join(folder, "cut");
    writeFileSync(path, new Uint8Array(1 << 20).fill(1));
    const mapped = device.bindMemory(device.mapFile(path));
    const own = device.createBuffer(1 << 20);
    truncateSync(path, 5000);
    for (const buffer of [mapped, own, mapped]) {
      const commands = new Commands();
      commands.dispatch(argmax, { logits: { buffer }, result: { buffer: own } }, { T: 1, V: 9000 });
      device.submit(commands.bytes);
      if (buffer === own) device.finish(60);
      else expect(() => device.finish(60)).toThrow(/was cut or could not be read/);
      device.resume();
    }
  });

  test("a file that cannot be mapped is said", () => {
    expect(() => device.mapFile(join(folder, "absent"))).toThrow(/could not be opened/);
    expect(() => device.mapFile(folder)).toThrow(/regular file/);
    const empty = join(folder, "empty");
    writeFileSync(empty, "");
    expect(() => device.mapFile(empty)).toThrow(/not empty/);
  });
});

describe("threads", () => {
  test.skipIf(isMetal)("impossible devices are refused with the possible values (CPU)", () => {
    expect(() => new Device({ library, threads: 65 })).toThrow(/at most 64/);
    expect(() => new Device({ library, simd: "sse9" })).toThrow(/portable, avx2, avx512 or neon/);
    const foreign = process.arch === "arm64" ? "avx2" : "neon";
    expect(() => new Device({ library, simd: foreign })).toThrow(/processor lacks/);
  });

  test("results are the same bytes with 1 to 4 threads", () => {
    const shape = { T: 3, I: 704, O: 1000, bits: 4, activationBits: 16 };
    const seeded = (buffer: SharedBuffer, seed: number): void => {
      let state = seed;
      for (let i = 0; i < buffer.bytes.length; i += 1) {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
        // Bytes that make ordinary floats of both widths.
        buffer.bytes[i] = i % 2 === 1 ? 0x3c + (state >>> 31) : state >>> 24;
      }
    };
    const results = [1, 2, 3, 4].map((threads) => {
      const owner = new Device({ library, threads });
      const x = owner.createBuffer(4 * shape.T * shape.I);
      const codes = owner.createBuffer((shape.O * shape.I) / 2);
      const scales = owner.createBuffer(2 * shape.O * 11);
      const biases = owner.createBuffer(2 * shape.O * 11);
      const y = owner.createBuffer(4 * shape.T * shape.O);
      for (const [i, buffer] of [x, codes, scales, biases].entries()) seeded(buffer, i + 1);
      const commands = new Commands();
      const bind = (buffer: SharedBuffer) => ({ buffer });
      const buffers = {
        x: bind(x),
        codes: bind(codes),
        scales: bind(scales),
        biases: bind(biases),
        y: bind(y),
      };
      for (let i = 0; i < 8; i += 1) commands.dispatch(matmulAffine, buffers, shape);
      owner.submit(commands.bytes);
      owner.finish(60);
      const result = y.bytes.slice();
      owner.close();
      return result;
    });
    expect(new Float32Array(results[0]!.buffer).every(Number.isFinite)).toBe(true);
    for (const result of results.slice(1)) expect(result).toEqual(results[0]!);
  });

  test("two devices work side by side", () => {
    const other = new Device({ library, threads: 2 });
    const counters = [new Counter(device), new Counter(other)];
    for (let round = 0; round < 20; round += 1) {
      for (const [i, owner] of [device, other].entries()) {
        const commands = new Commands();
        counters[i]!.append(commands, 3);
        owner.submit(commands.bytes);
      }
    }
    device.finish(60);
    other.finish(60);
    for (const counter of counters) counter.expectAllRun();
    other.close();
  });

  test("the sentence of a failure belongs to the thread that met it", () => {
    expect(raw.mf_event_signal(0, 1)).toBe(HANDLE);
    expect(sentenceOf(new Error(lastSentence()))).toContain("0 is no handle");
    const short = new Uint8Array(8);
    expect(raw.mf_last_error(short, short.length)).toBe(0);
    expect(new TextDecoder().decode(short)).toBe("0 is no\0");
    expect(raw.mf_last_error(short, 0)).toBe(ARGUMENT);
  });
});
