import fs from "node:fs";
import path from "node:path";
import { z } from "zod";
import { MferenceError } from "../util/errors.ts";
import { isSha256 } from "../format/digest.ts";
import { openRegular, readCapped } from "../format/files.ts";
import { parseJsonAs } from "../format/json.ts";
import { remove, replaceDurably, syncFolder, type InstallIo } from "./durable.ts";

/**
 * `X.resume.json`: what of a download is on the disk for certain. Bound to the source, the plan and the
 * family; another of any of these makes it useless. Reads and writes the file; checks no payload.
 */
const COMMIT = /^[0-9a-f]{40}$/;
const FILE_BYTES_MAX = 8 * 1024 * 1024;
const sha256Schema = z.string().refine(isSha256, "expected 64 hexadecimal digits");
const positive = z.int().positive();

const rangeSchema = z.strictObject({
  id: z.string().min(1),
  destinationDigest: sha256Schema,
  sourceBytes: positive,
  destinationBytes: positive,
});
const savedSchema = z.object({
  schema: z.literal(1),
  repoID: z.string().min(1),
  requestedRevision: z.string().min(1),
  resolvedCommit: z.string().regex(COMMIT),
  sourceIndexSHA256: sha256Schema,
  planFingerprint: sha256Schema,
  totalSourceBytes: positive,
  completedRanges: z.array(rangeSchema),
  /** These two are absent in what other programs wrote. */
  family: z.string().optional(),
  configSHA256: sha256Schema.optional(),
});
/** A part that is done: durable, and hashed as it lies in the package's files. */
export type CompletedRange = z.output<typeof rangeSchema>;
export type SavedDownload = z.output<typeof savedSchema>;
/** All but what is done. */
export type DownloadIdentity = Omit<SavedDownload, "completedRanges" | "schema">;

/** The file beside a package's place. */
export function resumePath(directory: string): string {
  return `${directory}.resume.json`;
}

/**
 * Reads what an earlier run left.
 *
 * @throws MferenceError "install.state" when it is damaged, "format.path" when it is no regular file
 */
export function readSaved(directory: string): SavedDownload | undefined {
  const file = resumePath(directory);
  if (fs.lstatSync(file, { throwIfNoEntry: false }) === undefined) return undefined;
  const open = openRegular(file, { missing: "install.state", unsafe: "format.path" });
  try {
    const bytes = readCapped(open, FILE_BYTES_MAX, "install.state");
    const saved = parseJsonAs(bytes, savedSchema, { code: "install.state", what: file });
    checkSums(saved, file);
    return saved;
  } finally {
    fs.closeSync(open.descriptor);
  }
}

function checkSums(saved: SavedDownload, file: string): void {
  const ids = new Set(saved.completedRanges.map(({ id }) => id));
  let total = 0;
  for (const { sourceBytes } of saved.completedRanges) total += sourceBytes;
  if (ids.size === saved.completedRanges.length && total <= saved.totalSourceBytes) return;
  throw new MferenceError(
    "install.state",
    `${file} is damaged: it lists a part twice, or more bytes than there are; "mference discard" removes it`,
  );
}

/**
 * Checks that a saved download is of this source, plan and family.
 *
 * @throws MferenceError "install.state" naming what differs
 */
export function checkSaved(saved: SavedDownload, expected: DownloadIdentity): void {
  for (const [name, value] of Object.entries(expected)) {
    const found = saved[name as keyof DownloadIdentity];
    const isOurs = name === "family" || name === "configSHA256";
    if (found === value || (isOurs && found === undefined)) continue;
    throw new MferenceError(
      "install.state",
      `the unfinished download is of another source: its ${name} is ${found}, now it is ${value}; remove it with "mference discard", then install again`,
    );
  }
}

/** Writes the file so that either the old or the new one survives a crash. */
export function writeSaved(directory: string, saved: SavedDownload, io: InstallIo): void {
  const completedRanges = saved.completedRanges.toSorted((left, right) =>
    left.id < right.id ? -1 : 1,
  );
  const text = JSON.stringify({ ...saved, completedRanges });
  replaceDurably(resumePath(directory), new TextEncoder().encode(text), io);
}

/** Removes the file and what a crash left while it was being written. */
export function removeSaved(directory: string, io: InstallIo): void {
  const folder = path.dirname(directory);
  const name = path.basename(resumePath(directory));
  for (const entry of fs.readdirSync(folder)) {
    const isLeftover = entry.startsWith(`${name}.`) && entry.endsWith(".tmp");
    if (entry === name || isLeftover) remove(path.join(folder, entry), io);
  }
  syncFolder(folder, io);
}
