// Measures an install from a Hub on this machine beside cp, sync and openssl over the same bytes:
//   bun bench/install.ts [--runs N] [--parallel N] [--directory DIR]
// A checkpoint of 2 GB is written into a temporary folder and served by a process of its own; each
// install is a process of its own as well. Everything lies in the file cache. Both sides alternate, with
// fetching alone as a third, after one round that does not count; medians are printed. Needs 6 GB of disk.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { sha256 } from "../src/format/digest.ts";
import { HttpSource } from "../src/install/http.ts";
import { readRemote } from "../src/install/hub.ts";
import { planInstall } from "../src/install/plan.ts";
import { planRanges, RANGE_BYTES_DEFAULT } from "../src/install/ranges.ts";
import { installRemote, TRANSFER_LIMITS } from "../src/install/remote.ts";
import { INDEX_FILE } from "../src/install/source.ts";
import { peakMemoryBytes } from "../src/util/memory.ts";
import { REPOSITORY, startHub } from "../tests/support/hub.ts";
import { gemma4 } from "../tests/fixtures/snapshots/gemma4.ts";
import { bytesOf, tensorsOf } from "../tests/fixtures/snapshots.ts";
import { median } from "./median.ts";

const SHARD_BYTES = 500e6;
const TILE_BYTES = 4_194_304;

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    runs: { type: "string", default: "5" },
    parallel: { type: "string", default: String(TRANSFER_LIMITS.parallel) },
    directory: { type: "string", default: os.tmpdir() },
  },
});

/** Writes the checkpoint tile by tile: shards in the order of the inventory. Returns its payload's bytes. */
function writeCheckpoint(folder: string): number {
  const snapshot = gemma4("cut");
  const shards: [string, number, object][][] = [[]];
  let shardBytes = 0;
  for (const [name, tensor] of tensorsOf(snapshot)) {
    const bytes = bytesOf(tensor);
    if (shardBytes + bytes > SHARD_BYTES) {
      shards.push([]);
      shardBytes = 0;
    }
    const offsets = [shardBytes, shardBytes + bytes];
    shards.at(-1)!.push([name, bytes, { ...tensor, data_offsets: offsets }]);
    shardBytes += bytes;
  }
  const weightMap: Record<string, string> = {};
  let total = 0;
  for (const [index, tensors] of shards.entries()) {
    const name = `model-${index + 1}-of-${shards.length}.safetensors`;
    for (const [tensor] of tensors) weightMap[tensor] = name;
    const header = JSON.stringify(
      Object.fromEntries(tensors.map(([key, , value]) => [key, value])),
    );
    const payloadBytes = tensors.reduce((sum, [, bytes]) => sum + bytes, 0);
    writeShard(path.join(folder, name), header, payloadBytes);
    total += payloadBytes;
  }
  const index = { metadata: {}, weight_map: weightMap };
  fs.writeFileSync(path.join(folder, INDEX_FILE), JSON.stringify(index));
  fs.writeFileSync(path.join(folder, "config.json"), JSON.stringify(snapshot.config));
  return total;
}

/** Random bytes, from a tile that begins elsewhere each time. */
function writeShard(file: string, header: string, payloadBytes: number): void {
  const noise = Buffer.alloc(2 * TILE_BYTES);
  for (let at = 0; at < noise.length; at += 65_536) {
    crypto.getRandomValues(noise.subarray(at, at + 65_536));
  }
  const text = Buffer.from(header);
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(text.length));
  const descriptor = fs.openSync(file, "wx");
  fs.writeSync(descriptor, prefix);
  fs.writeSync(descriptor, text);
  for (let done = 0; done < payloadBytes; done += TILE_BYTES) {
    const start = (done / TILE_BYTES) * 4097 * 16;
    const tile = noise.subarray(start % TILE_BYTES);
    fs.writeSync(descriptor, tile, 0, Math.min(TILE_BYTES, payloadBytes - done));
  }
  fs.fsyncSync(descriptor);
  fs.closeSync(descriptor);
}

/** What a child of this program does. */
const ROLES: Readonly<Record<string, (...words: readonly string[]) => Promise<object>>> = {
  async hub(folder = "") {
    const hub = await startHub(folder);
    return { base: hub.base.href };
  },
  async install(base = "", models = "", indexSha256 = "") {
    const source = { repository: REPOSITORY, revision: "main", indexSha256 };
    const limits = { parallel: Number(flags.parallel) };
    await installRemote({ source, name: "m", base: new URL(base), models, limits });
    return { peakBytes: peakMemoryBytes() };
  },
  /** Fetches everything as an install does, and drops it. */
  async fetch(base = "") {
    const url = new URL(base);
    const { idleMs, retry } = TRANSFER_LIMITS;
    const options = {
      http: new HttpSource({ base: url, idleMs, retry }),
      base: url,
      signal: undefined,
    };
    const checkpoint = await readRemote({ repository: REPOSITORY, revision: "main" }, options);
    const pending = planRanges(planInstall(checkpoint), RANGE_BYTES_DEFAULT).values();
    const fetchSome = async (): Promise<void> => {
      for (const range of pending) {
        const shard = checkpoint.shards.get(range.shard)!;
        await options.http.fetch(shard, range, { sink: () => undefined, signal: undefined });
      }
    };
    await Promise.all(Array.from({ length: Number(flags.parallel) }, fetchSome));
    return { peakBytes: peakMemoryBytes() };
  },
};

interface Sample {
  readonly seconds: number;
  readonly cpuSeconds: number;
  readonly peakBytes: number;
}

/** Runs a program to its end. */
async function measure(command: readonly string[]): Promise<Sample> {
  const start = performance.now();
  const child = Bun.spawn([...command], { stderr: "inherit" });
  const text = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error(`${command[0]} failed`);
  const seconds = (performance.now() - start) / 1000;
  const usage = child.resourceUsage()!;
  return {
    seconds,
    cpuSeconds: Number(usage.cpuTime.total) / 1e6,
    peakBytes: text.startsWith("{") ? JSON.parse(text).peakBytes : usage.maxRSS,
  };
}

/** Where a round works. */
interface Places {
  readonly source: string;
  readonly models: string;
  readonly copies: string;
}

function makePlaces(root: string): Places {
  const [source, models, copies] = ["source", "models", "copies"].map((name) => {
    const place = path.join(root, name);
    fs.mkdirSync(place);
    return place;
  }) as [string, string, string];
  return { source, models, copies };
}

const SELF = [process.execPath, import.meta.path, "--parallel", flags.parallel];

/** What is compared, by name. */
function sidesOf({ source, models, copies }: Places, base: string): Map<string, string[]> {
  const script =
    'cp --reflink=never "$0"/*.safetensors "$1"; sync -d "$1"/*; openssl dgst -sha256 "$1"/* >/dev/null';
  const indexSha256 = sha256(fs.readFileSync(path.join(source, INDEX_FILE)));
  return new Map([
    ["reference", ["sh", "-ec", script, source, copies]],
    ["install", [...SELF, "install", base, models, indexSha256]],
    ["fetch", [...SELF, "fetch", base]],
  ]);
}

/** Seconds of the processor that a process has used. */
function processorSeconds(pid: number): number {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

function empty(folder: string): void {
  for (const entry of fs.readdirSync(folder))
    fs.rmSync(path.join(folder, entry), { recursive: true });
}

function describe({ seconds, cpuSeconds, peakBytes }: Sample, payloadBytes: number): string {
  const rate = (payloadBytes / 1e9 / seconds).toFixed(2);
  const peak = (peakBytes / 1e6).toFixed(0);
  return `${seconds.toFixed(2)} s, ${rate} GB/s, processor ${cpuSeconds.toFixed(2)} s, peak ${peak} MB`;
}

async function bench(root: string): Promise<void> {
  const places = makePlaces(root);
  const payloadBytes = writeCheckpoint(places.source);
  const hub = Bun.spawn([...SELF, "hub", places.source], { stdout: "pipe" });
  const samples = new Map<string, Sample[]>();
  const round = async (side: string, command: readonly string[]): Promise<void> => {
    const before = processorSeconds(hub.pid);
    const sample = await measure(command);
    empty(places.models);
    empty(places.copies);
    const served = (processorSeconds(hub.pid) - before).toFixed(2);
    console.log(`${side}: ${describe(sample, payloadBytes)}, processor of the Hub ${served} s`);
    samples.set(side, [...(samples.get(side) ?? []), sample]);
  };
  const medianOf = (side: string): number =>
    median(samples.get(side)!.map(({ seconds }) => seconds));
  try {
    const { value } = await hub.stdout.getReader().read();
    const { base } = JSON.parse(new TextDecoder().decode(value)) as { base: string };
    const sides = sidesOf(places, base);
    for (const [side, command] of sides) await round(side, command);
    console.log("that round does not count");
    samples.clear();
    for (let run = 0; run < Number(flags.runs); run += 1) {
      for (const [side, command] of sides) await round(side, command);
    }
    for (const side of sides.keys()) console.log(`${side}: median ${medianOf(side).toFixed(2)} s`);
    const share = (100 * medianOf("reference")) / medianOf("install");
    console.log(`the install reaches ${share.toFixed(0)} % of the reference's speed`);
  } finally {
    hub.kill();
  }
}

const [role, ...words] = positionals;
if (role !== undefined) {
  process.stdout.write(`${JSON.stringify(await ROLES[role]!(...words))}\n`);
} else {
  const root = fs.mkdtempSync(path.join(flags.directory, "mf-install-"));
  try {
    await bench(root);
  } finally {
    fs.rmSync(root, { recursive: true });
  }
}
