// Writes a full-size package with seeded random weights, for measurements that need no sense in the answers:
//   bun bench/synthetic.ts DIR [--family gemma4|qwen36] [--overlap P] [--seed TEXT] [--layers N]
//   bun bench/synthetic.ts DIR --remove
// The same arguments give the same bytes. A run that was stopped is continued: finished files are kept.
// Following token ids share each routed expert of a layer with probability P; other ids share none but by
// chance. Refuses to fill the disk; --remove deletes only what an earlier run wrote.
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { sha256 } from "../src/format/digest.ts";
import type { JsonValue } from "../src/format/json.ts";
import { WEIGHTS_FILE } from "../src/format/paths.ts";
import { parseQuantization } from "../src/format/quant.ts";
import { encodeResidentIndex } from "../src/format/resident.ts";
import {
  assemble,
  makePackageFolders,
  partialOf,
  promote,
  type Build,
} from "../src/install/assemble.ts";
import { checkSpace, createTarget, finishTarget, sizeTarget } from "../src/install/durable.ts";
import { systemIo, writeAll, type Target } from "../src/install/durable.ts";
import { type Copy, type InstallPlan, planInstall, type PlannedFile } from "../src/install/plan.ts";
import type { ShardTensor } from "../src/install/source.ts";
import { formatBytes } from "../src/util/units.ts";
import { GROUP, type Synthetic } from "./synthetic/family.ts";
import { type SyntheticId, synthetics } from "./synthetic/index.ts";
import { SyntheticWeights, TILE_BYTES } from "./weights.ts";

/** Left free for everybody else. */
const SPARE_BYTES = 20e9;

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    overlap: { type: "string", default: "0.6" },
    seed: { type: "string", default: "1" },
    family: { type: "string", default: "gemma4" },
    layers: { type: "string" },
    remove: { type: "boolean", default: false },
  },
});

/** Ends with a sentence where the arguments are at fault. */
function usage(problem: string): never {
  console.error(
    `${problem}\nusage: bun bench/synthetic.ts DIR [--family NAME] [--overlap P] [--seed TEXT] [--remove]`,
  );
  process.exit(2);
}

const directory = path.resolve(positionals[0] ?? usage("a folder was expected"));
const overlap = Number(flags.overlap);
if (!(overlap >= 0 && overlap <= 1)) usage(`--overlap ${flags.overlap}: expected 0 to 1`);
const known = Object.keys(synthetics).join(", ");
if (!(flags.family in synthetics)) usage(`--family ${flags.family}: expected one of ${known}`);
const synthetic = synthetics[flags.family as SyntheticId] as unknown as Synthetic<unknown>;
const { arch, layerStep } = synthetic;
const { family } = synthetic;
const layerCount = Number(flags.layers ?? arch.numLayers);
if (!(layerCount >= layerStep && layerCount % layerStep === 0)) {
  usage(`--layers: expected a multiple of ${layerStep}`);
}
/** What the bytes depend on; lies beside the package and says that it is ours. */
const stamp = `${directory}.synthetic.json`;
const recipe = JSON.stringify({
  version: 1,
  overlap,
  seed: flags.seed,
  layerCount,
  ...(flags.family === "gemma4" ? {} : { family: flags.family }),
});

/** The tensors of a checkpoint of this architecture; each is a shard of its own, under its own name. */
function tensorsOf(config: JsonValue): Map<string, ShardTensor> {
  const parsed = family.parseConfig(config);
  const tensors = new Map<string, ShardTensor>();
  const add = (name: string, dtype: "BF16" | "U32", shape: readonly number[]): void => {
    const bytes = shape.reduce((a, b) => a * b, dtype === "U32" ? 4 : 2);
    tensors.set(name, { name, dtype, shape, offset: 0, bytes, shard: name });
  };
  const addMatrix = (name: string, shape: readonly number[], bits: number): void => {
    const [rows, columns] = [shape.slice(0, -1), shape.at(-1)!];
    const module = name.slice(0, -".weight".length);
    add(name, "U32", [...rows, (columns * bits) / 32]);
    for (const part of ["scales", "biases"]) {
      add(`${module}.${part}`, "BF16", [...rows, columns / GROUP]);
    }
  };
  for (const { name, shape, bits } of family.tensors.resident(parsed)) {
    if (bits === undefined) add(name, "BF16", shape);
    else addMatrix(name, shape, bits[0]!);
  }
  for (let layer = 0; layer < layerCount; layer += 1) {
    const { shapes } = family.tensors.experts(parsed, layer)!;
    for (const part of ["gate", "up", "down"] as const) {
      addMatrix(synthetic.expertName(layer, part), [arch.numExperts, ...shapes[part]], 4);
    }
  }
  return tensors;
}

/** Fills one range, in tiles of whole rows so that the embedding's marks can be set. */
function fillRange(copy: Copy, target: Target, source: Source): void {
  const { shape } = source.tensors.get(copy.shard)!;
  const rowBytes = copy.shard.includes("embed_tokens.weight") ? arch.hiddenSize / 2 : 64;
  const tileBytes = Math.floor(TILE_BYTES / rowBytes) * rowBytes;
  for (let done = 0; done < copy.bytes; done += tileBytes) {
    const tile = source.tile.subarray(0, Math.min(tileBytes, copy.bytes - done));
    const offset = copy.sourceOffset + done;
    source.weights.write({ name: copy.shard, shape, offset }, tile);
    writeAll(target, tile, copy.targetOffset + done, systemIo);
  }
}

interface Source {
  readonly tensors: ReadonlyMap<string, ShardTensor>;
  readonly weights: SyntheticWeights;
  readonly tile: Uint8Array;
}

/** Writes a file under another name, which it gives up when it is complete and on the disk. */
function writeOutput(output: PlannedFile, plan: InstallPlan, source: Source): void {
  const place = path.join(partialOf(directory), output.path);
  const unfinished = `${place}.unfinished`;
  fs.rmSync(unfinished, { force: true });
  const target = createTarget(unfinished, systemIo);
  sizeTarget(target, output.bytes, systemIo);
  if (output.path === WEIGHTS_FILE) {
    writeAll(target, encodeResidentIndex(plan.resident), 0, systemIo);
  }
  for (const copy of plan.copies) {
    if (copy.target === output.path) fillRange(copy, target, source);
  }
  finishTarget(target, systemIo);
  fs.renameSync(unfinished, place);
}

/** Keeps finished outputs of the same recipe and removes everything else of an earlier run. */
function clearPartial(plan: InstallPlan): Set<string> {
  const partial = partialOf(directory);
  const isSame = fs.existsSync(stamp) && fs.readFileSync(stamp, "utf8") === recipe;
  if (!isSame && (fs.existsSync(stamp) || fs.existsSync(partial))) {
    usage(`${directory} was begun with other arguments; remove it first`);
  }
  fs.writeFileSync(stamp, recipe);
  const bytes = new Map(plan.outputs.map((output) => [output.path, output.bytes]));
  const finished = new Set<string>();
  if (!fs.existsSync(partial)) return finished;
  for (const name of fs.readdirSync(partial, { recursive: true, encoding: "utf8" })) {
    const status = fs.lstatSync(path.join(partial, name));
    if (status.isDirectory()) continue;
    if (status.size === bytes.get(name)) finished.add(name);
    else fs.rmSync(path.join(partial, name));
  }
  return finished;
}

async function write(): Promise<void> {
  if (fs.existsSync(directory)) usage(`${directory} is already there`);
  const config = synthetic.configOf(layerCount);
  const tensors = tensorsOf(config);
  const quantization = parseQuantization(config, "config.json");
  const plan = planInstall({ family, config, quantization, tensors });
  fs.mkdirSync(path.dirname(directory), { recursive: true });
  const finished = clearPartial(plan);
  const missing = plan.outputs.filter((output) => !finished.has(output.path));
  const weights = new SyntheticWeights(synthetic, flags.seed, overlap);
  const build: Build = {
    plan,
    family,
    pin: undefined,
    sourceSha256: sha256(recipe),
    quantization,
    sidecars: [
      { name: "config.json", bytes: new TextEncoder().encode(JSON.stringify(config, null, 1)) },
    ],
    partial: partialOf(directory),
    directory,
    addressed: directory,
    io: systemIo,
    signal: undefined,
    report: () => {},
  };
  makePackageFolders(build);
  const source: Source = { tensors, weights, tile: new Uint8Array(TILE_BYTES) };
  let leftBytes = missing.reduce((sum, { bytes }) => sum + bytes, 0);
  for (const output of missing) {
    checkSpace(build.partial, leftBytes + SPARE_BYTES, systemIo);
    writeOutput(output, plan, source);
    leftBytes -= output.bytes;
    console.error(`${output.path}: ${formatBytes(output.bytes)}; ${formatBytes(leftBytes)} left`);
    await Bun.sleep(0);
  }
  console.error("hashing and checking");
  const bytes = await assemble(build);
  promote(build);
  console.log(`${directory}: ${formatBytes(bytes)}, overlap ${overlap}, seed ${flags.seed}`);
}

function remove(): void {
  if (!fs.existsSync(stamp)) usage(`${directory} was not written by this program`);
  for (const place of [directory, partialOf(directory), stamp]) {
    fs.rmSync(place, { recursive: true, force: true });
  }
}

if (flags.remove) remove();
else await write();
