import { beforeAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import {
  checkArch,
  checkManifestStructure,
  checkQuantSlots,
  parseManifest,
} from "../../src/format/manifest.ts";
import { packageOf } from "../fixtures/packages.ts";

type Json = any;
let text = "";
beforeAll(async () => {
  text = fs.readFileSync(path.join(await packageOf(), "manifest.json"), "utf8");
});

function check(json: Json): void {
  const manifest = parseManifest(new TextEncoder().encode(JSON.stringify(json)), "manifest.json");
  checkManifestStructure(manifest);
}
const widths = {
  embedding: [4],
  attention: [4],
  router: [8],
  sharedExpert: [4, 8],
  routedExpert: [2, 4],
};

describe("parseManifest and checkManifestStructure", () => {
  test("accept what the installer writes, later minor versions, unknown keys, plain layer names", () => {
    const json = JSON.parse(text);
    json.versionMinor = 7;
    json.invented = { by: "a later program" };
    json.arch.invented = 1;
    json.files["packed_experts/layer_3.bin"] = json.files["packed_experts/layer_03.bin"];
    delete json.files["packed_experts/layer_03.bin"];
    check(json);
  });

  test.each<[string, (json: Json) => void, string]>([
    ["another magic", (json) => (json.magic = "GGUF"), "not a .gturbo package"],
    ["a missing magic", (json) => delete json.magic, "magic"],
    [
      "version 2",
      (json) => Object.assign(json, { versionMajor: 2, arch: "changed" }),
      "version is 2",
    ],
    ["an unknown flag", (json) => (json.flags.fresh = true), 'flag "fresh" is unknown'],
    [
      "a flag that is no boolean",
      (json) => (json.flags.streamingPresent = 1),
      "flags.streamingPresent",
    ],
    ["the removed KV option", (json) => (json.flags.turboQuantKV = true), "removed TurboQuant KV"],
    ["a missing dimension", (json) => delete json.arch.headDim, "arch.headDim"],
    ["a negative dimension", (json) => (json.arch.headDim = -1), "arch.headDim"],
    ["a fractional dimension", (json) => (json.arch.headDim = 1.5), "arch.headDim"],
    ["a text dimension", (json) => (json.arch.headDim = "64"), "arch.headDim"],
    [
      "a mask that is no list",
      (json) => (json.arch.fullAttentionLayerMask = 3),
      "fullAttentionLayerMask",
    ],
    [
      "a short mask",
      (json) => json.arch.fullAttentionLayerMask.pop(),
      "fullAttentionLayerMask is 5",
    ],
    ["a stride that is no page", (json) => (json.expertStride = 1000), "multiple of 16384"],
    ["no stride", (json) => (json.expertStride = 0), "expertStride is 0"],
    ["another layer count", (json) => (json.numLayers = 5), "arch.numLayers is 6"],
    ["another expert count", (json) => (json.expertsPerLayer = 4), "arch.numExperts is 8"],
    ["more experts a token than there are", (json) => (json.arch.topKExperts = 9), "topKExperts"],
    [
      "no common weights",
      (json) => delete json.files["model_weights.bin"],
      "no entry model_weights.bin",
    ],
    ["no layout", (json) => delete json.files["packed_experts/layout.json"], "layout.json"],
    ["a missing layer", (json) => delete json.files["packed_experts/layer_03.bin"], "layer_03.bin"],
    ["a short digest", (json) => (json.files["model_weights.bin"].sha256 = "ab"), "64 hexadecimal"],
    ["a negative size", (json) => (json.files["model_weights.bin"].size = -1), "size"],
    [
      "an escaping path",
      (json) => (json.files["../x"] = json.files["model_weights.bin"]),
      ". or ..",
    ],
    ["a slot missing", (json) => delete json.quant.router, "quant.router"],
    ["an unknown slot", (json) => (json.quant.other = json.quant.router), "other"],
  ])("refuse %s", (_, damage, sentence) => {
    const json = JSON.parse(text);
    damage(json);
    expect(() => check(json)).toThrow(sentence);
  });
});

describe("checkQuantSlots", () => {
  const checkQuant = (damage: (quant: Json, json: Json) => void) => {
    const json = JSON.parse(text);
    damage(json.quant, json);
    const manifest = parseManifest(new TextEncoder().encode(JSON.stringify(json)), "manifest.json");
    return () => checkQuantSlots(manifest, widths);
  };

  test.each<[string, (quant: Json) => void]>([
    ["the installer's", () => undefined],
    ["8-bit shared experts", (quant) => (quant.sharedExpert.weightBits = 8)],
    ["2-bit routed experts", (quant) => (quant.routedExpert.weightBits = 2)],
    [
      "any case of letters",
      (quant) => Object.assign(quant.router, { scheme: "AFFINE", scaleType: "bf16" }),
    ],
  ])("accepts %s", (_, change) => {
    expect(checkQuant(change)).not.toThrow();
  });

  test.each<[string, (quant: Json, json: Json) => void, string]>([
    ["no quant", (_, json) => delete json.quant, "manifest.quant is required"],
    [
      "3-bit routed experts",
      (quant) => (quant.routedExpert.weightBits = 3),
      "quant.routedExpert is an unsupported quantization",
    ],
    ["3-bit shared experts", (quant) => (quant.sharedExpert.weightBits = 3), "quant.sharedExpert"],
    ["a 4-bit router", (quant) => (quant.router.weightBits = 4), "quant.router"],
    ["another scheme", (quant) => (quant.embedding.scheme = "none"), "quant.embedding"],
    ["another scale type", (quant) => (quant.attention.scaleType = "F16"), "quant.attention"],
    ["another group", (quant) => (quant.attention.groupSize = 32), "quant.attention"],
  ])("refuses %s", (_, damage, sentence) => {
    expect(checkQuant(damage)).toThrow(sentence);
  });
});

test("checkArch names the first field that differs", () => {
  const { arch } = parseManifest(new TextEncoder().encode(text), "manifest.json");
  checkArch(arch, arch, "itself");
  const other = { ...arch, vocabSize: 3, numLayers: 4 };
  expect(() => checkArch(other, arch, "the config")).toThrow(
    "architecture mismatch: arch.vocabSize is 3; the config says 512",
  );
});
