import { afterAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { prepareLibraries } from "../../src/engine/libraries.ts";
import {
  loadModel,
  type ModelOptions,
  rowBytesOf,
  wantsDirectReads,
} from "../../src/engine/model.ts";
import { Session } from "../../src/engine/session.ts";
import { editJson, flipByte } from "../fixtures/checkpoints.ts";
import { capLogits } from "../../src/ops/sampling.ts";
import { deviceKind, isMetal } from "../fixtures/devices.ts";
import { failureOf } from "../fixtures/failures.ts";
import {
  closeModels,
  continueFrom,
  demoPackage,
  loadTiny,
  openSession,
  promptOf,
} from "../fixtures/models.ts";
import { forgeJson, packageOf } from "../fixtures/packages.ts";

afterAll(closeModels);

const { library, tokenizerLibrary } = await prepareLibraries({ device: deviceKind });

const prompt = promptOf(12);
const WEIGHTS = "model_weights.bin";

test("experts are read past the cache where package and slots do not both fit", async () => {
  const { package: opened } = await loadTiny({});
  const bytes = (slots: number): number =>
    opened.layers.reduce(
      (sum, layer) => sum + layer.sizeBytes + slots * layer.strideBytes,
      opened.weights.sizeBytes,
    );
  expect(wantsDirectReads(opened, 3, bytes(3))).toBe(false);
  expect(wantsDirectReads(opened, 3, bytes(3) - 1)).toBe(true);
  // Slots without an expert are not allocated; mapped files are read by the system.
  expect(wantsDirectReads(opened, 100, bytes(8))).toBe(false);
  expect(wantsDirectReads(opened, "resident", 0)).toBe(false);
});

describe("loading", () => {
  test("sizes everything by its options", async () => {
    const model = await loadTiny({ slots: 100, contextRows: 50, chunkRows: 64, logitRows: 2 });
    expect([model.slots, model.chunkRows, model.kv.contextRows]).toEqual([8, 50, 50]);
    expect(model.forward.logits.rows).toBe(2);
    const memory = model.memory();
    expect(memory).toMatchObject({
      commonBytes: model.package.weights.sizeBytes,
      kvBytes: model.kv.byteLength,
      slotBytes: 0,
    });
    // Keys, values and scratch are all that the device allocates.
    const { bufferBytes } = model.device.counters();
    expect(bufferBytes).toBe(memory.kvBytes + memory.scratchBytes);
  });

  test.each(["gemma4-a", "qwen36-a-dk64"])(
    "counts the activations of %s generously",
    async (name) => {
      const directory = await packageOf(name);
      const scratchBytes = async (chunkRows: number): Promise<number> =>
        (await loadTiny({ directory, chunkRows })).memory().scratchBytes;
      const rowBytes = ((await scratchBytes(64)) - (await scratchBytes(32))) / 32;
      const { shape } = await loadTiny({ directory });
      expect(rowBytes).toBeGreaterThan(0.4 * rowBytesOf(shape));
      expect(rowBytes).toBeLessThan(rowBytesOf(shape));
    },
  );

  test.each([
    [{ contextRows: 0 }, "a context of 0 tokens is not possible: expected 1 to 4096"],
    [{ contextRows: 4097 }, "a context of 4097 tokens"],
    [{ contextRows: 1.5 }, "a context of 1.5 tokens"],
    [{ chunkRows: 0 }, "a chunk of 0 rows: expected 1 or more"],
    [{ slots: 0 }, "the number of expert slots must be a whole number from 1 to 8"],
    [{ slots: 2.5 }, "not 2.5"],
  ] as [Partial<ModelOptions>, string][])("refuses %j", async (options, sentence) => {
    const failure = await failureOf(() => loadTiny(options));
    expect(failure.code).toBe("engine.options");
    expect(failure.message).toContain(sentence);
  });

  test.skipIf(isMetal)(
    "refuses an instruction set that is none, in one sentence (CPU)",
    async () => {
      const failure = await failureOf(() => loadTiny({ simd: "mmx" }));
      expect(failure.code).toBe("native.call");
      expect(failure.message).toContain("mmx");
      expect(failure.message).not.toContain("\n");
    },
  );

  test("closes with work under way", async () => {
    const directory = await packageOf();
    const model = await loadModel({ directory, library, contextRows: 96 });
    const session = new Session(model);
    await session.extend(Uint32Array.from(prompt));
    // A list that cannot end by itself holds the buffers it uses.
    const { stream, forward } = model;
    stream.gate();
    capLogits(stream, forward.logits, forward.logits, 0);
    stream.commit();
    expect(() => model.device.destroyBuffer(forward.logits.buffer)).toThrow("list");
    session.close();
    stream.gate();
    capLogits(stream, forward.logits, forward.logits, 0);
    stream.commit();
    model.close();
  });
});

/** Loads a package that was harmed and runs a few tokens. */
async function failureAfter(harm: (directory: string) => void) {
  const directory = await packageOf();
  harm(directory);
  const failure = await failureOf(async () => {
    await continueFrom(openSession(await loadTiny({ directory })), prompt, 3);
  });
  expect(failure.message).not.toContain("\n");
  return failure;
}

const fileOf = (directory: string, name: string): string => path.join(directory, name);
const LAYER = "packed_experts/layer_03.bin";

describe("a damaged package is refused before any token", () => {
  test.each([
    [WEIGHTS, "cut", "format.changed", "bytes, but its package recorded"],
    [WEIGHTS, "altered", "format.changed", "is damaged: its SHA-256 is"],
    [WEIGHTS, "removed", "install.missing", "is missing; install the model again"],
    [LAYER, "cut", "format.changed", "bytes, but its package recorded"],
    [LAYER, "altered", "format.changed", "is damaged: its SHA-256 is"],
    [LAYER, "removed", "install.missing", "is missing"],
    ["manifest.json", "cut", "format.manifest", "manifest.json"],
    ["manifest.json", "removed", "model.partial", "has no manifest.json"],
  ] as const)("%s %s", async (name, how, code, sentence) => {
    const failure = await failureAfter((directory) => {
      const file = fileOf(directory, name);
      if (how === "cut") fs.truncateSync(file, fs.statSync(file).size - 1);
      else if (how === "removed") fs.rmSync(file);
      else flipByte(file, -1);
    });
    expect(failure.code).toBe(code);
    expect(failure.message).toContain(sentence);
  });

  test("a manifest of another family", async () => {
    const named = await failureAfter((directory) =>
      editJson(fileOf(directory, "manifest.json"), (manifest) => {
        manifest["arch"]["family"] = "deepseek";
      }),
    );
    expect(named.code).toBe("model.family");
    expect(named.message).toContain("deepseek");
  });

  test("the manifest of another model of the same family", async () => {
    const other = await packageOf("gemma4-a-h320");
    const failure = await failureAfter((directory) =>
      fs.copyFileSync(fileOf(other, "manifest.json"), fileOf(directory, "manifest.json")),
    );
    expect(failure.code).toBe("format.changed");
  });

  test("a config that is not the manifest's, forged digests and all", async () => {
    const failure = await failureAfter((directory) =>
      forgeJson(directory, "tokenizer/config.json", (config) => {
        config["text_config"]["num_hidden_layers"] = 5;
      }),
    );
    expect(["format.config", "format.manifest"]).toContain(failure.code);
  });
});

describe("a file that changes while it is used", () => {
  test.each([
    [WEIGHTS, "cut"],
    [WEIGHTS, "altered"],
    [WEIGHTS, "replaced"],
    [WEIGHTS, "removed"],
    [LAYER, "cut"],
    [LAYER, "altered"],
    [LAYER, "replaced"],
    [LAYER, "removed"],
  ] as const)("%s %s: the next request says so and computes nothing", async (name, how) => {
    const directory = await packageOf();
    const session = openSession(await loadTiny({ directory, slots: 2 }));
    await continueFrom(session, prompt, 3);
    await Bun.sleep(15);
    const file = fileOf(directory, name);
    if (how === "cut") fs.truncateSync(file, 8192);
    if (how === "altered") flipByte(file, 9000);
    if (how === "removed") fs.rmSync(file);
    if (how === "replaced") {
      fs.copyFileSync(file, `${file}.new`);
      fs.renameSync(`${file}.new`, file);
    }
    const held = [...session.ids];
    const failure = await failureOf(() => continueFrom(session, prompt, 3));
    expect(failure.code).toBe("format.changed");
    expect(failure.message).toContain(name);
    expect(failure.message).toContain("load the model again");
    expect(session.ids).toEqual(held);
  });

  test("a mapped file that is cut between two tokens is missed before it is touched", async () => {
    for (const [name, slots] of [
      [WEIGHTS, 2],
      [LAYER, "resident"],
    ] as const) {
      const directory = await packageOf();
      const session = openSession(await loadTiny({ directory, slots }));
      await session.extend(Uint32Array.from(prompt));
      fs.truncateSync(fileOf(directory, name), 4096);
      // Reading a page that is gone would end the process.
      const failure = await failureOf(() => session.extend(Uint32Array.of(5)));
      expect(failure.code).toBe("format.changed");
      expect(failure.message).toContain("4096 now");
    }
  });

  test("a mapped file that is cut while a token is computed ends it in a sentence", async () => {
    for (const [name, slots] of [
      [WEIGHTS, 2],
      [LAYER, "resident"],
    ] as const) {
      const directory = await packageOf();
      const session = openSession(await loadTiny({ directory, slots }));
      await session.extend(Uint32Array.from(prompt));
      const cut = (): void => fs.truncateSync(fileOf(directory, name), 4096);
      const tap = { tensor: cut, cache: () => {}, routes: () => {} };
      // Without a head the call waits for the device.
      const options = { tap, head: "none" } as const;
      const failure = await failureOf(() => session.extend(Uint32Array.of(5), options));
      expect(failure.code).toBe("format.changed");
      expect(failure.message).toContain("4096 now");
      expect((await failureOf(() => session.extend(Uint32Array.of(5)))).code).toBe("engine.state");
    }
  });

  test("a layer that is cut between two tokens is missed when an expert is read", async () => {
    const directory = await packageOf();
    const session = openSession(await loadTiny({ directory, slots: 1 }));
    await session.extend(Uint32Array.from(prompt), { head: "none" });
    fs.truncateSync(fileOf(directory, LAYER), 100);
    const failure = await failureOf(() => continueOn(session));
    expect(failure.code).toBe("expert.read");
    expect(failure.message).toContain("layer_03.bin): the file ends after");
  });
});

/** Tokens without the check that begins a request. */
async function continueOn(session: ReturnType<typeof openSession>): Promise<void> {
  for (const id of promptOf(20, 4)) await session.extend(Uint32Array.of(id), { head: "none" });
}

/** Runs the probe in a process of its own. */
async function probe(args: readonly string[]): Promise<{ tokens: number; peakBytes: number }> {
  const script = path.resolve(import.meta.dir, "../fixtures/memory-probe.ts");
  const child = Bun.spawn([process.execPath, script, ...args], {
    stdout: "pipe",
    stderr: "inherit",
  });
  const output = await new Response(child.stdout).text();
  expect(await child.exited).toBe(0);
  return JSON.parse(output) as { tokens: number; peakBytes: number };
}

const hasPeak = process.platform === "linux" && tokenizerLibrary !== undefined;

test.skipIf(!hasPeak)(
  "the demo model needs 150 MB over the bare program (peak from /proc; with the native tokenizer)",
  async () => {
    const bare = await probe([]);
    const loaded = await probe([await demoPackage(), library, tokenizerLibrary!]);
    expect([bare.tokens, loaded.tokens]).toEqual([0, 100]);
    expect(loaded.peakBytes - bare.peakBytes).toBeLessThan(150e6);
  },
);
