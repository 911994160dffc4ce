import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { encodeResidentIndex } from "../format/resident.ts";
import { NO_TEXT_NOTICE } from "../format/package.ts";
import { MANIFEST_FILE, WEIGHTS_FILE } from "../format/paths.ts";
import { acquireLock } from "../native/lock.ts";
import {
  assemble,
  hasText,
  makePackageFolders,
  partialOf,
  pinOf,
  promote,
  requiredBytes,
  UNKNOWN_MODEL,
  type Build,
  type InstallProgress,
} from "./assemble.ts";
import { checkCancelled, copyRanges } from "./copy.ts";
import {
  checkSpace,
  createTarget,
  finishTarget,
  makeFolders,
  remove,
  removeQuietly,
  sizeTarget,
  systemIo,
  writeAll,
  type InstallIo,
  type Target,
} from "./durable.ts";
import { checkModelName, modelsHome, packageDirectory } from "./home.ts";
import { checkPinned, sidecarDigests } from "./pinned.ts";
import { planInstall } from "./plan.ts";
import { planRanges } from "./ranges.ts";
import { resumePath } from "./resume.ts";
import { checkShardsUnchanged, openCheckpoint, type Checkpoint } from "./source.ts";

/**
 * Installs a local checkpoint as a package. Everything is built in `X.partial/` under a lock and
 * verified there; one rename makes it the model. An install that fails or is cancelled leaves nothing.
 */
export interface InstallOptions {
  /** The checkpoint folder. */
  readonly source: string;
  readonly name: string;
  /** What the index must hash to. */
  readonly indexSha256?: string;
  /** Folder of the packages; the user's own when absent. */
  readonly models?: string;
  readonly onProgress?: (progress: InstallProgress) => void;
  readonly signal?: AbortSignal;
  /** Replaced by tests. */
  readonly io?: InstallIo;
}

const WRITABLE_BY_ALL = 0o002;
const STICKY = 0o1000;

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
  const directory = packageDirectory(name, realFolder(models, options.io));
  checkPathTypes(directory);
  const lock = acquireLock(`${directory}.install.lock`);
  try {
    checkPathTypes(directory);
    if (fs.existsSync(directory)) throw exists(name, directory);
    checkNoDownload(name, directory);
    // Only a run that was killed leaves one, and the lock says that no run is alive.
    remove(partialOf(directory), options.io ?? systemIo);
    const addressed = packageDirectory(name, path.resolve(models));
    return await installInto({ ...options, name }, { directory, addressed });
  } finally {
    lock.release();
  }
}

function checkDigest({ source, indexSha256 }: InstallOptions, found: string): void {
  if (indexSha256 === undefined || indexSha256.toLowerCase() === found) return;
  throw new MferenceError(
    "install.source",
    `the index of ${source} has the digest ${found}; expected ${indexSha256}: this is not the checkpoint meant`,
  );
}

/** What was downloaded is not thrown away for a local install of the same name. */
function checkNoDownload(name: string, directory: string): void {
  if (!fs.existsSync(resumePath(directory)) || !fs.existsSync(partialOf(directory))) return;
  throw new MferenceError(
    "install.state",
    `a download named "${name}" is unfinished; choose another name, or remove it with "mference discard ${name}"`,
  );
}

/**
 * Makes a folder if it is not there, and says where it really is.
 *
 * @throws MferenceError "install.io", "format.path" when anybody could put something else in a model's place
 */
export function realFolder(models: string, io: InstallIo = systemIo): string {
  makeFolders(path.resolve(models), io);
  const folder = fs.realpathSync(models);
  const isOpen = (fs.statSync(folder).mode & (WRITABLE_BY_ALL | STICKY)) === WRITABLE_BY_ALL;
  if (!isOpen) return folder;
  throw new MferenceError(
    "format.path",
    `${folder} can be written by every user of this machine, who could replace what is installed there; run "chmod o-w" on it, or choose another with MFERENCE_HOME`,
  );
}

/** The places of an install may be absent or folders; a link could lead anywhere. */
export function checkPathTypes(directory: string): void {
  for (const place of [directory, partialOf(directory)]) {
    const status = fs.lstatSync(place, { throwIfNoEntry: false });
    if (status === undefined || status.isDirectory()) continue;
    throw new MferenceError("format.path", `${place} is in the way: it is not a folder`);
  }
}

/** The error of a name that is taken. */
export function exists(name: string, directory: string): MferenceError {
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
    const { family, quantization, sidecars, sourceSha256 } = checkpoint;
    checkDigest(options, sourceSha256);
    checkPinned(pinOf(checkpoint), sidecarDigests(sidecars));
    const build: Build = {
      plan: planInstall(checkpoint),
      family,
      quantization,
      sidecars,
      sourceSha256,
      pin: pinOf(checkpoint),
      partial,
      directory,
      addressed,
      io: options.io ?? systemIo,
      signal,
      report,
    };
    checkSpace(path.dirname(directory), requiredBytes(build), build.io);
    checkCancelled(signal);
    const bytes = await cancellable(signal, async () => {
      makePackageFolders(build);
      await copyPayload(build, checkpoint);
      checkShardsUnchanged(checkpoint);
      return await assemble(build);
    });
    promote(build);
    return {
      name: options.name,
      directory: addressed,
      family: family.id,
      modelId: build.pin?.modelId ?? UNKNOWN_MODEL,
      bytes,
      droppedCount: build.plan.droppedCount,
      ...(hasText(sidecars) ? {} : { notice: NO_TEXT_NOTICE }),
    };
  } catch (error) {
    removeQuietly(partial, options.io ?? systemIo);
    throw error;
  } finally {
    checkpoint.close();
  }
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

async function copyPayload(build: Build, checkpoint: Checkpoint): Promise<void> {
  const { plan, partial, io } = build;
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
      shards: checkpoint.shards,
      targets,
      io,
      signal: build.signal,
      onBytes(bytes) {
        doneBytes += bytes;
        build.report({ phase: "copying", doneBytes, totalBytes });
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
