import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { openLayer, verifyLayer, type Package } from "../../src/format/package.ts";
import { openRegular } from "../../src/format/files.ts";
import type { ErrorCode } from "../../src/util/errors.ts";
import { failureOf } from "../fixtures/failures.ts";
import { editJson, flipByte, temporaryFolder } from "../fixtures/checkpoints.ts";
import { forge, forgeJson, open, packageOf } from "../fixtures/packages.ts";

type Json = any;
const LAYER_0 = "packed_experts/layer_00.bin";
const WEIGHTS = "model_weights.bin";

async function touch(model: Package, layer: number): Promise<void> {
  fs.closeSync((await openLayer(model, layer)).descriptor);
}

describe("openPackage", () => {
  test("returns plain data with absolute places", async () => {
    const directory = await packageOf();
    const model = await open(directory);
    expect(structuredClone(model)).toEqual(model);
    expect(model.family).toBe("gemma4");
    expect(model.layers).toHaveLength(6);
    expect(model.expertCount).toBe(8);
    expect(model.notice).toContain("token ids only");
    expect(model.text).toBeUndefined();
    const { size } = fs.statSync(path.join(directory, WEIGHTS));
    expect(model.weights.indexBytes + model.weights.residentBytes).toBe(size);
    expect(model.layers[1]!.expertOffsets).toEqual(
      Array.from({ length: 8 }, (_, expert) => expert * model.strideBytes),
    );
    const router = model.resident.get("language_model.model.layers.0.router.proj.weight")!;
    expect([router.bits, router.groupSize]).toEqual([8, 64]);
  });

  test("opens through a link to the package and binds the receipt to the path that was used", async () => {
    const directory = await packageOf();
    const alias = path.join(temporaryFolder(), "alias.gturbo");
    fs.symlinkSync(directory, alias);
    expect((await open(alias)).directory).toBe(alias);
    expect((await failureOf(() => open(alias, "trusted-receipt"))).message).toContain(
      "model directory mismatch",
    );
  });

  test.each<[string, (directory: string) => void, ErrorCode, string]>([
    ["no folder", (d) => fs.rmSync(d, { recursive: true }), "model.unknown", "no package folder"],
    [
      "no manifest",
      (d) => fs.rmSync(`${d}/manifest.json`),
      "model.partial",
      "install did not finish",
    ],
    [
      "a manifest beyond the cap",
      (d) => fs.truncateSync(`${d}/manifest.json`, 4 * 1024 * 1024 + 1),
      "format.manifest",
      "metadata cap",
    ],
    [
      "a manifest that is no JSON",
      (d) => fs.writeFileSync(`${d}/manifest.json`, "{"),
      "format.manifest",
      "not valid JSON",
    ],
    [
      "an empty manifest",
      (d) => fs.writeFileSync(`${d}/manifest.json`, "{}"),
      "format.manifest",
      "magic",
    ],
    [
      "another family",
      (d) => editJson(`${d}/manifest.json`, (m: Json) => (m.arch.family = "other")),
      "model.family",
      '"other"',
    ],
    [
      "an architecture that the config contradicts",
      (d) => editJson(`${d}/manifest.json`, (m: Json) => (m.arch.slidingWindow = 9)),
      "format.manifest",
      "arch.slidingWindow is 9",
    ],
    [
      "a mask value of 256",
      (d) => editJson(`${d}/manifest.json`, (m: Json) => (m.arch.fullAttentionLayerMask[0] = 256)),
      "format.manifest",
      "fullAttentionLayerMask",
    ],
    [
      "a mask value of -1",
      (d) => editJson(`${d}/manifest.json`, (m: Json) => (m.arch.fullAttentionLayerMask[0] = -1)),
      "format.manifest",
      "fullAttentionLayerMask",
    ],
    [
      "the released size with other fields",
      (d) =>
        editJson(`${d}/manifest.json`, (m: Json) =>
          Object.assign(m.arch, { hiddenSize: 2816, numLayers: 30 }),
        ),
      "format.manifest",
      "arch.ffnIntermediate is 192",
    ],
    ["missing weights", (d) => fs.rmSync(`${d}/${WEIGHTS}`), "install.missing", WEIGHTS],
    [
      "truncated weights",
      (d) => fs.truncateSync(`${d}/${WEIGHTS}`, 20_000),
      "format.changed",
      "20000 bytes",
    ],
    [
      "a flipped last byte of the weights",
      (d) => flipByte(`${d}/${WEIGHTS}`, -1),
      "format.changed",
      "SHA-256",
    ],
    [
      "weights that are a link",
      (d) => {
        fs.renameSync(`${d}/${WEIGHTS}`, `${d}/real`);
        fs.symlinkSync(`${d}/real`, `${d}/${WEIGHTS}`);
      },
      "format.path",
      "symbolic link",
    ],
    [
      "a manifest that is a link",
      (d) => {
        fs.renameSync(`${d}/manifest.json`, `${d}/real`);
        fs.symlinkSync(`${d}/real`, `${d}/manifest.json`);
      },
      "format.path",
      "symbolic link",
    ],
    [
      "an experts folder that is a link",
      (d) => {
        fs.renameSync(`${d}/packed_experts`, `${d}/real`);
        fs.symlinkSync(`${d}/real`, `${d}/packed_experts`);
      },
      "format.path",
      "not a folder",
    ],
    [
      "an altered layout",
      (d) => flipByte(`${d}/packed_experts/layout.json`, -3),
      "format.changed",
      "layout.json",
    ],
    [
      "a missing layout",
      (d) => fs.rmSync(`${d}/packed_experts/layout.json`),
      "install.missing",
      "layout.json",
    ],
    [
      "a layout of another stride",
      (d) => forgeJson(d, "packed_experts/layout.json", (l: Json) => (l.expertStride = 32_768)),
      "format.layout",
      "expertStride",
    ],
    ["a missing layer", (d) => fs.rmSync(`${d}/${LAYER_0}`), "install.missing", "layer_00.bin"],
    [
      "a truncated layer",
      (d) => fs.truncateSync(`${d}/${LAYER_0}`, 1000),
      "format.changed",
      "1000 bytes",
    ],
    [
      "a layer of another length",
      (d) => forge(d, LAYER_0, new Uint8Array(16_384)),
      "format.manifest",
      "experts of",
    ],
    [
      "a layer that is a link",
      (d) => {
        fs.renameSync(`${d}/${LAYER_0}`, `${d}/real`);
        fs.symlinkSync(`${d}/real`, `${d}/${LAYER_0}`);
      },
      "format.path",
      "symbolic link",
    ],
    [
      "an altered config",
      (d) => flipByte(`${d}/tokenizer/config.json`, 10),
      "format.changed",
      "config.json",
    ],
    [
      "no config entry",
      (d) => editJson(`${d}/manifest.json`, (m: Json) => delete m.files["tokenizer/config.json"]),
      "format.manifest",
      "config.json",
    ],
    [
      "a config that is not implemented",
      (d) =>
        forgeJson(
          d,
          "tokenizer/config.json",
          (c: Json) => (c.text_config.num_kv_shared_layers = 2),
        ),
      "format.config",
      "num_kv_shared_layers",
    ],
    [
      "a garbled index behind a right digest",
      (d) => {
        const bytes = fs.readFileSync(`${d}/${WEIGHTS}`);
        bytes[30] = 9;
        forge(d, WEIGHTS, bytes);
      },
      "format.index",
      "dtype code 9",
    ],
    [
      "a tensor under another name",
      (d) => {
        const bytes = fs.readFileSync(`${d}/${WEIGHTS}`);
        const at = bytes.indexOf("layers.3.self_attn.q_proj");
        bytes[at + 7] = "9".charCodeAt(0);
        forge(d, WEIGHTS, bytes);
      },
      "format.index",
      "lacks the tensor language_model.model.layers.3.self_attn.q_proj.weight",
    ],
    [
      "a tensor of another shape",
      (d) => {
        const bytes = fs.readFileSync(`${d}/${WEIGHTS}`);
        bytes.writeUInt32LE(256, 24 + 24);
        forge(d, WEIGHTS, bytes);
      },
      "format.index",
      "embed_tokens.weight has the shape [256, 128]",
    ],
  ])("refuses %s", async (_, damage, code, sentence) => {
    const directory = await packageOf();
    damage(directory);
    const error = await failureOf(() => open(directory));
    expect(error.message).toContain(sentence);
    expect(error.code).toBe(code);
  });
});

describe("openLayer under full-sha256", () => {
  test("hashes on the first touch, names the damaged file, and leaves other layers alone", async () => {
    const directory = await packageOf();
    flipByte(path.join(directory, LAYER_0), 5000);
    const model = await open(directory);
    await touch(model, 1);
    const first = await failureOf(() => touch(model, 0));
    expect(first.code).toBe("format.changed");
    expect(first.message).toContain("layer_00.bin");
    await touch(model, 2);
    // A failure is not remembered: the file may have been put right.
    flipByte(path.join(directory, LAYER_0), 5000);
    await touch(model, 0);
  });

  test("does not hash again, unless the file is another one", async () => {
    const directory = await packageOf();
    const model = await open(directory);
    const layer = path.join(directory, LAYER_0);
    const file = openRegular(layer, { missing: "install.missing", unsafe: "format.path" });
    fs.utimesSync(layer, 1_000_000, 1_000_000);
    await verifyLayer(model, 0, { file });
    flipByte(layer, 5000);
    fs.utimesSync(layer, 1_000_000, 1_000_000);
    // Same inode and time: taken as the file that was hashed.
    await verifyLayer(model, 0, { file });
    fs.closeSync(file.descriptor);
    fs.cpSync(layer, `${layer}.new`);
    fs.renameSync(`${layer}.new`, layer);
    expect((await failureOf(() => touch(model, 0))).code).toBe("format.changed");
  });

  test("serves eight concurrent touches", async () => {
    const model = await open(await packageOf());
    await Promise.all(Array.from({ length: 8 }, () => touch(model, 0)));
  });

  test("refuses a layer that was cut or linked after loading", async () => {
    const directory = await packageOf();
    const model = await open(directory);
    fs.truncateSync(path.join(directory, LAYER_0), 100);
    expect((await failureOf(() => touch(model, 0))).code).toBe("format.changed");
    fs.rmSync(path.join(directory, LAYER_0));
    expect((await failureOf(() => touch(model, 0))).code).toBe("install.missing");
    fs.symlinkSync(
      path.join(directory, "packed_experts/layer_01.bin"),
      path.join(directory, LAYER_0),
    );
    expect((await failureOf(() => touch(model, 0))).code).toBe("format.path");
  });
});

describe("openPackage under trusted-receipt", () => {
  /** A copy lies elsewhere than its receipt says; this moves the receipt along. */
  async function trustedCopy(): Promise<string> {
    const directory = await packageOf();
    editJson(path.join(directory, "verified-install.json"), (receipt) => {
      receipt["modelDirectoryPath"] = directory;
    });
    return directory;
  }

  test("exposes what full verification exposes", async () => {
    const directory = await trustedCopy();
    const trusted = await open(directory, "trusted-receipt");
    const full = await open(directory);
    expect({ ...trusted, policy: "full-sha256" }).toEqual(full);
  });

  test("accepts an altered expert of the same size, which full verification refuses", async () => {
    const directory = await trustedCopy();
    flipByte(path.join(directory, LAYER_0), 5000);
    await touch(await open(directory, "trusted-receipt"), 0);
    expect((await failureOf(async () => touch(await open(directory), 0))).code).toBe(
      "format.changed",
    );
  });

  const receiptOf = (d: string) => `${d}/verified-install.json`;
  test.each<[string, (directory: string) => void, ErrorCode, string]>([
    ["no receipt", (d) => fs.rmSync(receiptOf(d)), "format.receipt", "missing"],
    [
      "a receipt beyond the cap",
      (d) => fs.truncateSync(receiptOf(d), 4 * 1024 * 1024 + 1),
      "format.receipt",
      "metadata cap",
    ],
    [
      "a receipt that is a link",
      (d) => {
        fs.renameSync(receiptOf(d), `${d}/real`);
        fs.symlinkSync(`${d}/real`, receiptOf(d));
      },
      "format.path",
      "symbolic link",
    ],
    [
      "a receipt of another schema",
      (d) => editJson(receiptOf(d), (r: Json) => (r.schemaVersion = 2)),
      "format.receipt",
      "schemaVersion",
    ],
    [
      "a receipt of another manifest",
      (d) => editJson(`${d}/manifest.json`, (m: Json) => (m.modelID = "x")),
      "format.receipt",
      "manifest SHA mismatch",
    ],
    [
      "a receipt of another folder",
      (d) => editJson(receiptOf(d), (r: Json) => (r.modelDirectoryPath = "/x")),
      "format.receipt",
      "model directory mismatch",
    ],
    [
      "a receipt with an extra file",
      (d) => editJson(receiptOf(d), (r: Json) => (r.files.extra = r.files["manifest.json"])),
      "format.receipt",
      "file set mismatch: missing none, extra extra",
    ],
    [
      "a receipt without a file",
      (d) => editJson(receiptOf(d), (r: Json) => delete r.files[WEIGHTS]),
      "format.receipt",
      "file set mismatch",
    ],
    [
      "a receipt with another digest",
      (d) => editJson(receiptOf(d), (r: Json) => (r.files[WEIGHTS].sha256 = "0".repeat(64))),
      "format.receipt",
      WEIGHTS,
    ],
    [
      "truncated experts",
      (d) => fs.truncateSync(`${d}/${LAYER_0}`, 1000),
      "format.changed",
      "1000 bytes",
    ],
    ["altered common weights", (d) => flipByte(`${d}/${WEIGHTS}`, -1), "format.changed", "SHA-256"],
  ])("refuses %s", async (_, damage, code, sentence) => {
    const directory = await trustedCopy();
    damage(directory);
    const error = await failureOf(() => open(directory, "trusted-receipt"));
    expect(error.message).toContain(sentence);
    expect(error.code).toBe(code);
  });
});
