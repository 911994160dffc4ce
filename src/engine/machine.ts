/**
 * What this machine can run: the device that a library offers, how fast experts can be read, and how many
 * slots of a model fit into memory. Loads no model; the estimates are for people.
 */
import fs from "node:fs";
import path from "node:path";
import { runnableFamily } from "../families/index.ts";
import { openInside, readCapped } from "../format/files.ts";
import { parseJson } from "../format/json.ts";
import { parseManifest } from "../format/manifest.ts";
import { readManifestBytes } from "../format/package.ts";
import {
  CONFIG_FILE,
  EXPERTS_FOLDER,
  LAYOUT_FILE,
  MANIFEST_FILE,
  METADATA_BYTES_MAX,
  WEIGHTS_FILE,
} from "../format/paths.ts";
import { kvBytes } from "../kv/plan.ts";
import { recurrentBytes, SNAPSHOTS_MAX } from "../kv/recurrent.ts";
import { Device, type DeviceInfo } from "../native/device.ts";
import { PRECISIONS } from "../ops/ops.ts";
import { env } from "../util/env.ts";
import { CONTEXT_DEFAULT } from "./model.ts";

export type { DeviceInfo };

/** Memory that a loaded model needs, apart from its slots. */
export interface ModelNeeds {
  /** Mapped; needed by every token. */
  readonly commonBytes: number;
  readonly kvBytes: number;
  /** One slot in every layer. */
  readonly slotBytes: number;
  readonly expertCount: number;
  readonly expertsPerToken: number;
  readonly contextRows: number;
}

/** The program itself with its libraries, a tokenizer, and the scratch of a chunk. */
const PROGRAM_BYTES = 250e6;

/**
 * What a model needs at the default context.
 *
 * @throws MferenceError of the groups "format", "install" and "model"
 */
export function modelNeeds(directory: string): ModelNeeds {
  const manifest = parseManifest(readManifestBytes(directory), path.join(directory, MANIFEST_FILE));
  const family = runnableFamily(manifest.arch.family);
  const shape = family.shapeOf(family.parseConfig(readConfig(directory)));
  const expertBytes = Object.entries(manifest.files)
    .filter(([file]) => file.startsWith(`${EXPERTS_FOLDER}/`) && file !== LAYOUT_FILE)
    .reduce((sum, [, { size }]) => sum + size, 0);
  const contextRows = Math.min(CONTEXT_DEFAULT, shape.contextMax);
  const extent = { contextRows, chunkRows: contextRows };
  const elementBytes = PRECISIONS.fast.kvDtype === "f16" ? 2 : 4;
  return {
    commonBytes: manifest.files[WEIGHTS_FILE]?.size ?? 0,
    kvBytes:
      kvBytes(shape.kvLayers, extent, elementBytes) +
      (1 + SNAPSHOTS_MAX) * recurrentBytes(shape.recurrentLayers ?? []),
    slotBytes: Math.ceil(expertBytes / shape.expertCount),
    expertCount: shape.expertCount,
    expertsPerToken: shape.expertsPerToken,
    contextRows,
  };
}

function readConfig(directory: string) {
  const file = openInside(directory, CONFIG_FILE, {
    missing: "install.missing",
    unsafe: "format.path",
  });
  try {
    return parseJson(readCapped(file, METADATA_BYTES_MAX.config, "format.config"), {
      code: "format.config",
      what: file.path,
    });
  } finally {
    fs.closeSync(file.descriptor);
  }
}

/**
 * The most slots of each layer that fit into so much memory, at most all experts; 0 where not even the
 * rest fits.
 */
export function slotsThatFit(needs: ModelNeeds, memoryBytes: number): number {
  const room = memoryBytes - needs.commonBytes - needs.kvBytes - PROGRAM_BYTES;
  const slots = Math.floor(room / Math.max(1, needs.slotBytes));
  return Math.max(0, Math.min(needs.expertCount, slots));
}

/**
 * The device that a library offers.
 *
 * @throws MferenceError "native.load", "native.abi", "native.call"
 */
export function probeDevice(library: string): DeviceInfo {
  const simd = env("MFERENCE_SIMD");
  const device = new Device({ library, ...(simd === undefined ? {} : { simd }) });
  try {
    return device.info;
  } finally {
    device.close();
  }
}

export interface DiskSpeed {
  readonly bytesPerSecond: number;
  /** False: the system's cache may have answered. */
  readonly isDirect: boolean;
}

const BLOCK_BYTES = 2 * 1024 * 1024;
const PROBE_MS_MAX = 500;
const { O_RDONLY } = fs.constants;
/** Reads past the system's cache; not every system has it. */
const O_DIRECT = (fs.constants as { O_DIRECT?: number }).O_DIRECT ?? 0;

/**
 * Measures positioned reads of a file into a device's memory, as experts are read, for half a second at
 * most. Undefined for a file smaller than one block.
 */
export function measureDisk(library: string, file: string): DiskSpeed | undefined {
  const blocks = Math.floor(fs.statSync(file).size / BLOCK_BYTES);
  if (blocks === 0) return undefined;
  const device = new Device({ library, threads: 1 });
  const memory = device.allocate(BLOCK_BYTES);
  const target = device.view(memory, 0, BLOCK_BYTES);
  try {
    return readBlocks(file, blocks, target);
  } finally {
    device.release(memory);
    device.close();
  }
}

function readBlocks(file: string, blocks: number, target: Uint8Array): DiskSpeed {
  const { descriptor, isDirect } = openDirect(file, target);
  try {
    // The first read brings the slab's pages into being.
    fs.readSync(descriptor, target, 0, BLOCK_BYTES, 0);
    const begin = performance.now();
    let bytes = 0;
    // A stride that no small number of blocks divides visits them in no order.
    for (let i = 1; performance.now() - begin < PROBE_MS_MAX && i <= 512; i += 1) {
      const offset = ((i * 7919) % blocks) * BLOCK_BYTES;
      bytes += fs.readSync(descriptor, target, 0, BLOCK_BYTES, offset);
    }
    return { bytesPerSecond: (1000 * bytes) / (performance.now() - begin), isDirect };
  } finally {
    fs.closeSync(descriptor);
  }
}

/** File systems in memory refuse direct reads, some only when the first one comes. */
function openDirect(
  file: string,
  target: Uint8Array,
): { readonly descriptor: number; readonly isDirect: boolean } {
  let descriptor: number | undefined;
  try {
    descriptor = fs.openSync(file, O_RDONLY | O_DIRECT);
    fs.readSync(descriptor, target, 0, BLOCK_BYTES, 0);
    return { descriptor, isDirect: O_DIRECT !== 0 };
  } catch {
    if (descriptor !== undefined) fs.closeSync(descriptor);
    return { descriptor: fs.openSync(file, O_RDONLY), isDirect: false };
  }
}
