import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { copyRanges } from "./copy.ts";
import {
  checkFolder,
  createTarget,
  remove,
  removeQuietly,
  syncTarget,
  writeAll,
  type InstallIo,
  type Target,
} from "./durable.ts";
import type { HashThreads } from "./hashing.ts";
import type { HttpSource, RemoteFile } from "./http.ts";
import { rangePieces, targetBytes, type SourceRange } from "./ranges.ts";
import type { CompletedRange } from "./resume.ts";

/**
 * Carries out a range plan from a server: each range goes to a temporary file on the disk, from there to
 * its places, and only when these are durable is it recorded as done. A few are under way at once, each
 * with a temporary file of its own. Keeps no payload in memory beyond what arrives and one tile.
 */
export interface TransferJob {
  readonly http: HttpSource;
  readonly shards: ReadonlyMap<string, RemoteFile>;
  /** Open targets by their path in the package. */
  readonly targets: ReadonlyMap<string, Target>;
  /** Where the temporary files go. */
  readonly folder: string;
  /** Ranges under way at once. */
  readonly parallel: number;
  readonly io: InstallIo;
  readonly hash: HashThreads;
  readonly signal: AbortSignal | undefined;
  /** Bytes of the source that came, and negative ones that must come again. */
  readonly onBytes: (bytes: number) => void;
  /** Called one at a time, when the bytes of the range are durable. */
  readonly onDone: (range: CompletedRange) => void;
}

/** The temporary file of a slot. */
function stagingPath(folder: string, slot: number): string {
  return path.join(folder, slot === 0 ? ".range.tmp" : `.range-${slot}.tmp`);
}

/** Whether a name in the partial folder is that of a temporary file. */
export function isStaging(name: string): boolean {
  return /^\.range(-\d+)?\.tmp$/.test(name);
}

/**
 * Fetches all ranges.
 *
 * @throws MferenceError "install.network", "install.remote", "install.auth", "install.space",
 * "install.io"; the signal's reason when it comes
 */
export async function transferRanges(
  ranges: readonly SourceRange[],
  job: TransferJob,
): Promise<void> {
  const stop = new AbortController();
  const signal =
    job.signal === undefined ? stop.signal : AbortSignal.any([stop.signal, job.signal]);
  const pending = ranges.values();
  const work = async (slot: number): Promise<void> => {
    try {
      await transferSome(pending, { ...job, signal }, stagingPath(job.folder, slot));
    } catch (error) {
      // The others must not go on writing into a folder that may be removed.
      stop.abort(error);
      throw error;
    }
  };
  const slots = Array.from({ length: Math.min(job.parallel, ranges.length) }, (_, slot) => slot);
  const outcomes = await Promise.allSettled(slots.map(work));
  const failed = outcomes.find((outcome) => outcome.status === "rejected");
  if (failed === undefined) return;
  job.signal?.throwIfAborted();
  throw stop.signal.reason as Error;
}

/**
 * Fetches range after range through one temporary file: writing over pages that are in memory costs a
 * third of getting new ones, and the next range is written long before the system would save this one.
 */
async function transferSome(
  pending: Iterable<SourceRange>,
  job: TransferJob,
  file: string,
): Promise<void> {
  checkFolder(job.folder);
  remove(file, job.io);
  const staged = createTarget(file, job.io);
  // While the disk takes a range, the next one comes.
  let settling: Promise<void> = Promise.resolve();
  try {
    for (const range of pending) {
      job.signal?.throwIfAborted();
      checkFolder(job.folder);
      await download(range, staged, job);
      await settling;
      await place(range, staged, job);
      settling = settle(range, job);
      settling.catch(() => undefined);
    }
    await settling;
  } finally {
    await settling.catch(() => undefined);
    fs.closeSync(staged.descriptor);
    removeQuietly(file, job.io);
  }
}

async function download(range: SourceRange, staged: Target, job: TransferJob): Promise<void> {
  const shard = job.shards.get(range.shard);
  if (shard === undefined) throw new MferenceError("install.source", `no shard ${range.shard}`);
  let came = 0;
  await job.http.fetch(shard, range, {
    signal: job.signal,
    sink(chunk, at) {
      if (at < came) {
        job.onBytes(at - came);
        came = at;
      }
      writeAll(staged, chunk, at, job.io);
      came += chunk.length;
      job.onBytes(chunk.length);
    },
  });
}

/** Copies a fetched range to its places. */
async function place(range: SourceRange, staged: Target, job: TransferJob): Promise<void> {
  const { io, signal, targets } = job;
  const shifted = {
    ...range,
    copies: range.copies.map((copy) => ({
      ...copy,
      sourceOffset: copy.sourceOffset - range.offset,
    })),
  };
  const shards = new Map([[range.shard, { ...staged, sizeBytes: range.bytes }]]);
  await copyRanges([shifted], { shards, targets, io, signal, onBytes: () => undefined });
}

/** Makes the places of a range durable and records what lies there. */
async function settle(range: SourceRange, job: TransferJob): Promise<void> {
  const { io, targets } = job;
  for (const name of new Set(range.copies.map(({ target }) => target))) {
    await syncTarget(targets.get(name)!, io);
  }
  const destinationDigest = await job.hash.digest(
    rangePieces(range, (target) => targets.get(target)!),
  );
  job.onDone({
    id: range.id,
    destinationDigest,
    sourceBytes: range.bytes,
    destinationBytes: destinationBytes(range),
  });
}

/** Bytes of the package that a range fills. */
export function destinationBytes(range: SourceRange): number {
  return range.copies.reduce((total, copy) => total + targetBytes(copy), 0);
}

/**
 * Of the ranges that are said to be done, those whose bytes still lie in the package's files.
 *
 * @throws MferenceError "install.state" for a range that the plan does not have
 */
export async function intactRanges(
  saved: readonly CompletedRange[],
  ranges: readonly SourceRange[],
  job: Pick<TransferJob, "targets" | "hash" | "signal"> & {
    readonly onBytes: (bytes: number) => void;
  },
): Promise<readonly CompletedRange[]> {
  const planned = new Map(ranges.map((range) => [range.id, range]));
  const intact: CompletedRange[] = [];
  for (const done of saved) {
    job.signal?.throwIfAborted();
    const range = planned.get(done.id);
    const isSame =
      range?.bytes === done.sourceBytes && destinationBytes(range) === done.destinationBytes;
    if (range === undefined || !isSame) {
      throw new MferenceError(
        "install.state",
        `the unfinished download lists the part ${done.id}, which the plan does not have so; remove it with "mference discard", then install again`,
      );
    }
    const digest = await job.hash.digest(rangePieces(range, (target) => job.targets.get(target)!));
    if (digest === done.destinationDigest.toLowerCase()) intact.push(done);
    job.onBytes(range.bytes);
  }
  return intact;
}
