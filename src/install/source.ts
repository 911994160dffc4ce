import fs from "node:fs";
import path from "node:path";
import { z } from "zod";
import { MferenceError } from "../util/errors.ts";
import type { Family } from "../families/family.ts";
import { familyOfConfig, type AnyFamily } from "../families/index.ts";
import { hashDescriptor, sha256 } from "../format/digest.ts";
import {
  checkUnchanged,
  identityOf,
  openRegular,
  readCapped,
  type FileIdentity,
  type OpenFile,
} from "../format/files.ts";
import { parseJson, parseJsonAs, type JsonValue } from "../format/json.ts";
import { METADATA_BYTES_MAX, SIDECARS } from "../format/paths.ts";
import { parseQuantization, type Quantization } from "../format/quant.ts";
import { readSafetensors, type SourceTensor } from "../format/safetensors.ts";

/**
 * A checkpoint folder in MLX layout: its shards, the header of each, config.json and the text files.
 * Owns the open shards; reads headers only. The folder is the user's own, so links in it are followed.
 */
export interface Checkpoint {
  readonly directory: string;
  readonly family: AnyFamily;
  readonly config: JsonValue;
  readonly quantization: Quantization;
  readonly shards: ReadonlyMap<string, Shard>;
  /** Every tensor with the shard that holds it. */
  readonly tensors: ReadonlyMap<string, ShardTensor>;
  /** SHA-256 of the index, or of the single file. */
  readonly sourceSha256: string;
  /** The text files that are there, config.json included. */
  readonly sidecars: readonly SourceSidecar[];
  close(): void;
}

/** An open shard. */
export interface Shard extends OpenFile {
  readonly identity: FileIdentity;
}

export interface ShardTensor extends SourceTensor {
  readonly shard: string;
}

/** A small file that travels verbatim. */
export interface SourceSidecar {
  readonly name: string;
  readonly bytes: Uint8Array;
}

export const INDEX_FILE = "model.safetensors.index.json";
const SINGLE_FILE = "model.safetensors";
const SHARD_NAME = /^[^/\\\p{Cc}]{1,240}\.safetensors$/u;
const OPEN = { missing: "install.source", unsafe: "install.source", isLinkAllowed: true } as const;

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

/**
 * Opens a checkpoint folder and checks all its headers against each other.
 *
 * @throws MferenceError "install.source" for what is missing or does not fit together, "model.family",
 * "format.config", "format.json" or "format.safetensors"
 */
export async function openCheckpoint(
  directory: string,
  options: { readonly signal?: AbortSignal | undefined } = {},
): Promise<Checkpoint> {
  const root = path.resolve(directory);
  if (fs.statSync(root, { throwIfNoEntry: false })?.isDirectory() !== true) {
    throw new MferenceError("install.source", `there is no checkpoint folder ${root}`);
  }
  const sidecars = readSidecars(root);
  const configBytes = sidecars.find(({ name }) => name === "config.json")?.bytes;
  if (configBytes === undefined) return missing(path.join(root, "config.json"));
  const what = path.join(root, "config.json");
  const config = parseJson(configBytes, { code: "format.config", what });
  const family = familyOfConfig(config);
  const quantization = quantizationOf(family, config, what);
  const shards = new Map<string, Shard>();
  const close = (): void => {
    for (const shard of shards.values()) fs.closeSync(shard.descriptor);
    shards.clear();
  };
  try {
    const { sourceSha256, tensors } = await readWeights(root, shards, options.signal);
    return {
      directory: root,
      family,
      config,
      quantization,
      shards,
      tensors,
      sourceSha256,
      sidecars,
      close,
    };
  } catch (error) {
    close();
    throw error;
  }
}

/** The quantization that config.json declares, as the family reads it. */
export function quantizationOf(family: AnyFamily, config: JsonValue, what: string): Quantization {
  const { parseQuantization: own } = family as Family<unknown>;
  return own === undefined ? parseQuantization(config, what) : own(config);
}

/**
 * Checks that no shard was replaced or written to since the checkpoint was opened.
 *
 * @throws MferenceError "format.changed"
 */
export function checkShardsUnchanged(checkpoint: Checkpoint): void {
  for (const shard of checkpoint.shards.values()) {
    checkUnchanged(shard.descriptor, shard.identity, shard.path);
  }
}

interface Weights {
  readonly sourceSha256: string;
  readonly tensors: ReadonlyMap<string, ShardTensor>;
}

async function readWeights(
  root: string,
  shards: Map<string, Shard>,
  signal: AbortSignal | undefined,
): Promise<Weights> {
  if (fs.existsSync(path.join(root, INDEX_FILE))) return readIndexed(root, shards);
  if (!fs.existsSync(path.join(root, SINGLE_FILE))) {
    throw new MferenceError(
      "install.source",
      `${root} holds neither ${INDEX_FILE} nor ${SINGLE_FILE}; expected a checkpoint in MLX layout`,
    );
  }
  const shard = openShard(root, SINGLE_FILE, shards);
  const tensors = addTensors(new Map(), readSafetensors(shard), SINGLE_FILE);
  const sourceSha256 = await hashDescriptor(shard.descriptor, shard, { signal });
  return { sourceSha256, tensors };
}

function readIndexed(root: string, shards: Map<string, Shard>): Weights {
  const file = openRegular(path.join(root, INDEX_FILE), OPEN);
  let bytes: Uint8Array;
  try {
    bytes = readCapped(file, METADATA_BYTES_MAX.sourceIndex, "install.source");
  } finally {
    fs.closeSync(file.descriptor);
  }
  const byShard = parseIndex(bytes, file.path);
  for (const name of byShard.keys()) openShard(root, name, shards);
  const tensors = new Map<string, ShardTensor>();
  for (const [name, entries] of byShard) {
    const before = tensors.size;
    addTensors(tensors, readSafetensors(shards.get(name)!), name);
    checkListing(name, { entries, tensors, count: tensors.size - before });
  }
  return { sourceSha256: sha256(bytes), tensors };
}

/** The tensors that an index places in a shard, with the shard's name. */
export type ShardListing = readonly (readonly [string, string])[];

/**
 * Parses an index into what each shard holds.
 *
 * @throws MferenceError "format.json", "install.source" for the name of a shard that is none
 */
export function parseIndex(bytes: Uint8Array, what: string): ReadonlyMap<string, ShardListing> {
  const { weight_map: weightMap } = parseJsonAs(bytes, indexSchema, { code: "format.json", what });
  const byShard = Map.groupBy(Object.entries(weightMap), ([, shard]) => shard);
  for (const name of byShard.keys()) {
    if (SHARD_NAME.test(name) && !name.includes("..")) continue;
    throw new MferenceError(
      "install.source",
      `${what} names the shard ${JSON.stringify(name.slice(0, 300))}; expected a bare file name ending in .safetensors`,
    );
  }
  return byShard;
}

/** A shard must hold exactly the tensors that the index places there. */
export function checkListing(
  shard: string,
  found: {
    readonly entries: ShardListing;
    readonly tensors: ReadonlyMap<string, ShardTensor>;
    readonly count: number;
  },
): void {
  const absent = found.entries.find(([tensor]) => found.tensors.get(tensor)?.shard !== shard);
  if (absent !== undefined) {
    throw new MferenceError(
      "install.source",
      `${shard} lacks the tensor ${absent[0]} that ${INDEX_FILE} places there`,
    );
  }
  if (found.count === found.entries.length) return;
  throw new MferenceError(
    "install.source",
    `${shard} holds ${found.count} tensors, but ${INDEX_FILE} lists ${found.entries.length} of it`,
  );
}

function openShard(root: string, name: string, shards: Map<string, Shard>): Shard {
  const file = openRegular(path.join(root, name), OPEN);
  const shard = { ...file, identity: identityOf(file.descriptor) };
  shards.set(name, shard);
  return shard;
}

/**
 * Adds the tensors of a shard to those of the others.
 *
 * @throws MferenceError "install.source" when one is there already
 */
export function addTensors(
  tensors: Map<string, ShardTensor>,
  found: ReadonlyMap<string, SourceTensor>,
  shardName: string,
): Map<string, ShardTensor> {
  for (const tensor of found.values()) {
    const other = tensors.get(tensor.name);
    if (other !== undefined) {
      throw new MferenceError(
        "install.source",
        `the tensor ${tensor.name} is in both ${other.shard} and ${shardName}`,
      );
    }
    tensors.set(tensor.name, { ...tensor, shard: shardName });
  }
  return tensors;
}

/** The text files; the tokenizer's two come together or not at all. */
function readSidecars(root: string): readonly SourceSidecar[] {
  const found: SourceSidecar[] = [];
  for (const { name, bytesMax } of SIDECARS) {
    if (!fs.existsSync(path.join(root, name))) continue;
    const file = openRegular(path.join(root, name), OPEN);
    try {
      found.push({ name, bytes: readCapped(file, bytesMax, "install.source") });
    } finally {
      fs.closeSync(file.descriptor);
    }
  }
  checkTextSide(
    found.map(({ name }) => name),
    root,
  );
  return found;
}

/**
 * Checks that the files of the text side come together or not at all.
 *
 * @throws MferenceError "install.source"
 */
export function checkTextSide(names: readonly string[], where: string): void {
  const text = SIDECARS.filter(({ need }) => need === "text").map(({ name }) => name);
  const present = text.filter((name) => names.includes(name));
  const absent = text.find((name) => !present.includes(name));
  if (present.length === 0 || absent === undefined) return;
  throw new MferenceError(
    "install.source",
    `${where} has ${present.join(", ")} but no ${absent}; the text side needs both, or neither for a package of token ids only`,
  );
}

function missing(file: string): never {
  throw new MferenceError(
    "install.source",
    `${file} is missing; expected a checkpoint in MLX layout`,
  );
}
