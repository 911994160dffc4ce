/**
 * Files that travel inside a compiled executable. The executable's entry registers them; a checkout has
 * none. The system can neither load nor map what lies inside, so this module copies files out: in tiles,
 * checked against their hash, never whole in memory. Knows nothing of what the files are for.
 */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { env } from "./env.ts";
import { type ErrorCode, MferenceError, sentenceOf } from "./errors.ts";

/** A file inside the executable. */
export interface EmbeddedFile {
  /** Its name outside. */
  readonly name: string;
  /** Where Bun finds it; only `Bun.file` can open this. */
  readonly path: string;
  readonly sizeBytes: number;
  /** Lower-case hex. */
  readonly sha256: string;
}

/** What an executable carries. */
export interface Embedded {
  /** What it needs of the system that it runs on, in words. */
  readonly needs: string;
  /** Files by what they are for. */
  readonly files: Readonly<Record<string, readonly EmbeddedFile[]>>;
}

const TILE_BYTES = 524_288;
const HASH_DIGITS = 16;
const DAY_MS = 24 * 60 * 60 * 1000;
const KEPT_DAYS = 30;
/** Between the name of a copy and a random end, while it is being made. */
const TEMPORARY = ".tmp-";
const ADVICE = "name a folder where this user may write and run programs in XDG_CACHE_HOME";
const { O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = fs.constants;

let registered: Embedded | undefined;

/** Registers what the executable carries; its entry calls this before anything else. */
export function registerEmbedded(contents: Embedded | undefined): void {
  registered = contents;
}

/** What the executable carries; `undefined` where the program runs from a checkout. */
export function embedded(): Embedded | undefined {
  return registered;
}

/** The folder of copies, which may be emptied at any time: the user's cache folder of the platform. */
export function cacheFolder(): string {
  const cache = env("XDG_CACHE_HOME");
  // The standard says to ignore a relative one.
  if (cache !== undefined && path.isAbsolute(cache)) return path.join(cache, "mference");
  const user = env("HOME") ?? os.homedir();
  const usual = process.platform === "darwin" ? ["Library", "Caches"] : [".cache"];
  return path.join(user, ...usual, "mference");
}

/**
 * Path of a library's copy in the cache folder. The name carries the hash, so that versions do not meet.
 * A copy that is there is read and checked each time; a missing or altered one is replaced all at once,
 * so that a process that has the old one loaded keeps it, and starts at the same time do not collide.
 *
 * @throws MferenceError "native.load" when the folder cannot be written or nothing there may be run
 */
export async function copyOutLibrary(file: EmbeddedFile): Promise<string> {
  const { name, ext } = path.parse(file.name);
  const copyName = `${name}-${file.sha256.slice(0, HASH_DIGITS)}${ext}`;
  const target = path.join(cacheFolder(), copyName);
  if (isCopy(target, file)) {
    markUsed(target);
  } else {
    await inCache({ what: `the library ${file.name}`, code: "native.load" }, () =>
      replaceDurably(target, file),
    );
  }
  checkRunnable(target);
  return target;
}

/**
 * Copies files under their own names into a folder made for them, and removes it after `use`.
 *
 * @throws MferenceError "install.io" when they cannot be written, and whatever `use` throws
 */
export async function withCopies<T>(
  files: readonly EmbeddedFile[],
  use: (folder: string) => Promise<T>,
): Promise<T> {
  const what = { what: "the model", code: "install.io" } as const;
  const folder = await inCache(what, (cache) =>
    fs.mkdtempSync(path.join(cache, `files${TEMPORARY}`)),
  );
  try {
    await inCache(what, async () => {
      for (const file of files) await writeCopy(file, path.join(folder, file.name));
    });
    return await use(folder);
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

/** Runs work that writes into the cache folder; what the system refuses becomes a sentence. */
async function inCache<T>(
  { what, code }: { readonly what: string; readonly code: ErrorCode },
  work: (folder: string) => T | Promise<T>,
): Promise<T> {
  const folder = cacheFolder();
  try {
    fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
    removeUnused(folder);
    return await work(folder);
  } catch (cause) {
    if (cause instanceof MferenceError) throw cause;
    const fault = `${what} inside this program cannot be copied out into ${folder}: ${sentenceOf(cause)}`;
    throw new MferenceError(code, `${fault}; ${ADVICE}`, { cause });
  }
}

/** Whether a path leads to an unaltered copy: a regular file of the right size and content. */
function isCopy(target: string, file: EmbeddedFile): boolean {
  let descriptor: number;
  try {
    descriptor = fs.openSync(target, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  } catch {
    return false;
  }
  try {
    const status = fs.fstatSync(descriptor);
    if (!status.isFile() || status.size !== file.sizeBytes) return false;
    return hashOpen(descriptor) === file.sha256;
  } catch {
    return false;
  } finally {
    fs.closeSync(descriptor);
  }
}

function hashOpen(descriptor: number): string {
  const hasher = new Bun.CryptoHasher("sha256");
  const tile = new Uint8Array(TILE_BYTES);
  for (;;) {
    const count = fs.readSync(descriptor, tile, 0, tile.length, null);
    if (count === 0) return hasher.digest("hex");
    hasher.update(tile.subarray(0, count));
  }
}

/** The content reaches the disk before the name that makes it valid. */
async function replaceDurably(target: string, file: EmbeddedFile): Promise<void> {
  const temporary = `${target}${TEMPORARY}${crypto.randomUUID()}`;
  try {
    await writeCopy(file, temporary, { isDurable: true });
    fs.renameSync(temporary, target);
  } finally {
    fs.rmSync(temporary, { force: true });
  }
}

/**
 * Writes a new file, tile by tile.
 *
 * @throws MferenceError "native.load" when the executable does not hold what it should
 */
async function writeCopy(
  file: EmbeddedFile,
  target: string,
  options: { readonly isDurable?: boolean } = {},
): Promise<void> {
  const source = Bun.file(file.path);
  const hasher = new Bun.CryptoHasher("sha256");
  const descriptor = fs.openSync(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o700);
  try {
    for (let offset = 0; offset < file.sizeBytes; offset += TILE_BYTES) {
      const end = Math.min(file.sizeBytes, offset + TILE_BYTES);
      const tile = await source.slice(offset, end).arrayBuffer();
      hasher.update(tile);
      writeWhole(descriptor, new Uint8Array(tile));
      // Freed at once: the collector has no reason to come before the whole file has passed.
      tile.transfer(0);
    }
    if (hasher.digest("hex") !== file.sha256) throw damaged(file);
    if (options.isDurable === true) fs.fsyncSync(descriptor);
  } finally {
    fs.closeSync(descriptor);
  }
}

function writeWhole(descriptor: number, tile: Uint8Array): void {
  for (let done = 0; done < tile.length;) {
    done += fs.writeSync(descriptor, tile, done, tile.length - done, null);
  }
}

function damaged(file: EmbeddedFile): MferenceError {
  return new MferenceError(
    "native.load",
    `${process.execPath} is damaged: the ${file.name} inside has not the hash ${file.sha256} with which it was built; get the program again`,
  );
}

/** Linux denies to execute, and so to load, what lies on a file system mounted with `noexec`. */
function checkRunnable(target: string): void {
  try {
    fs.accessSync(target, fs.constants.X_OK);
  } catch (cause) {
    throw new MferenceError(
      "native.load",
      `${target} may not be run: its folder is on a file system for data only (noexec); ${ADVICE}`,
      { cause },
    );
  }
}

/** A copy in use stays young; once a day is enough. */
function markUsed(target: string): void {
  const now = new Date();
  try {
    if (now.getTime() - fs.statSync(target).mtimeMs > DAY_MS) fs.utimesSync(target, now, now);
  } catch {
    // A folder that cannot be written: then nobody removes anything from it either.
  }
}

/** Copies of versions that nobody has used for long go, and what killed processes left. */
function removeUnused(folder: string): void {
  for (const name of fs.readdirSync(folder)) {
    const copy = path.join(folder, name);
    const keptMs = name.includes(TEMPORARY) ? DAY_MS : KEPT_DAYS * DAY_MS;
    try {
      if (Date.now() - fs.lstatSync(copy).mtimeMs <= keptMs) continue;
      fs.rmSync(copy, { recursive: true, force: true });
    } catch {
      // Another start removed it first, or it is another user's.
    }
  }
}
