import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { packageRulesOf } from "../families/index.ts";
import type { CheckpointPin } from "../families/family.ts";
import { hashDescriptor, sha256 } from "../format/digest.ts";
import { openInside } from "../format/files.ts";
import { encodeLayout } from "../format/layout.ts";
import { encodeManifest, type FileRecord } from "../format/manifest.ts";
import { NO_TEXT_NOTICE, openPackage } from "../format/package.ts";
import {
  EXPERTS_FOLDER,
  LAYOUT_FILE,
  MANIFEST_FILE,
  RECEIPT_FILE,
  TOKENIZER_FOLDER,
  WEIGHTS_FILE,
} from "../format/paths.ts";
import { encodeReceipt, INSTALL_TOOL } from "../format/receipt.ts";
import { encodeResidentIndex } from "../format/resident.ts";
import { acquireLock } from "../native/lock.ts";
import { checkCancelled, copyRanges } from "./copy.ts";
import {
  checkSpace,
  createTarget,
  finishTarget,
  ioError,
  sizeTarget,
  syncFolder,
  systemIo,
  writeAll,
  writeDurably,
  type InstallIo,
  type Target,
} from "./durable.ts";
import { checkModelName, modelsHome, packageDirectory } from "./home.ts";
import { planInstall, type InstallPlan } from "./plan.ts";
import { planRanges } from "./ranges.ts";
import { checkShardsUnchanged, openCheckpoint, type Checkpoint } from "./source.ts";

/**
 * Installs a local checkpoint as a package. Everything is built in `X.partial/` under a lock and
 * verified there; one rename makes it the model. An install that fails or is cancelled leaves nothing.
 */
export interface InstallOptions {
  /** The checkpoint folder. */
  readonly source: string;
  readonly name: string;
  /** Folder of the packages; the user's own when absent. */
  readonly models?: string;
  readonly onProgress?: (progress: InstallProgress) => void;
  readonly signal?: AbortSignal;
  /** Replaced by tests. */
  readonly io?: InstallIo;
}

export interface InstallProgress {
  readonly phase: "reading" | "copying" | "hashing" | "finishing";
  readonly doneBytes: number;
  readonly totalBytes: number;
}

export interface Installed {
  readonly name: string;
  readonly directory: string;
  readonly family: string;
  readonly modelId: string;
  readonly bytes: number;
  /** Tensors of the checkpoint that were left out. */
  readonly droppedCount: number;
  /** A sentence about what the package lacks. */
  readonly notice?: string;
}

/** What manifests call a checkpoint that no pin knows. */
const UNKNOWN_MODEL = "unknown/snapshot";
/** Left free for the file system when a pin names no reserve. */
const RESERVE_BYTES = 16 * 1024 * 1024;

/**
 * Installs a checkpoint folder.
 *
 * @throws MferenceError "install.exists", "install.busy", "install.source", "install.space",
 * "install.io", "install.cancelled", "model.family", "format.*"
 */
export async function installLocal(options: InstallOptions): Promise<Installed> {
  const name = checkModelName(options.name);
  const models = options.models ?? modelsHome();
  // Two spellings of the folder share one lock.
  const directory = packageDirectory(name, realFolder(models));
  checkPathTypes(directory);
  const lock = acquireLock(`${directory}.install.lock`);
  try {
    checkPathTypes(directory);
    if (fs.existsSync(directory)) throw exists(name, directory);
    // Only a run that was killed leaves one, and the lock says that no run is alive.
    fs.rmSync(partialOf(directory), { recursive: true, force: true });
    const addressed = packageDirectory(name, path.resolve(models));
    return await installInto({ ...options, name }, { directory, addressed });
  } finally {
    lock.release();
  }
}

function realFolder(models: string): string {
  try {
    fs.mkdirSync(models, { recursive: true });
    return fs.realpathSync(models);
  } catch (error) {
    throw ioError(error, models, systemIo);
  }
}

function partialOf(directory: string): string {
  return `${directory}.partial`;
}

/** The places of an install may be absent or folders; a link could lead anywhere. */
function checkPathTypes(directory: string): void {
  for (const place of [directory, partialOf(directory)]) {
    const status = fs.lstatSync(place, { throwIfNoEntry: false });
    if (status === undefined || status.isDirectory()) continue;
    throw new MferenceError("format.path", `${place} is in the way: it is not a folder`);
  }
}

function exists(name: string, directory: string): MferenceError {
  const isComplete = fs.existsSync(path.join(directory, MANIFEST_FILE));
  return new MferenceError(
    "install.exists",
    isComplete
      ? `the model "${name}" is already installed in ${directory}; choose another name, or remove that folder first`
      : `${directory} exists, but holds no complete package; remove that folder and install again`,
  );
}

/** The package's physical folder, and the one that the user names. */
interface Place {
  readonly directory: string;
  readonly addressed: string;
}

async function installInto(options: InstallOptions, place: Place): Promise<Installed> {
  const { signal } = options;
  const { directory, addressed } = place;
  const report = (progress: InstallProgress): void => options.onProgress?.(progress);
  report({ phase: "reading", doneBytes: 0, totalBytes: 0 });
  const partial = partialOf(directory);
  const checkpoint = await cancellable(signal, () => openCheckpoint(options.source, { signal }));
  try {
    const run: Run = {
      checkpoint,
      plan: planInstall(checkpoint),
      pin: pinOf(checkpoint),
      partial,
      directory,
      addressed,
      io: options.io ?? systemIo,
      signal,
      report,
    };
    checkSpace(path.dirname(directory), requiredBytes(run), run.io);
    checkCancelled(signal);
    const bytes = await cancellable(signal, () => build(run));
    promote(run);
    return {
      name: options.name,
      directory: addressed,
      family: checkpoint.family.id,
      modelId: run.pin?.modelId ?? UNKNOWN_MODEL,
      bytes,
      droppedCount: run.plan.droppedCount,
      ...(hasText(checkpoint) ? {} : { notice: NO_TEXT_NOTICE }),
    };
  } catch (error) {
    fs.rmSync(partial, { recursive: true, force: true });
    throw error;
  } finally {
    checkpoint.close();
  }
}

interface Run extends Place {
  readonly checkpoint: Checkpoint;
  readonly plan: InstallPlan;
  readonly pin: CheckpointPin | undefined;
  readonly partial: string;
  readonly io: InstallIo;
  readonly signal: AbortSignal | undefined;
  readonly report: (progress: InstallProgress) => void;
}

function pinOf(checkpoint: Checkpoint): CheckpointPin | undefined {
  return checkpoint.family.sources.find(
    ({ sourceSha256 }) => sourceSha256 === checkpoint.sourceSha256,
  );
}

function hasText(checkpoint: Checkpoint): boolean {
  return checkpoint.sidecars.some(({ name }) => name === "tokenizer.json");
}

function requiredBytes({ plan, checkpoint, pin }: Run): number {
  let total = pin?.remote?.reserveBytes ?? RESERVE_BYTES;
  for (const { bytes } of plan.outputs) total += bytes;
  for (const { bytes } of checkpoint.sidecars) total += bytes.length;
  for (const piece of encodeLayout(plan.layout)) total += piece.length;
  return total;
}

/** An abort deep inside a read surfaces as a cancelled install. */
async function cancellable<Result>(
  signal: AbortSignal | undefined,
  work: () => Promise<Result>,
): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof MferenceError)) checkCancelled(signal);
    throw error;
  }
}

/** Writes and verifies the whole package in the partial folder; returns its size. */
async function build(run: Run): Promise<number> {
  const { partial, plan, checkpoint, io } = run;
  for (const folder of [
    partial,
    `${partial}/${EXPERTS_FOLDER}`,
    `${partial}/${TOKENIZER_FOLDER}`,
  ]) {
    makeFolder(folder, io);
  }
  await copyPayload(run);
  checkShardsUnchanged(checkpoint);
  const files = await hashOutputs(run);
  run.report({ phase: "finishing", doneBytes: 0, totalBytes: 0 });
  files[LAYOUT_FILE] = writeLayout(run);
  for (const { name, bytes } of checkpoint.sidecars) {
    const relative = `${TOKENIZER_FOLDER}/${name}`;
    writeDurably(path.join(partial, relative), [bytes], io);
    files[relative] = { size: bytes.length, sha256: sha256(bytes) };
  }
  const manifest = encodeManifest({
    modelID: run.pin?.modelId ?? UNKNOWN_MODEL,
    sourceSnapshotHash: `sha256:${checkpoint.sourceSha256}`,
    arch: plan.arch,
    quant: plan.quant,
    files,
    expertsPerLayer: plan.layout.expertCount,
    numLayers: plan.layout.layers.length,
    expertStride: plan.layout.strideBytes,
    bitWidthOverridesHonored: checkpoint.quantization.overrides.size,
  });
  writeDurably(path.join(partial, MANIFEST_FILE), [manifest], io);
  const record = { size: manifest.length, sha256: sha256(manifest) };
  const receipt = encodeReceipt({
    directory: run.addressed,
    manifest: record,
    files,
    tool: INSTALL_TOOL,
  });
  writeDurably(path.join(partial, RECEIPT_FILE), [receipt], io);
  for (const folder of [EXPERTS_FOLDER, TOKENIZER_FOLDER, "."])
    syncFolder(path.join(partial, folder));
  // What cannot be loaded must not be promoted.
  const signal = run.signal === undefined ? {} : { signal: run.signal };
  await openPackage(partial, { policy: "full-sha256", rulesOf: packageRulesOf, ...signal });
  return Object.values(files).reduce((total, { size }) => total + size, manifest.length);
}

function makeFolder(folder: string, io: InstallIo): void {
  try {
    fs.mkdirSync(folder, { mode: 0o700 });
  } catch (error) {
    throw ioError(error, folder, io);
  }
}

async function copyPayload(run: Run): Promise<void> {
  const { plan, partial, io } = run;
  const targets = new Map<string, Target>();
  let doneBytes = 0;
  const totalBytes = plan.copies.reduce((total, copy) => total + copy.bytes, 0);
  try {
    for (const output of plan.outputs) {
      const target = createTarget(path.join(partial, output.path), io);
      targets.set(output.path, target);
      sizeTarget(target, output.bytes, io);
    }
    writeAll(targets.get(WEIGHTS_FILE)!, encodeResidentIndex(plan.resident), 0, io);
    await copyRanges(planRanges(plan), {
      shards: run.checkpoint.shards,
      targets,
      io,
      signal: run.signal,
      onBytes(bytes) {
        doneBytes += bytes;
        run.report({ phase: "copying", doneBytes, totalBytes });
      },
    });
    for (const [relative, target] of targets) {
      targets.delete(relative);
      finishTarget(target, io);
    }
  } finally {
    for (const target of targets.values()) fs.closeSync(target.descriptor);
  }
}

/** Hashes what the disk holds now, not what was meant to be written. */
async function hashOutputs(run: Run): Promise<Record<string, FileRecord>> {
  const files: Record<string, FileRecord> = {};
  let doneBytes = 0;
  const totalBytes = run.plan.outputs.reduce((total, output) => total + output.bytes, 0);
  for (const output of run.plan.outputs) {
    const file = openInside(run.partial, output.path, {
      missing: "install.io",
      unsafe: "install.io",
    });
    try {
      const digest = await hashDescriptor(
        file.descriptor,
        { path: file.path, sizeBytes: output.bytes },
        {
          signal: run.signal,
          onBytes(bytes) {
            doneBytes += bytes;
            run.report({ phase: "hashing", doneBytes, totalBytes });
          },
        },
      );
      files[output.path] = { size: output.bytes, sha256: digest };
    } finally {
      fs.closeSync(file.descriptor);
    }
  }
  return files;
}

function writeLayout({ plan, partial, io }: Run): FileRecord {
  const hasher = new Bun.CryptoHasher("sha256");
  let size = 0;
  const encoder = new TextEncoder();
  const pieces = function* (): Generator<Uint8Array> {
    for (const text of encodeLayout(plan.layout)) {
      const piece = encoder.encode(text);
      hasher.update(piece);
      size += piece.length;
      yield piece;
    }
  };
  writeDurably(path.join(partial, LAYOUT_FILE), pieces(), io);
  return { size, sha256: hasher.digest("hex") };
}

/** Makes the finished folder the model. */
function promote({ partial, directory, io }: Run): void {
  try {
    // Others on this machine may read what the user's umask lets them.
    const mode = 0o777 & ~process.umask();
    for (const folder of [EXPERTS_FOLDER, TOKENIZER_FOLDER, "."]) {
      fs.chmodSync(path.join(partial, folder), mode);
    }
    fs.renameSync(partial, directory);
    syncFolder(path.dirname(directory));
  } catch (error) {
    throw ioError(error, directory, io);
  }
}
