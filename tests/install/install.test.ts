import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { SUB_TENSOR_NAMES } from "../../src/format/layout.ts";
import type { Package } from "../../src/format/package.ts";
import { systemIo, type InstallIo } from "../../src/install/durable.ts";
import type { InstallProgress } from "../../src/install/assemble.ts";
import { installLocal } from "../../src/install/install.ts";
import { acquireLock } from "../../src/native/lock.ts";
import { bfloat16s, dequantize } from "../reference/affine.ts";
import { failureOf } from "../fixtures/failures.ts";
import {
  copyOfGolden,
  decodeSafetensors,
  DEMO,
  editJson,
  editTensors,
  GOLDEN,
  temporaryFolder,
} from "../fixtures/checkpoints.ts";
import { open, packageOf } from "../fixtures/packages.ts";

const FIXTURES = ["gemma4-a", "gemma4-a-h320", "gemma4-a-e16"];
const PREFIX = "language_model.model.layers";

function range(file: string, { offset, bytes }: { offset: number; bytes: number }): Uint8Array {
  return fs.readFileSync(file).subarray(offset, offset + bytes);
}

/** The bytes of one part of all experts, in the order of their ids. */
function stacked(
  model: Package,
  layerIndex: number,
  name: (typeof SUB_TENSOR_NAMES)[number],
): Uint8Array {
  const layer = model.layers[layerIndex]!;
  const part = layer.subTensors![name];
  const file = fs.readFileSync(layer.path);
  return Buffer.concat(
    layer.expertOffsets.map((offset) =>
      file.subarray(offset + part.offset, offset + part.offset + part.bytes),
    ),
  );
}

describe.each(FIXTURES)("%s installed", (fixture) => {
  test("holds the checkpoint's bytes", async () => {
    const model = await open(await packageOf(fixture));
    const source = decodeSafetensors(
      fs.readFileSync(path.join(GOLDEN, fixture, "model.safetensors")),
    );
    const expectBytes = (name: string, found: Uint8Array): void => {
      expect([name, sha256(found)]).toEqual([name, sha256(source.get(name)!.bytes)]);
      source.delete(name);
    };
    for (const tensor of model.resident.values()) {
      expectBytes(tensor.name, range(model.weights.path, tensor));
      if (tensor.scales === undefined || tensor.biases === undefined) continue;
      const module = tensor.name.slice(0, -".weight".length);
      expectBytes(`${module}.scales`, range(model.weights.path, tensor.scales));
      expectBytes(`${module}.biases`, range(model.weights.path, tensor.biases));
    }
    for (const { index } of model.layers) {
      for (const name of SUB_TENSOR_NAMES) {
        const [projection, companion = "weight"] = name.split("_");
        const tensor = `${PREFIX}.${index}.experts.switch_glu.${projection}_proj.${companion}`;
        expectBytes(tensor, stacked(model, index, name));
      }
    }
    expect([...source.keys()]).toEqual([]);
  });

  test("pads every expert with zeros", async () => {
    const model = await open(await packageOf(fixture));
    const { subTensors, path: file, strideBytes, expertOffsets } = model.layers[0]!;
    const end = subTensors!.down_biases.offset + subTensors!.down_biases.bytes;
    const bytes = fs.readFileSync(file);
    for (const offset of expertOffsets) {
      expect(bytes.subarray(offset + end, offset + strideBytes).every((byte) => byte === 0)).toBe(
        true,
      );
    }
  });

  test("gives the weights that the reference saw", async () => {
    const model = await open(await packageOf(fixture));
    const golden = JSON.parse(fs.readFileSync(path.join(GOLDEN, fixture, "golden.json"), "utf8"));
    const digests = new Map<string, string>(Object.entries(golden.dequantized_sha256_16));
    const expectDigest = (name: string, values: Float32Array): void => {
      const found = sha256(new Uint8Array(values.buffer)).slice(0, 16);
      expect([name, found]).toEqual([name, digests.get(name)!]);
      digests.delete(name);
    };
    for (const tensor of model.resident.values()) {
      const codes = range(model.weights.path, tensor);
      const { scales, biases, bits, groupSize, name } = tensor;
      if (scales === undefined || biases === undefined) {
        expectDigest(name, bfloat16s(codes));
        continue;
      }
      const matrix = {
        codes,
        scales: range(model.weights.path, scales),
        biases: range(model.weights.path, biases),
        bits: bits!,
        groupSize: groupSize!,
      };
      expectDigest(name.slice(0, -".weight".length), dequantize(matrix));
    }
    for (const { index, subTensors } of model.layers) {
      for (const projection of ["gate", "up", "down"] as const) {
        const matrix = {
          codes: stacked(model, index, projection),
          scales: stacked(model, index, `${projection}_scales`),
          biases: stacked(model, index, `${projection}_biases`),
          bits: subTensors![projection].bits!,
          groupSize: 64,
        };
        expectDigest(
          `${PREFIX}.${index}.experts.switch_glu.${projection}_proj`,
          dequantize(matrix),
        );
      }
    }
    expect([...digests.keys()]).toEqual([]);
  });
});

describe("installLocal", () => {
  const source = path.join(GOLDEN, "gemma4-a");
  const install = (change: Partial<Parameters<typeof installLocal>[0]> = {}) =>
    installLocal({ source, name: "x", models: temporaryFolder(), ...change });
  const listing = (models: string) => fs.readdirSync(models).toSorted();

  test("reports its progress to the last byte", async () => {
    const seen: InstallProgress[] = [];
    const installed = await install({ onProgress: (progress) => seen.push(progress) });
    expect([...new Set(seen.map(({ phase }) => phase))]).toEqual([
      "reading",
      "copying",
      "hashing",
      "finishing",
    ]);
    for (const phase of ["copying", "hashing"]) {
      const steps = seen.filter((progress) => progress.phase === phase);
      expect(steps.at(-1)!.doneBytes).toBe(steps.at(-1)!.totalBytes);
      expect(
        steps.every(({ doneBytes }, index) => doneBytes >= (steps[index - 1]?.doneBytes ?? 0)),
      ).toBe(true);
    }
    expect(installed.notice).toContain("token ids only");
    expect(installed.modelId).toBe("unknown/snapshot");
  });

  test("writes the same package twice", async () => {
    const [left, right] = [await install(), await install()];
    for (const file of fs.readdirSync(left.directory, { recursive: true }) as string[]) {
      const name = path.join(left.directory, file);
      if (fs.statSync(name).isDirectory() || file === "verified-install.json") continue;
      expect([file, sha256(fs.readFileSync(path.join(right.directory, file)))]).toEqual([
        file,
        sha256(fs.readFileSync(name)),
      ]);
    }
  });

  test("leaves the package, its lock file and nothing else", async () => {
    const models = temporaryFolder();
    await install({ models });
    expect(listing(models)).toEqual(["x.gturbo", "x.gturbo.install.lock"]);
  });

  test("accepts a single file without an index", async () => {
    const folder = copyOfGolden("gemma4-a");
    fs.rmSync(path.join(folder, "model.safetensors.index.json"));
    const { directory } = await install({ source: folder });
    const model = await open(directory);
    const digest = sha256(fs.readFileSync(path.join(folder, "model.safetensors")));
    expect(model.manifest.sourceSnapshotHash).toBe(`sha256:${digest}`);
  });

  test("accepts a checkpoint in several shards, and links as a download cache has them", async () => {
    const folder = copyOfGolden("gemma4-a");
    const whole = fs.readFileSync(path.join(folder, "model.safetensors"));
    const tensors = [...decodeSafetensors(whole)];
    const half = Math.floor(tensors.length / 2);
    const { encodeSafetensors } = await import("../fixtures/checkpoints.ts");
    const store = temporaryFolder();
    const weightMap: Record<string, string> = {};
    for (const [index, part] of [tensors.slice(0, half), tensors.slice(half)].entries()) {
      const shard = `model-0000${index + 1}-of-00002.safetensors`;
      fs.writeFileSync(path.join(store, `blob${index}`), encodeSafetensors(new Map(part)));
      fs.symlinkSync(path.join(store, `blob${index}`), path.join(folder, shard));
      for (const [name] of part) weightMap[name] = shard;
    }
    fs.rmSync(path.join(folder, "model.safetensors"));
    fs.writeFileSync(
      path.join(folder, "model.safetensors.index.json"),
      JSON.stringify({ weight_map: weightMap }),
    );
    const sharded = await open((await install({ source: folder })).directory);
    const single = await open((await install()).directory);
    expect(sharded.weights.sha256).toBe(single.weights.sha256);
    expect(sharded.layers.map((layer) => layer.sha256)).toEqual(
      single.layers.map((layer) => layer.sha256),
    );
  });

  test("leaves out the multimodal towers and says how much", async () => {
    const folder = copyOfGolden("gemma4-a");
    editTensors(folder, (tensors) => {
      tensors.set("vision_tower.x.weight", { dtype: "F16", shape: [3], bytes: new Uint8Array(6) });
    });
    expect((await install({ source: folder })).droppedCount).toBe(1);
  });

  test("refuses a model that exists, and names what to do", async () => {
    const models = temporaryFolder();
    await install({ models });
    const again = await failureOf(() => install({ models }));
    expect(again.code).toBe("install.exists");
    expect(again.message).toContain("already installed");
    fs.mkdirSync(path.join(models, "y.gturbo"));
    const half = await failureOf(() => install({ models, name: "y" }));
    expect(half.code).toBe("install.exists");
    expect(half.message).toContain("no complete package");
  });

  test("clears what a killed run left behind", async () => {
    const models = temporaryFolder();
    fs.mkdirSync(path.join(models, "x.gturbo.partial", "packed_experts"), { recursive: true });
    fs.writeFileSync(path.join(models, "x.gturbo.partial", "model_weights.bin"), "half");
    await install({ models });
    expect(listing(models)).toEqual(["x.gturbo", "x.gturbo.install.lock"]);
  });

  test("begins again after a run that was killed while copying", async () => {
    const models = temporaryFolder();
    const module = path.resolve(import.meta.dir, "../../src/install/install.ts");
    const code = `
      import { installLocal } from ${JSON.stringify(module)};
      const onProgress = ({ phase, doneBytes, totalBytes }) => {
        if (phase === "copying" && doneBytes > totalBytes / 2) process.kill(process.pid, "SIGKILL");
      };
      await installLocal({ source: ${JSON.stringify(source)}, name: "x", models: ${JSON.stringify(models)}, onProgress });`;
    await Bun.spawn([process.execPath, "-e", code]).exited;
    expect(listing(models)).toEqual(["x.gturbo.install.lock", "x.gturbo.partial"]);
    const { directory } = await install({ models });
    expect(listing(models)).toEqual(["x.gturbo", "x.gturbo.install.lock"]);
    const [again, clean] = [await open(directory), await open((await install()).directory)];
    expect(again.manifest).toEqual(clean.manifest);
  });

  test("does not follow links in its way", async () => {
    for (const name of ["x.gturbo", "x.gturbo.partial", "x.gturbo.install.lock"]) {
      const models = temporaryFolder();
      const victim = temporaryFolder();
      fs.writeFileSync(path.join(victim, "precious"), "kept");
      fs.symlinkSync(victim, path.join(models, name));
      const { code } = await failureOf(() => install({ models }));
      expect([name, code]).toEqual([name, name.endsWith("lock") ? "native.lock" : "format.path"]);
      expect(fs.readFileSync(path.join(victim, "precious"), "utf8")).toBe("kept");
    }
  });

  test("lets one of two concurrent installs through, even under two spellings of the folder", async () => {
    const models = temporaryFolder();
    const alias = path.join(temporaryFolder(), "alias");
    fs.symlinkSync(models, alias);
    const results = await Promise.allSettled([install({ models }), install({ models: alias })]);
    expect(results.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected"]);
    const rejected = results.find((result) => result.status === "rejected");
    expect(rejected!.reason).toMatchObject({ code: "install.busy" });
    await open(path.join(models, "x.gturbo"));
  });

  test.each(["", ".", "..", "a/b", "../x", ".hidden", "x.gturbo", "a b", "x".repeat(101)])(
    "refuses the name %j",
    async (name) => {
      expect((await failureOf(() => install({ name }))).code).toBe("usage.value");
    },
  );

  test("refuses a folder in which anybody could replace the model", async () => {
    const models = temporaryFolder();
    fs.chmodSync(models, 0o777);
    const failure = await failureOf(() => install({ models }));
    expect(failure.code).toBe("format.path");
    expect(failure.message).toContain("chmod o-w");
    // As a temporary folder of the system: anybody may write, and only its owner may remove a file.
    fs.chmodSync(models, 0o1777);
    await install({ models });
  });

  test("gives others access as the umask says", async () => {
    const { directory } = await install();
    expect(fs.statSync(directory).mode & 0o777).toBe(0o777 & ~process.umask());
  });
});

describe("an install that fails leaves nothing", () => {
  const source = path.join(GOLDEN, "gemma4-a");

  /** Installs into a fresh folder, expects a failure, and that only the lock file is left. */
  async function failInstall(change: Partial<Parameters<typeof installLocal>[0]>) {
    const models = temporaryFolder();
    const failure = await failureOf(() => installLocal({ source, name: "x", models, ...change }));
    expect(fs.readdirSync(models)).toEqual(["x.gturbo.install.lock"]);
    acquireLock(path.join(models, "x.gturbo.install.lock")).release();
    return failure;
  }

  test("without disk space, before it writes", async () => {
    let writes = 0;
    const io: InstallIo = {
      ...systemIo,
      availableBytes: () => 1_000_000,
      write(descriptor, bytes, offset) {
        writes += 1;
        return systemIo.write(descriptor, bytes, offset);
      },
    };
    const failure = await failInstall({ io });
    expect(failure.code).toBe("install.space");
    expect(failure.message).toMatch(/needed \(\d+ bytes\), 1.00 MB available/);
    expect(writes).toBe(0);
  });

  test.each([0, 1, 7, 100])("when the disk becomes full at write %d", async (full) => {
    let writes = 0;
    const io: InstallIo = {
      ...systemIo,
      availableBytes: () => 1e12,
      write(descriptor, bytes, offset) {
        writes += 1;
        if (writes > full)
          throw Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
        return systemIo.write(descriptor, bytes, offset);
      },
    };
    const failure = await failInstall({ io });
    expect(failure.code).toBe("install.space");
    expect(failure.message).toContain("became full");
  });

  test("when a write fails", async () => {
    const io: InstallIo = {
      ...systemIo,
      write() {
        throw Object.assign(new Error("input/output error"), { code: "EIO" });
      },
    };
    expect((await failInstall({ io })).code).toBe("install.io");
  });

  test("writes that take fewer bytes than offered are continued", async () => {
    const io: InstallIo = {
      ...systemIo,
      write: (descriptor, bytes, offset) =>
        systemIo.write(descriptor, bytes.subarray(0, Math.min(bytes.length, 1000)), offset),
    };
    const installed = await installLocal({ source, name: "x", models: temporaryFolder(), io });
    await open(installed.directory);
  });

  test.each(["reading", "copying", "hashing", "finishing"])(
    "when cancelled while %s",
    async (phase) => {
      const controller = new AbortController();
      const failure = await failInstall({
        source: DEMO,
        signal: controller.signal,
        onProgress: (progress) => {
          if (progress.phase === phase) controller.abort();
        },
      });
      expect(failure.code).toBe("install.cancelled");
    },
  );

  test("when cancelled before it began", async () => {
    expect((await failInstall({ signal: AbortSignal.abort() })).code).toBe("install.cancelled");
  });

  test("when the source changes under it", async () => {
    const folder = copyOfGolden("gemma4-a");
    const failure = await failInstall({
      source: folder,
      onProgress: ({ phase }) => {
        if (phase === "copying") fs.utimesSync(path.join(folder, "model.safetensors"), 1, 1);
      },
    });
    expect(failure.code).toBe("format.changed");
  });

  test("when the source is cut under it", async () => {
    const folder = copyOfGolden("gemma4-a");
    let isCut = false;
    const failure = await failInstall({
      source: folder,
      onProgress: ({ phase }) => {
        if (phase === "copying" && !isCut)
          fs.truncateSync(path.join(folder, "model.safetensors"), 50_000);
        isCut ||= phase === "copying";
      },
    });
    expect(failure.code).toBe("install.source");
    expect(failure.message).toContain("cut to 50000 bytes");
  });

  type Damage = (folder: string) => unknown;
  test.each<[string, Damage, string, string]>([
    [
      "no folder",
      (f) => fs.rmSync(f, { recursive: true }),
      "install.source",
      "no checkpoint folder",
    ],
    ["no config", (f) => fs.rmSync(`${f}/config.json`), "install.source", "config.json is missing"],
    [
      "no weights",
      (f) => fs.readdirSync(f).forEach((n) => n.startsWith("model") && fs.rmSync(`${f}/${n}`)),
      "install.source",
      "neither",
    ],
    [
      "a missing shard",
      (f) => fs.rmSync(`${f}/model.safetensors`),
      "install.source",
      "model.safetensors is missing",
    ],
    [
      "a truncated shard",
      (f) => fs.truncateSync(`${f}/model.safetensors`, 1_000_000),
      "format.safetensors",
      "truncated",
    ],
    [
      "an empty shard",
      (f) => fs.truncateSync(`${f}/model.safetensors`, 0),
      "format.safetensors",
      "less than its prefix",
    ],
    [
      "another family",
      (f) => editJson(`${f}/config.json`, (c) => (c["model_type"] = "llama")),
      "model.family",
      '"llama"',
    ],
    [
      "no quantization",
      (f) => editJson(`${f}/config.json`, (c) => delete c["quantization"]),
      "format.config",
      "not quantized",
    ],
    [
      "a config that is not implemented",
      (f) => editJson(`${f}/config.json`, (c) => (c["text_config"].use_double_wide_mlp = true)),
      "format.config",
      "use_double_wide_mlp",
    ],
    [
      "a config with a key twice",
      (f) => fs.writeFileSync(`${f}/config.json`, '{"model_type":"gemma4","model_type":"x"}'),
      "format.config",
      "twice",
    ],
    [
      "an oversized config",
      (f) => fs.truncateSync(`${f}/config.json`, 1024 * 1024 + 1),
      "install.source",
      "metadata cap",
    ],
    [
      "an index that is no JSON",
      (f) => fs.writeFileSync(`${f}/model.safetensors.index.json`, "["),
      "format.json",
      "not valid JSON",
    ],
    [
      "an index of numbers",
      (f) => fs.writeFileSync(`${f}/model.safetensors.index.json`, '{"weight_map":{"a":1}}'),
      "format.json",
      "weight_map.a",
    ],
    [
      "a tokenizer without its config",
      (f) => fs.writeFileSync(`${f}/tokenizer.json`, "{}"),
      "install.source",
      "no tokenizer_config.json",
    ],
    [
      "a tokenizer that is a folder",
      (f) => fs.mkdirSync(`${f}/tokenizer.json`),
      "install.source",
      "not a regular file",
    ],
  ])("with %s", async (_, damage, code, sentence) => {
    const folder = copyOfGolden("gemma4-a");
    damage(folder);
    const models = temporaryFolder();
    const failure = await failureOf(() => installLocal({ source: folder, name: "x", models }));
    expect(failure.message).toContain(sentence);
    expect(failure.code).toBe(code as "install.source");
    expect(fs.readdirSync(models)).toEqual(["x.gturbo.install.lock"]);
  });
});
