import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { sha256 } from "../format/digest.ts";
import { readAt } from "../format/files.ts";
import { NO_TEXT_NOTICE } from "../format/package.ts";
import {
  EXPERTS_FOLDER,
  LAYOUT_FILE,
  MANIFEST_FILE,
  RECEIPT_FILE,
  TOKENIZER_FOLDER,
  WEIGHTS_FILE,
} from "../format/paths.ts";
import { encodeResidentIndex } from "../format/resident.ts";
import { acquireLock } from "../native/lock.ts";
import {
  assemble,
  makePackageFolders,
  partialOf,
  pinOf,
  promote,
  requiredBytes,
  UNKNOWN_MODEL,
  type Build,
  type InstallProgress,
} from "./assemble.ts";
import {
  checkFolder,
  checkSpace,
  createTarget,
  remove,
  removeQuietly,
  reopenTarget,
  sizeTarget,
  syncFolder,
  syncTarget,
  systemIo,
  writeAll,
  type InstallIo,
  type Target,
} from "./durable.ts";
import { HashThreads } from "./hashing.ts";
import { checkModelName, modelsHome, packageDirectory } from "./home.ts";
import { HttpSource } from "./http.ts";
import { fetchSidecars, readRemote, type RemoteCheckpoint, type RemoteSource } from "./hub.ts";
import { checkPathTypes, exists, realFolder, type Installed } from "./install.ts";
import { checkPinned, sidecarDigests } from "./pinned.ts";
import { planInstall } from "./plan.ts";
import {
  indexSha256,
  planFingerprint,
  planRanges,
  RANGE_BYTES_DEFAULT,
  type SourceRange,
} from "./ranges.ts";
import {
  checkSaved,
  readSaved,
  removeSaved,
  writeSaved,
  type DownloadIdentity,
  type SavedDownload,
} from "./resume.ts";
import { RETRY_POLICY, type RetryPolicy } from "./retry.ts";
import { intactRanges, isStaging, transferRanges } from "./transfer.ts";

/**
 * Installs a checkpoint from the Hub. What has come stays, whatever happens: the next run goes on with
 * it, after hashing it again. Owns the order of the steps; how bytes travel and how a package is made is
 * decided elsewhere.
 */
export interface RemoteOptions {
  readonly source: RemoteSource;
  readonly name: string;
  /** The Hub or its mirror. */
  readonly base: URL;
  readonly token?: string | undefined;
  /** Folder of the packages; the user's own when absent. */
  readonly models?: string;
  readonly isOffline?: boolean;
  readonly onProgress?: (progress: InstallProgress) => void;
  /** Told of each failure after which the server is asked again. */
  readonly onWait?: RetryPolicy["onWait"];
  readonly signal?: AbortSignal;
  /** Replaced by tests. */
  readonly io?: InstallIo;
  readonly limits?: Partial<TransferLimits>;
}

export interface TransferLimits {
  readonly rangeBytes: number;
  /** Ranges under way at once. */
  readonly parallel: number;
  /** Longest silence of the server. */
  readonly idleMs: number;
  readonly retry: RetryPolicy;
}

export const TRANSFER_LIMITS: TransferLimits = {
  rangeBytes: RANGE_BYTES_DEFAULT,
  parallel: 3,
  idleMs: 60_000,
  retry: RETRY_POLICY,
};

interface Place {
  readonly directory: string;
  readonly addressed: string;
}

/** A download that has been planned. */
interface Run {
  readonly options: RemoteOptions;
  readonly limits: TransferLimits;
  readonly http: HttpSource;
  readonly checkpoint: RemoteCheckpoint;
  readonly build: Omit<Build, "sidecars">;
  readonly ranges: readonly SourceRange[];
  readonly identity: DownloadIdentity;
}

/**
 * Installs a checkpoint of the Hub, or goes on with what an earlier run began.
 *
 * @throws MferenceError "install.network", "install.remote", "install.auth", "install.offline",
 * "install.state", "install.busy", "install.exists", "install.source", "install.space", "install.io",
 * "install.cancelled", "model.family", "format.*"
 */
export async function installRemote(options: RemoteOptions): Promise<Installed> {
  const name = checkModelName(options.name);
  const models = options.models ?? modelsHome();
  const io = options.io ?? systemIo;
  const place = {
    directory: packageDirectory(name, realFolder(models, io)),
    addressed: packageDirectory(name, path.resolve(models)),
  };
  checkPathTypes(place.directory);
  const lock = acquireLock(`${place.directory}.install.lock`);
  try {
    checkPathTypes(place.directory);
    checkAbsent(name, place.directory, io);
    if (options.isOffline === true) {
      throw new MferenceError(
        "install.offline",
        `"${name}" is not installed completely, and --offline forbids to download it`,
      );
    }
    return await cancellable(place, options.signal, () => run({ ...options, name }, place));
  } finally {
    lock.release();
  }
}

/** A finished package ends what a crash after its promotion left. */
function checkAbsent(name: string, directory: string, io: InstallIo): void {
  if (!fs.existsSync(directory)) return;
  if (!fs.existsSync(partialOf(directory))) {
    // The record may go when it is certain that the package stays.
    syncFolder(path.dirname(directory), io);
    removeSaved(directory, io);
  }
  throw exists(name, directory);
}

async function run(options: RemoteOptions, place: Place): Promise<Installed> {
  const { directory } = place;
  const io = options.io ?? systemIo;
  const saved = savedDownload(directory, io);
  try {
    const planned = await plan(options, place, saved);
    await transfer(planned, saved);
    const bytes = await finish(planned);
    const { build, checkpoint } = planned;
    return {
      name: options.name,
      directory: place.addressed,
      family: build.family.id,
      modelId: build.pin?.modelId ?? UNKNOWN_MODEL,
      bytes,
      droppedCount: build.plan.droppedCount,
      ...(checkpoint.textFiles.has("tokenizer.json") ? {} : { notice: NO_TEXT_NOTICE }),
    };
  } catch (error) {
    if (readSavedQuietly(directory) === undefined) {
      removeQuietly(partialOf(directory), io);
    }
    throw error;
  }
}

/** What an earlier run left. One half without the other is nothing: it is what a crash leaves of a run's
 * first or last moment. */
function savedDownload(directory: string, io: InstallIo): SavedDownload | undefined {
  const saved = readSaved(directory);
  const isThere = fs.existsSync(partialOf(directory));
  if (saved !== undefined && isThere) return saved;
  if (saved !== undefined) removeSaved(directory, io);
  remove(partialOf(directory), io);
  return undefined;
}

function readSavedQuietly(directory: string): SavedDownload | undefined | "damaged" {
  try {
    return readSaved(directory);
  } catch {
    return "damaged";
  }
}

/** Reads what there is to be fetched, and where it goes. */
async function plan(
  options: RemoteOptions,
  place: Place,
  saved: SavedDownload | undefined,
): Promise<Run> {
  const { source, base, token, signal } = options;
  const report = (progress: InstallProgress): void => options.onProgress?.(progress);
  const limits = { ...TRANSFER_LIMITS, ...options.limits };
  const retry = { ...limits.retry, onWait: options.onWait };
  const http = new HttpSource({ base, token, idleMs: limits.idleMs, retry });
  report({ phase: "reading", doneBytes: 0, totalBytes: 0 });
  checkSameSource(source, saved);
  // A branch may have moved on: what was begun is finished.
  const revision = saved?.resolvedCommit ?? source.revision;
  const checkpoint = await readRemote({ ...source, revision }, { http, base, signal });
  const config = { name: "config.json", bytes: checkpoint.configBytes };
  checkPinned(pinOf(checkpoint), sidecarDigests([config]));
  const installPlan = planInstall(checkpoint);
  const ranges = planRanges(installPlan, limits.rangeBytes);
  const regionSha256 = indexSha256(installPlan);
  const identity: DownloadIdentity = {
    repoID: source.repository,
    requestedRevision: source.revision,
    resolvedCommit: checkpoint.commit,
    sourceIndexSHA256: checkpoint.sourceSha256,
    planFingerprint: planFingerprint(
      { ...installPlan, indexSha256: regionSha256 },
      ranges,
      limits.rangeBytes,
    ),
    totalSourceBytes: ranges.reduce((total, { bytes }) => total + bytes, 0),
    family: checkpoint.family.id,
    configSHA256: sha256(config.bytes),
  };
  if (saved !== undefined) checkSaved(saved, identity);
  const build = {
    plan: installPlan,
    family: checkpoint.family,
    pin: pinOf(checkpoint),
    sourceSha256: checkpoint.sourceSha256,
    quantization: checkpoint.quantization,
    provenance: { sourceRepoID: source.repository, sourceRevision: checkpoint.commit },
    partial: partialOf(place.directory),
    ...place,
    io: options.io ?? systemIo,
    signal,
    report,
  };
  return { options, limits, http, checkpoint, build, ranges, identity };
}

/** Before the network is asked. */
function checkSameSource(source: RemoteSource, saved: SavedDownload | undefined): void {
  if (saved === undefined) return;
  const { repoID, requestedRevision } = saved;
  if (repoID === source.repository && requestedRevision === source.revision) return;
  throw new MferenceError(
    "install.state",
    `the unfinished download is of ${repoID} at ${requestedRevision}, not of ${source.repository} at ${source.revision}; remove it with "mference discard", then install again`,
  );
}

/** Brings all payload into the partial folder. */
async function transfer(run: Run, saved: SavedDownload | undefined): Promise<void> {
  const { build, ranges, identity, limits } = run;
  const targets = new Map<string, Target>();
  const hash = new HashThreads();
  try {
    const isReused = saved !== undefined && reopenOutputs(build, targets);
    const done = isReused ? [...(await stillIntact(run, saved, { targets, hash }))] : [];
    checkRemainingSpace(run, done);
    if (isReused) await clearPadding(build, targets);
    else await reserveOutputs(build, targets);
    writeSaved(build.directory, { schema: 1, ...identity, completedRanges: done }, build.io);
    const ids = new Set(done.map(({ id }) => id));
    const reusedBytes = done.reduce((total, { sourceBytes }) => total + sourceBytes, 0);
    let doneBytes = reusedBytes;
    const totalBytes = identity.totalSourceBytes;
    let shownBytes = 0;
    const report = (): void => {
      // What came in vain is not taken back; it is only not counted again.
      shownBytes = Math.max(shownBytes, doneBytes);
      build.report({ phase: "downloading", doneBytes: shownBytes, totalBytes, reusedBytes });
    };
    report();
    const pending = ranges.filter(({ id }) => !ids.has(id));
    await transferRanges(pending, {
      http: run.http,
      shards: run.checkpoint.shards,
      targets,
      folder: build.partial,
      parallel: limits.parallel,
      io: build.io,
      hash,
      signal: build.signal,
      onBytes(bytes) {
        doneBytes += bytes;
        report();
      },
      onDone(range) {
        done.push(range);
        writeSaved(build.directory, { schema: 1, ...identity, completedRanges: done }, build.io);
      },
    });
  } finally {
    hash.close();
    for (const { descriptor } of targets.values()) fs.closeSync(descriptor);
  }
}

/** Opens the files of an earlier run; false when one is not as it must be. */
function reopenOutputs(build: Run["build"], targets: Map<string, Target>): boolean {
  for (const output of build.plan.outputs) {
    const target = reopenTarget(path.join(build.partial, output.path), output.bytes, build.io);
    if (target === undefined) return false;
    targets.set(output.path, target);
  }
  const expected = encodeResidentIndex(build.plan.resident);
  const found = new Uint8Array(expected.length);
  fs.readSync(targets.get(WEIGHTS_FILE)!.descriptor, found, 0, found.length, 0);
  return Buffer.compare(expected, found) === 0;
}

/** No range covers the zeros behind each expert; what an earlier run left there is made zero again. */
async function clearPadding(
  { plan, io, signal }: Run["build"],
  targets: ReadonlyMap<string, Target>,
): Promise<void> {
  const { strideBytes, layers } = plan.layout;
  for (const { subTensors, expertOffsets, file } of layers) {
    signal?.throwIfAborted();
    const parts = subTensors === undefined ? [] : Object.values(subTensors);
    const used = Math.max(0, ...parts.map(({ offset, bytes }) => offset + bytes));
    if (used === 0 || used === strideBytes) continue;
    const target = targets.get(`${EXPERTS_FOLDER}/${file}`)!;
    const zeros = new Uint8Array(strideBytes - used);
    const found = new Uint8Array(zeros.length);
    for (const offset of expertOffsets) {
      await readAt(target.descriptor, found, offset + used);
      if (Buffer.compare(found, zeros) !== 0) writeAll(target, zeros, offset + used, io);
    }
    await syncTarget(target, io);
  }
}

async function stillIntact(
  { build, ranges }: Run,
  saved: SavedDownload,
  means: { readonly targets: ReadonlyMap<string, Target>; readonly hash: HashThreads },
): Promise<SavedDownload["completedRanges"]> {
  let doneBytes = 0;
  const totalBytes = saved.completedRanges.reduce((total, done) => total + done.sourceBytes, 0);
  const intact = await intactRanges(saved.completedRanges, ranges, {
    ...means,
    signal: build.signal,
    onBytes(bytes) {
      doneBytes += bytes;
      build.report({ phase: "hashing", doneBytes, totalBytes });
    },
  });
  return [...intact];
}

/** The temporary files count as well; what is there already does not. */
function checkRemainingSpace(run: Run, done: SavedDownload["completedRanges"]): void {
  const { build, limits, checkpoint } = run;
  const doneBytes = done.reduce((total, { destinationBytes }) => total + destinationBytes, 0);
  const sidecars = [{ name: "config.json", bytes: checkpoint.configBytes }];
  const textBytes = [...checkpoint.textFiles.values()].reduce(
    (total, { sizeBytes }) => total + sizeBytes,
    0,
  );
  const staging = limits.rangeBytes * limits.parallel;
  const required = requiredBytes({ ...build, sidecars }) + textBytes + staging - doneBytes;
  checkSpace(path.dirname(build.directory), required, build.io);
}

/** Makes the files of the package in their full size, with the index in place. */
async function reserveOutputs(build: Run["build"], targets: Map<string, Target>): Promise<void> {
  for (const { descriptor } of targets.values()) fs.closeSync(descriptor);
  targets.clear();
  // A record of what is being made again would vouch for it before it is durable.
  removeSaved(build.directory, build.io);
  remove(build.partial, build.io);
  makePackageFolders(build);
  for (const output of build.plan.outputs) {
    const target = createTarget(path.join(build.partial, output.path), build.io);
    targets.set(output.path, target);
    sizeTarget(target, output.bytes, build.io);
  }
  const index = encodeResidentIndex(build.plan.resident);
  writeAll(targets.get(WEIGHTS_FILE)!, index, 0, build.io);
  for (const target of targets.values()) await syncTarget(target, build.io);
  syncFolder(path.join(build.partial, EXPERTS_FOLDER), build.io);
  syncFolder(build.partial, build.io);
  syncFolder(path.dirname(build.directory), build.io);
}

/** Makes the package around its payload and puts it in its place. */
async function finish(run: Run): Promise<number> {
  const { http, checkpoint } = run;
  const { partial, directory, io, signal } = run.build;
  const sidecars = await fetchSidecars(checkpoint, { http, signal });
  checkFolder(partial);
  // An earlier run may have come this far.
  for (const name of [LAYOUT_FILE, MANIFEST_FILE, RECEIPT_FILE, TOKENIZER_FOLDER]) {
    remove(path.join(partial, name), io);
  }
  for (const entry of fs.readdirSync(partial)) {
    if (isStaging(entry)) remove(path.join(partial, entry), io);
  }
  const build: Build = { ...run.build, sidecars };
  makePackageFolders(build);
  const bytes = await assemble(build);
  promote(build);
  try {
    removeSaved(directory, io);
  } catch {
    // The package is there all the same, and the next look at it removes the record.
  }
  return bytes;
}

/** A signal pauses: the sentence says how to go on. */
async function cancellable<T>(
  { directory }: Place,
  signal: AbortSignal | undefined,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (signal?.aborted !== true) throw error;
    const isSaved = readSavedQuietly(directory) !== undefined;
    throw new MferenceError(
      "install.cancelled",
      isSaved
        ? "the download is paused; the same command goes on with it"
        : "the install was cancelled; nothing was changed",
      { cause: error },
    );
  }
}
