import { afterAll, describe, expect, test } from "bun:test";
import { complete } from "../../src/engine/generate.ts";
import type { Model, ModelOptions } from "../../src/engine/model.ts";
import { samplingOptions } from "../../src/engine/sampler.ts";
import { type ReadAt, readAt } from "../../src/experts/reader.ts";
import { printCommands } from "../../src/native/commands.ts";
import { floatsOf } from "../../src/ops/tensor.ts";
import { isMetal } from "../fixtures/devices.ts";
import { failureOf } from "../fixtures/failures.ts";
import {
  closeModels,
  completionOf,
  continueFrom,
  loadTiny,
  openSession,
  promptOf,
} from "../fixtures/models.ts";
import { packageOf } from "../fixtures/packages.ts";

afterAll(closeModels);

const prompt = promptOf(33);

/** Logits after a prompt, as bytes to compare. */
async function logitsOf(model: Model): Promise<string> {
  const session = openSession(model);
  await session.extend(Uint32Array.from(prompt));
  model.stream.flush();
  return Buffer.from(floatsOf(model.forward.logits).slice().buffer).toString("hex");
}

/** What the device may run, counted from the lists that were committed and the gates that opened. */
class Watch {
  readonly #model: Model;
  readonly #begin: number;
  /** Dispatches before the first gate, between it and the second, and so on. */
  readonly #segments = [0];
  #opened = 0;
  /** Gates behind work on routed experts of the same list: a layer with hits and misses. */
  mixed = 0;
  waits = 0;
  onWait: () => void = () => {};

  constructor(model: Model) {
    const { stream, device } = model;
    this.#model = model;
    this.#begin = device.counters().dispatches;
    stream.observe((commands) => this.#count(printCommands(commands).split("\n")));
    const openGate = stream.openGate.bind(stream);
    stream.openGate = (gate) => {
      this.#opened += 1;
      openGate(gate);
    };
    const wait = device.wait.bind(device);
    device.wait = (...rest) => {
      this.waits += 1;
      this.onWait();
      wait(...rest);
    };
  }

  get runnable(): number {
    return this.#segments.slice(0, this.#opened + 1).reduce((sum, count) => sum + count, 0);
  }

  get closedGates(): number {
    return this.#segments.length - 1 - this.#opened;
  }

  get run(): number {
    return this.#model.device.counters().dispatches - this.#begin;
  }

  #count(lines: readonly string[]): void {
    let hasRouted = false;
    for (const line of lines) {
      if (line.startsWith("routed_gate")) hasRouted = true;
      if (line.startsWith("wait")) {
        this.#segments.push(0);
        if (hasRouted) this.mixed += 1;
      } else if (!line.startsWith("signal")) {
        this.#segments[this.#segments.length - 1]! += 1;
      }
    }
  }
}

/** A read that arrives only after `during`. */
const held =
  (during: () => Promise<void>): ReadAt =>
  async (descriptor, target, position) => {
    await during();
    return await readAt(descriptor, target, position);
  };

describe("while experts are read", () => {
  test("the device does all other work, and the thread waits for it only afterwards", async () => {
    let underWay = 0;
    let ticks = 0;
    let reads = 0;
    const during = async (): Promise<void> => {
      underWay += 1;
      reads += 1;
      await Bun.sleep(0);
      // The work on hits, and what is behind gates, has been handed over while the first read began.
      expect(watch.closedGates).toBeGreaterThanOrEqual(1);
      // Ends only if the device finishes the hits without this read, and timers fire.
      const target = ticks + 2;
      const isAwaited = (): boolean => watch.run < watch.runnable || ticks < target;
      while (isAwaited()) await Bun.sleep(1);
      expect(watch.run).toBe(watch.runnable);
      underWay -= 1;
    };
    const model = await loadTiny({ slots: 3, chunkRows: 1, read: held(during) });
    const session = openSession(model);
    const watch = new Watch(model);
    watch.onWait = () => expect([underWay, watch.closedGates]).toEqual([0, 0]);
    const timer = setInterval(() => (ticks += 1), 1);
    const ids = await continueFrom(session, prompt.slice(0, 6), 3);
    clearInterval(timer);
    expect(ids).toHaveLength(3);
    expect(reads).toBeGreaterThan(10);
    expect(watch.mixed).toBeGreaterThan(3);
    expect(watch.waits).toBeGreaterThan(6 * 6);
  });

  test("an expert that has arrived is computed while the next one is read", async () => {
    let reads = 0;
    let seconds = 0;
    const during = async (): Promise<void> => {
      reads += 1;
      if (reads === 1) return;
      // A token takes two experts: this is the second read of a layer. It ends only if the first one's
      // gate opens and the work behind it runs.
      seconds += 1;
      while (watch.closedGates !== 1 || watch.run < watch.runnable) await Bun.sleep(1);
    };
    const model = await loadTiny({ slots: 2, chunkRows: 1, read: held(during) });
    const session = openSession(model);
    const watch = new Watch(model);
    model.experts.observer = () => (reads = 0);
    await session.extend(Uint32Array.from(prompt.slice(0, 6)));
    expect(seconds).toBeGreaterThan(6);
  });

  test("the same holds for tiles of a chunk", async () => {
    const during = async (): Promise<void> => {
      while (watch.run < watch.runnable) await Bun.sleep(1);
    };
    const model = await loadTiny({ slots: 4, chunkRows: 16, read: held(during) });
    const watch = new Watch(model);
    const resident = await loadTiny({ slots: "resident", chunkRows: 16 });
    expect(await logitsOf(model)).toBe(await logitsOf(resident));
    expect(watch.mixed).toBeGreaterThan(3);
  });
});

describe("slots and tiles", () => {
  test("any number of slots gives the same bits, and on the CPU any number of rows of a chunk", async () => {
    const runs: string[] = [];
    // Metal has other kernels for many rows than for one.
    const other: Partial<ModelOptions>[] = [
      { slots: "resident", chunkRows: 1 },
      { slots: 1, chunkRows: 1 },
      { slots: 3, chunkRows: 7, threads: 1 },
    ];
    const options: Partial<ModelOptions>[] = [
      ...(isMetal ? [] : other),
      { slots: "resident", chunkRows: 33 },
      { slots: 8, chunkRows: 33 },
      { slots: 5, chunkRows: 33 },
      { slots: 2, chunkRows: 33 },
      { slots: 1, chunkRows: 33 },
    ];
    for (const option of options) runs.push(await logitsOf(await loadTiny(option)));
    expect(new Set(runs).size).toBe(1);
  });

  test("a token with more experts than slots uses what is cached before what it waits for", async () => {
    const directory = await packageOf("gemma4-a-e16");
    const prompt = promptOf(12);
    const wanted = await continueFrom(
      openSession(await loadTiny({ directory, slots: "resident" })),
      prompt,
    );
    for (const slots of [2, 3, 7]) {
      const model = await loadTiny({ directory, slots, read: held(() => Bun.sleep(1)) });
      expect(await continueFrom(openSession(model), prompt)).toEqual(wanted);
      expect(model.experts.counters.hits).toBeGreaterThan(0);
    }
  });

  test("reads that end in any order change nothing", async () => {
    let turn = 0;
    const jumbled = held(() => Bun.sleep(((turn += 7) % 5) + 1));
    const model = await loadTiny({ slots: 2, chunkRows: 33, read: jumbled });
    const resident = await loadTiny({ slots: "resident", chunkRows: 33 });
    expect(await logitsOf(model)).toBe(await logitsOf(resident));
  });

  test("layers open at their first touch", async () => {
    const model = await loadTiny({ slots: 2 });
    expect(model.store.slabBytes).toBe(0);
    await openSession(model).extend(Uint32Array.of(5));
    expect(model.store.slabBytes).toBe(6 * 2 * model.package.strideBytes);
  });

  test("are counted and shown", async () => {
    const model = await loadTiny({ slots: 8, chunkRows: 8 });
    const seen: { layer: number; experts: readonly number[]; misses: number }[] = [];
    model.experts.observer = (layer, experts, misses) => seen.push({ layer, experts, misses });
    const session = openSession(model);
    const ids = Uint32Array.of(5, 6);
    await session.extend(ids, { head: "none" });
    const cold = model.experts.counters;
    expect(seen.map(({ layer }) => layer)).toEqual([0, 1, 2, 3, 4, 5]);
    expect(seen.every(({ experts, misses }) => experts.length === misses)).toBe(true);
    const total = seen.reduce((sum, { misses }) => sum + misses, 0);
    expect(cold).toMatchObject({ hits: 0, misses: total, layers: 6, allHitLayers: 0 });
    expect(cold.bytesRead).toBe(total * model.package.strideBytes);
    expect(cold.readSeconds).toBeGreaterThan(0);
    // The same ids from the same place need the same experts.
    session.reset();
    await session.extend(ids, { head: "none" });
    const warm = model.experts.counters;
    expect(warm).toMatchObject({ hits: total, misses: total, layers: 12, allHitLayers: 6 });
    expect(warm.bytesRead).toBe(cold.bytesRead);
  });
});

describe("a token in layers whose experts are all in slots", () => {
  const tokens = promptOf(9, 5);

  /** A model that has seen a prompt, and counts the layers whose slots the device looks up. */
  async function warm(options: Partial<ModelOptions>, isPlanned: boolean, ids = prompt) {
    const model = await loadTiny({ chunkRows: 8, ...options });
    // Who looks on has every layer planned.
    if (isPlanned) model.experts.observer = () => {};
    const session = openSession(model);
    await session.extend(Uint32Array.from(ids), { head: "none" });
    const seen = { lookups: 0 };
    model.stream.observe((commands) => {
      seen.lookups += printCommands(commands).split("\n").filter(isLookup).length;
    });
    return { model, session, seen };
  }
  const isLookup = (line: string): boolean => line.startsWith("slot_lookup");

  type Warm = Awaited<ReturnType<typeof warm>>;
  async function logitsAfter({ model, session }: Warm, ids: readonly number[]): Promise<string[]> {
    const logits: string[] = [];
    for (const id of ids) {
      await session.extend(Uint32Array.of(id));
      model.stream.flush();
      logits.push(Buffer.from(floatsOf(model.forward.logits).slice().buffer).toString("hex"));
    }
    return logits;
  }

  const fixtures = ["gemma4-a", "gemma4-a-e16", "qwen36-a", "qwen36-a-dk64"];
  const runs = fixtures.flatMap((fixture) =>
    (["exact", "fast"] as const).map((precision) => [fixture, precision] as const),
  );
  test.each(runs)("has the bits of the planned path: %s, %s", async (fixture, precision) => {
    const directory = await packageOf(fixture);
    for (const slots of ["resident", 512] as const) {
      const options = { directory, precision, slots };
      const planned = await warm(options, true);
      const lookedUp = await warm(options, false);
      const hitsBefore = lookedUp.model.experts.counters.hits;
      expect(await logitsAfter(lookedUp, tokens)).toEqual(await logitsAfter(planned, tokens));
      expect(planned.seen.lookups).toBe(0);
      const { hits, layers, allHitLayers } = planned.model.experts.counters;
      expect(lookedUp.model.experts.counters).toMatchObject({ hits, layers, allHitLayers });
      const all = planned.model.package.layers.length * tokens.length;
      if (slots === "resident") expect(lookedUp.seen.lookups).toBe(all);
      expect(lookedUp.seen.lookups).toBeGreaterThan(0);
      expect(hits).toBeGreaterThan(hitsBefore);
    }
  });

  test("has them beside layers with experts missing, and while these are read", async () => {
    const options = { slots: 8, read: held(() => Bun.sleep(1)) };
    const few = prompt.slice(0, 8);
    const planned = await warm(options, true, few);
    const lookedUp = await warm(options, false, few);
    expect(await logitsAfter(lookedUp, tokens)).toEqual(await logitsAfter(planned, tokens));
    expect(lookedUp.seen.lookups).toBeGreaterThan(0);
    expect(lookedUp.seen.lookups).toBeLessThan(6 * tokens.length);
  });

  test("may follow another whose logits nobody waited for", async () => {
    const one = await warm({ slots: "resident" }, true);
    const other = await warm({ slots: "resident" }, false);
    for (const id of tokens.slice(0, -1)) await other.session.extend(Uint32Array.of(id));
    const last = (await logitsAfter(one, tokens)).slice(-1);
    expect(await logitsAfter(other, tokens.slice(-1))).toEqual(last);
  });

  test("is planned again once slots were given back", async () => {
    const planned = await warm({ slots: 8 }, true);
    const shrunk = await warm({ slots: 8 }, false);
    const wanted = await logitsAfter(planned, [...tokens, ...tokens]);
    const first = await logitsAfter(shrunk, tokens);
    const { lookups } = shrunk.seen;
    shrunk.model.store.resize(3);
    expect([...first, ...(await logitsAfter(shrunk, tokens))]).toEqual(wanted);
    expect(lookups).toBeGreaterThan(0);
    expect(shrunk.seen.lookups).toBe(lookups);
  });

  test("can be cancelled, and the session goes on from before it", async () => {
    const wanted = await logitsAfter(await warm({ slots: "resident" }, true), tokens);
    const run = await warm({ slots: "resident" }, false);
    const { model, session } = run;
    const options = { ...samplingOptions({ temperature: 0 }), seed: 0n };
    const greedy = { options, index: 0, seen: new Uint32Array() };
    const logits = await logitsAfter(run, tokens.slice(0, 4));
    await session.choose(greedy);
    const before = session.ids.length;
    await session.extend(Uint32Array.of(tokens[4]!));
    model.device.cancel();
    const failure = await failureOf(() => session.choose(greedy));
    expect(failure.code).toBe("native.cancelled");
    expect(session.ids).toHaveLength(before);
    expect([...logits, ...(await logitsAfter(run, tokens.slice(4)))]).toEqual(wanted);
  });

  test.skipIf(isMetal)("fails where the table is wrong (a GPU cannot say so)", async () => {
    const wanted = await continueFrom(openSession(await loadTiny({ slots: "resident" })), prompt);
    const { model, session } = await warm({ slots: "resident" }, false);
    const { table } = await model.store.open(2);
    const right = table.bytes.slice();
    table.bytes.fill(255);
    const failure = await failureOf(() => continueFrom(session, [...prompt, 5]));
    expect(failure.message).toContain("is in none of 8 slots");
    table.bytes.set(right);
    session.reset();
    expect(await continueFrom(session, prompt)).toEqual(wanted);
  });
});

describe("a read that fails", () => {
  /** Fails the reads whose numbers are in the set, in the given way. */
  function failing(
    numbers: ReadonlySet<number>,
    how: ReadAt,
  ): { read: ReadAt; count: () => number } {
    let count = 0;
    const read: ReadAt = (...request) => {
      count += 1;
      return (numbers.has(count) ? how : readAt)(...request);
    };
    return { read, count: () => count };
  }

  const ways: [string, ReadAt, string][] = [
    ["ends early", () => Promise.resolve(0), "the file ends after 0 of"],
    ["breaks", () => Promise.reject(new Error("EIO: i/o error")), "EIO: i/o error"],
    [
      "throws at once",
      () => {
        throw new Error("bad descriptor");
      },
      "bad descriptor",
    ],
  ];

  test.each(ways)("that %s ends the answer with one sentence", async (_, how, sentence) => {
    const wanted = await continueFrom(openSession(await loadTiny({ slots: 2 })), prompt);
    const fault = failing(new Set([150]), how);
    const model = await loadTiny({ slots: 2, read: fault.read });
    const session = openSession(model);
    const tokens: number[] = [];
    const onEvent: Parameters<typeof completionOf>[1] = {
      onEvent: (event) => {
        if (event.type === "token") tokens.push(event.id);
      },
    };
    const failure = await failureOf(() => complete(session, completionOf(prompt, onEvent)));
    expect(failure.code).toBe("expert.read");
    expect(failure.message).toMatch(/^expert \d of layer \d \(.*layer_0\d\.bin\): /);
    expect(failure.message).toContain(sentence);
    expect(failure.message).not.toContain("\n");
    expect(tokens).toEqual(wanted.slice(0, tokens.length));
    expect(tokens.length).toBeLessThan(wanted.length);
    // Nothing hangs, and what failed is read again when the session begins anew.
    const next = await failureOf(() => session.extend(Uint32Array.of(5)));
    expect(next.code).toBe("engine.state");
    session.reset();
    expect(await continueFrom(session, prompt)).toEqual(wanted);
    expect(fault.count()).toBeGreaterThan(150);
  });

  test("leaves every slot of its plan empty and none being read", async () => {
    const model = await loadTiny({ slots: 8, chunkRows: 16 });
    const layer = await model.store.open(2);
    const broken = await loadTiny({
      slots: 8,
      chunkRows: 16,
      read: failing(new Set([20]), () => Promise.resolve(0)).read,
    });
    await failureOf(() => openSession(broken).extend(Uint32Array.from(prompt)));
    let empty = 0;
    for (let index = 0; index < 6; index += 1) {
      const { cache } = await broken.store.open(index);
      expect([...cache!.slotReading]).toEqual(Array(8).fill(-1));
      empty += [...cache!.slotExpert].filter((expert) => expert === -1).length;
    }
    expect(empty).toBeGreaterThan(0);
    expect([...layer.cache!.slotExpert]).toEqual(Array(8).fill(-1));
  });

  test("may fail at any read", async () => {
    const wanted = await continueFrom(openSession(await loadTiny({ slots: 2 })), prompt, 2);
    for (let number = 1; number < 120; number += 17) {
      const { read } = failing(new Set([number, number + 1, number + 5]), () => Promise.resolve(0));
      const model = await loadTiny({ slots: 2, read });
      const session = openSession(model);
      for (let attempts = 1; ; attempts += 1) {
        try {
          expect(await continueFrom(session, prompt, 2)).toEqual(wanted);
          expect(attempts).toBeGreaterThan(1);
          break;
        } catch (error) {
          expect(error).toMatchObject({ code: "expert.read" });
        }
      }
    }
  });
});
