import { afterEach, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { previewLocal, previewRemote } from "../../src/install/preview.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { bytesOf, SNAPSHOTS, tensorsOf } from "../fixtures/snapshots.ts";
import { COMMIT, REPOSITORY, startHub, type Hub } from "../support/hub.ts";

type Id = keyof typeof SNAPSHOTS;
const SHARD = "model-00001-of-00001.safetensors";

let hub: Hub | undefined;
afterEach(() => hub?.stop());

/** A released checkpoint in its full size, of which nothing but the header is on the disk. */
function writeHeaders(id: Id): { readonly folder: string; readonly headerBytes: number } {
  const folder = temporaryFolder();
  const snapshot = SNAPSHOTS[id]("full");
  const header: Record<string, unknown> = {};
  const weightMap: Record<string, string> = {};
  let end = 0;
  for (const [name, tensor] of tensorsOf(snapshot)) {
    const bytes = bytesOf(tensor);
    header[name] = { ...tensor, data_offsets: [end, end + bytes] };
    weightMap[name] = SHARD;
    end += bytes;
  }
  const text = Buffer.from(JSON.stringify(header));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(text.length));
  const file = path.join(folder, SHARD);
  fs.writeFileSync(file, Buffer.concat([prefix, text]));
  fs.truncateSync(file, 8 + text.length + end);
  const write = (name: string, json: unknown): void =>
    fs.writeFileSync(path.join(folder, name), JSON.stringify(json));
  write("config.json", snapshot.config);
  write("model.safetensors.index.json", { weight_map: weightMap });
  return { folder, headerBytes: text.length };
}

test.each<[Id, number, number, number]>([
  ["gemma4", 1_353_771_068, 12_897_484_800, 30],
  ["qwen36", 1_389_476_096, 18_119_393_280, 40],
  ["deepseekV4Flash", 4_312_867_932, 92_341_796_864, 43],
  ["inklingSmall", 3_415_372_964, 144_955_146_240, 40],
  ["maple", 523_107_328, 6_039_797_760, 24],
])(
  "%s in its full size is planned from index and header alone",
  async (id, weightsBytes, expertBytes, layerCount) => {
    const { folder, headerBytes } = writeHeaders(id);
    hub = await startHub(folder);
    const source = { repository: REPOSITORY, revision: COMMIT };
    const preview = await previewRemote(source, { base: hub.base });
    const [weights, ...layers] = preview.outputs;
    const layerBytes = layers.reduce((total, { bytes }) => total + bytes, 0);
    expect([weights!.bytes, layerBytes]).toEqual([weightsBytes, expertBytes]);
    expect(layers.length).toBe(layerCount);
    expect(preview.outputBytes).toBe(weights!.bytes + layerBytes);
    expect(preview.sourceBytes).toBeLessThan(fs.statSync(path.join(folder, SHARD)).size);
    expect(preview.rangeCount).toBeGreaterThanOrEqual(preview.sourceBytes / 67_108_864);
    const asked = hub.requests.filter(({ host }) => host === "storage").map(({ range }) => range);
    expect(asked).toEqual([
      [0, 7],
      [8, 7 + headerBytes],
    ]);
    // A folder gives the same plan, but for the commit.
    const { commit, ...plan } = preview;
    expect(commit).toBe(COMMIT);
    expect(await previewLocal(folder, undefined)).toEqual(plan);
  },
);
