import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { allFamilies, familyOfConfig, families, runnableFamily } from "../../src/families/index.ts";
import type { JsonValue } from "../../src/format/json.ts";
import { openPackage } from "../../src/format/package.ts";
import { packageRulesOf } from "../../src/families/index.ts";
import { installLocal } from "../../src/install/install.ts";
import { planInstall, type InstallPlan } from "../../src/install/plan.ts";
import { quantizationOf, type ShardTensor } from "../../src/install/source.ts";
import { verifyPackage } from "../../src/install/verify.ts";
import { decodeSafetensors, temporaryFolder, type RawTensor } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import { bytesOf, SNAPSHOTS, tensorsOf, writeSnapshot, type Size } from "../fixtures/snapshots.ts";

type Id = keyof typeof SNAPSHOTS;
const IDS = Object.keys(SNAPSHOTS) as Id[];

/** A plan from headers alone: no byte of payload exists. */
function planOf(id: Id, size: Size): InstallPlan {
  const snapshot = SNAPSHOTS[id](size);
  const config = JSON.parse(JSON.stringify(snapshot.config)) as JsonValue;
  const family = familyOfConfig(config);
  const tensors = new Map<string, ShardTensor>();
  let offset = 1000;
  for (const [name, tensor] of tensorsOf(snapshot)) {
    const bytes = bytesOf(tensor);
    tensors.set(name, { name, ...tensor, bytes, offset, shard: "model.safetensors" });
    offset += bytes;
  }
  const quantization = quantizationOf(family, config, "config.json");
  return planInstall({ family, config, quantization, tensors });
}

/** Every tensor of a folder's shards. */
function payloadOf(source: string): Map<string, RawTensor> {
  const tensors = new Map<string, RawTensor>();
  for (const name of fs.readdirSync(source)) {
    if (!name.endsWith(".safetensors")) continue;
    const shard = decodeSafetensors(fs.readFileSync(path.join(source, name)));
    for (const [tensor, raw] of shard) tensors.set(tensor, raw);
  }
  return tensors;
}

describe("the plan of a released checkpoint", () => {
  test.each<[Id, number[]]>([
    ["gemma4", [597, 81_920, 1_353_689_148, 1_353_771_068, 3_358_720, 429_916_160, 12_897_484_800]],
    ["qwen36", [613, 81_920, 1_389_394_176, 1_389_476_096, 1_769_472, 452_984_832, 18_119_393_280]],
    [
      "deepseekV4Flash",
      [1199, 131_072, 4_312_736_860, 4_312_867_932, 8_388_608, 2_147_483_648, 92_341_796_864],
    ],
    [
      "inklingSmall",
      [840, 98_304, 3_415_274_660, 3_415_372_964, 14_155_776, 3_623_878_656, 144_955_146_240],
    ],
    ["maple", [221, 32_768, 523_074_560, 523_107_328, 983_040, 251_658_240, 6_039_797_760]],
  ])("%s has the published sizes", (id, expected) => {
    const { resident, layout, outputs } = planOf(id, "full");
    const [weights, ...layers] = outputs;
    const layerBytes = layers.reduce((total, { bytes }) => total + bytes, 0);
    const index = [resident.entries.size, resident.indexBytes, resident.residentBytes];
    expect([
      ...index,
      weights!.bytes,
      layout.strideBytes,
      layers.at(-1)!.bytes,
      layerBytes,
    ]).toEqual(expected);
  });

  test("deepseek's last layer has other groups and the same stride", () => {
    const { layers } = planOf("deepseekV4Flash", "full").layout;
    const offsets = (layer: number) =>
      Object.values(layers[layer]!.subTensors!).map(({ offset }) => offset);
    expect(offsets(0)).toEqual([
      0, 2_097_152, 2_621_440, 3_145_728, 5_242_880, 5_505_024, 5_767_168, 7_864_320, 8_126_464,
    ]);
    expect(offsets(42)).toEqual([
      0, 2_097_152, 2_359_296, 2_621_440, 4_718_592, 4_980_736, 5_242_880, 7_340_032, 7_602_176,
    ]);
  });

  test("maple's routed matrices keep two bits, and its copies number as they should", () => {
    const { layout, copies } = planOf("maple", "full");
    const table = layout.layers[0]!.subTensors!;
    expect([table.gate.bits, table.down_scales.shape]).toEqual([2, [2048, 8]]);
    expect(Object.values(table).map(({ offset }) => offset)).toEqual([
      0, 262_144, 294_912, 327_680, 589_824, 622_592, 655_360, 917_504, 950_272,
    ]);
    // Of each expert three pairs of scales and biases; of 4 x 24 projections codes and a pair.
    const transformed = copies.filter(({ transform }) => transform !== undefined);
    expect(transformed.length).toBe(24 * 256 * 6 + 24 * 4 * 3);
  });
});

describe.each(IDS)("a tiny %s", (id) => {
  const models = temporaryFolder();
  const source = writeSnapshot(SNAPSHOTS[id]("tiny"));
  const installed = installLocal({ source, name: "tiny", models });

  test("can be installed and verified", async () => {
    const { directory, family, droppedCount } = await installed;
    expect(family).toBe(id);
    expect(droppedCount > 0).toBe(id !== "deepseekV4Flash");
    const verified = await verifyPackage(directory, { full: true });
    expect(verified.unexpected).toEqual([]);
  });

  test("has the bytes of the checkpoint, but for what is transformed", async () => {
    const { directory } = await installed;
    const model = await openPackage(directory, { policy: "full-sha256", rulesOf: packageRulesOf });
    const file = fs.readFileSync(model.weights.path);
    const tensors = payloadOf(source);
    for (const { name, offset, bytes } of model.resident.values()) {
      const module = name.slice(0, -".weight".length);
      if (tensors.has(`${module}.row_alpha`)) continue;
      const found = file.subarray(offset, offset + bytes);
      expect([name, Buffer.compare(found, tensors.get(name)!.bytes)]).toEqual([name, 0]);
    }
  });

  test("with a tensor of another shape is refused before a byte is written", async () => {
    const snapshot = SNAPSHOTS[id]("tiny");
    const at = snapshot.items.findIndex(([name]) => name.endsWith("norm.weight"));
    const items = snapshot.items.with(at, [snapshot.items[at]![0], "BF16", 999]);
    const wrong = writeSnapshot({ ...snapshot, items });
    const empty = temporaryFolder();
    const failure = await failureOf(() =>
      installLocal({ source: wrong, name: "x", models: empty }),
    );
    expect(failure.message).toContain("[999]");
    expect(fs.readdirSync(empty)).toEqual(["x.gturbo.install.lock"]);
  });

  test("with a tensor too many or too few is refused", async () => {
    const snapshot = SNAPSHOTS[id]("tiny");
    const last = snapshot.items.findLast(([name]) => name.endsWith("norm.weight"))!;
    const more = [...snapshot.items, [`${last[0]}.more`, "BF16", 3] as const];
    const fewer = snapshot.items.filter((item) => item !== last);
    for (const items of [more, fewer, [...snapshot.items, ["alien.weight", "BF16", 3] as const]]) {
      const wrong = writeSnapshot({ ...snapshot, items });
      const options = { source: wrong, name: "x", models: temporaryFolder() };
      expect((await failureOf(() => installLocal(options))).code).toBe("install.source");
    }
  });
});

test("ternary rows mean minus alpha, nothing and alpha in the package's own encoding", async () => {
  const source = writeSnapshot(SNAPSHOTS.maple("tiny"));
  const { directory } = await installLocal({ source, name: "t", models: temporaryFolder() });
  const model = await openPackage(directory, { policy: "full-sha256", rulesOf: packageRulesOf });
  const name = "model.layers.1.self_attn.k_proj.weight";
  const entry = model.resident.get(name)!;
  const file = fs.readFileSync(model.weights.path);
  const part = ({ offset, bytes }: { offset: number; bytes: number }) =>
    file.subarray(offset, offset + bytes);
  const tensors = payloadOf(source);
  const codes = tensors.get(name)!.bytes;
  const alpha = tensors.get(name.replace(".weight", ".row_alpha"))!.bytes;
  const [rows, columns] = entry.shape as [number, number];
  const view = new DataView(new ArrayBuffer(4));
  const float = (bytes: Uint8Array, index: number): number => {
    view.setUint32(0, (bytes[2 * index]! | (bytes[2 * index + 1]! << 8)) * 65_536);
    return view.getFloat32(0);
  };
  const weight = part(entry);
  for (let index = 0; index < rows * columns; index += 37) {
    const row = Math.floor(index / columns);
    const code = (codes[index >> 2]! >> (2 * (index & 3))) & 3;
    const found = (weight[index >> 1]! >> (4 * (index & 1))) & 15;
    const group = Math.floor(index / 64);
    const scale = float(part(entry.scales!), group);
    expect([found, scale]).toEqual([code, float(alpha, row)]);
    expect(float(part(entry.biases!), group)).toBe(-scale);
  }
});

test("a family without a forward pass says so in a sentence", () => {
  for (const family of allFamilies()) {
    const run = () => runnableFamily(family.manifestName);
    if (["gemma4", "qwen36"].includes(family.id)) expect(run().id).toBe(family.id);
    else expect(run).toThrow(`models of the ${family.id} family can be installed and verified`);
  }
});

test("the scales of attention are those of the published table", () => {
  const scaleOf = (id: Id): unknown => families[id].baselines[0]!["attentionScale"];
  expect(IDS.map(scaleOf)).toEqual([
    undefined,
    0.0625,
    0.044194173824159216,
    0.0078125,
    0.08838834764831843,
  ]);
});
