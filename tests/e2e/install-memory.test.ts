/**
 * A download in its usual parts of 64 MiB, several at once, in a process of its own: its peak of memory
 * stays under a bound that no checkpoint moves.
 */
import { expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { RANGE_BYTES_DEFAULT } from "../../src/install/ranges.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { bytesOf, SNAPSHOTS, tensorsOf } from "../fixtures/snapshots.ts";
import type { Item, Snapshot } from "../fixtures/snapshots/item.ts";
import { startHub } from "../support/hub.ts";

/** Above that of a Bun that does nothing. */
const MEMORY_BYTES_MAX = 150e6;
const INDEX = "model.safetensors.index.json";

/** One layer, the first of full attention, of the released checkpoint with half of its experts and a part of its vocabulary. */
function oneLayer(): Snapshot {
  const { items, config } = SNAPSHOTS.gemma4("full");
  const cut = (size: number): number => ({ 262_144: 16_384, 128: 64 })[size] ?? size;
  const text = config["text_config"] as Record<string, unknown>;
  const kept: Item[] = [];
  for (const [name, kind, ...shape] of items) {
    if (name.includes(".layers.") && !name.includes(".layers.5.")) continue;
    kept.push([name.replace(".layers.5.", ".layers.0."), kind, ...shape.map(cut)]);
  }
  return {
    items: kept,
    config: {
      ...config,
      text_config: {
        ...text,
        vocab_size: cut(262_144),
        num_experts: cut(128),
        num_hidden_layers: 1,
        layer_types: ["full_attention"],
      },
    },
  };
}

/** Writes it as one shard with a payload of zeros, which takes no room; returns the payload's bytes. */
function writeSparse(folder: string, snapshot: Snapshot): number {
  const header: Record<string, object> = {};
  let end = 0;
  for (const [name, tensor] of tensorsOf(snapshot)) {
    const bytes = bytesOf(tensor);
    header[name] = { ...tensor, data_offsets: [end, end + bytes] };
    end += bytes;
  }
  const text = Buffer.from(JSON.stringify(header));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(text.length));
  const shard = path.join(folder, "model.safetensors");
  fs.writeFileSync(shard, Buffer.concat([prefix, text]));
  fs.truncateSync(shard, 8 + text.length + end);
  const weightMap = Object.fromEntries(
    Object.keys(header).map((name) => [name, "model.safetensors"]),
  );
  fs.writeFileSync(path.join(folder, INDEX), JSON.stringify({ weight_map: weightMap }));
  fs.writeFileSync(path.join(folder, "config.json"), JSON.stringify(snapshot.config));
  return end;
}

test("a download of large parts needs less than 150 MB more than Bun alone", async () => {
  const folder = temporaryFolder();
  const payloadBytes = writeSparse(folder, oneLayer());
  expect(payloadBytes).toBeGreaterThan(3 * RANGE_BYTES_DEFAULT);
  const hub = await startHub(folder);
  const models = temporaryFolder();
  const fixtures = path.join(import.meta.dir, "../fixtures");
  const digest = new Bun.CryptoHasher("sha256")
    .update(fs.readFileSync(path.join(folder, INDEX)))
    .digest("hex");
  const child = Bun.spawn(
    [process.execPath, path.join(fixtures, "install-child.ts"), hub.base.href, models].concat(
      digest,
      String(RANGE_BYTES_DEFAULT),
    ),
    { stderr: "pipe" },
  );
  const texts = [new Response(child.stdout).text(), new Response(child.stderr).text()];
  const [peak = "", problem] = await Promise.all(texts);
  expect([problem, await child.exited]).toEqual(["", 0]);
  hub.stop();
  const bare = Bun.spawnSync([process.execPath, path.join(fixtures, "memory-probe.ts")]);
  const { peakBytes } = JSON.parse(bare.stdout.toString()) as { peakBytes: number };
  const [mine, bun, whole] = [Number(peak), peakBytes, payloadBytes].map((bytes) =>
    Math.round(bytes / 1e6),
  );
  process.stderr.write(`download of ${whole} MB: peak ${mine} MB, Bun alone ${bun} MB\n`);
  expect(Number(peak)).toBeGreaterThan(peakBytes);
  expect(Number(peak) - peakBytes).toBeLessThan(MEMORY_BYTES_MAX);
  fs.rmSync(models, { recursive: true });
}, 120_000);
