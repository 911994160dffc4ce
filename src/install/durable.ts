import fs from "node:fs";
import path from "node:path";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { formatBytes } from "../util/units.ts";

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR } = fs.constants;
/** Bun names no O_CLOEXEC. */
const O_CLOEXEC = process.platform === "darwin" ? 0x1000000 : 0x80000;

/**
 * Writing so that a crash leaves the old state or the new one: content reaches the disk before the
 * name that makes it valid. Knows no file format. `InstallIo` is every way in which an install changes
 * the disk; tests replace it to see what happens when the disk is full or the power is lost.
 */
export interface InstallIo {
  /** Bytes that this user may still write below a folder. */
  availableBytes(directory: string): number;
  /** Creates a file that is not there yet, and opens it for reading and writing. */
  create(filePath: string): number;
  /** Opens a file for reading and writing; a link is not followed. */
  open(filePath: string): number;
  /** Writes at an offset and returns how many bytes were taken. */
  write(descriptor: number, bytes: Uint8Array, offset: number): number;
  resize(descriptor: number, bytes: number): void;
  /** Forces a file's content to the disk. */
  sync(descriptor: number): void;
  /** The same, while the event loop goes on. */
  syncLater(descriptor: number): Promise<void>;
  /** Creates a folder that is not there yet. */
  makeFolder(folder: string, mode: number): void;
  setMode(folder: string, mode: number): void;
  /** Forces the names in a folder to the disk. */
  syncFolder(folder: string): void;
  rename(from: string, to: string): void;
  /** Removes a file, or a folder with all that it holds; links are not followed. */
  remove(place: string): void;
}

export const systemIo: InstallIo = {
  availableBytes(directory) {
    const { bavail, bsize } = fs.statfsSync(directory);
    return bavail * bsize;
  },
  create: (filePath) =>
    fs.openSync(filePath, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o644),
  open: (filePath) => fs.openSync(filePath, O_RDWR | O_NOFOLLOW | O_CLOEXEC),
  write: (descriptor, bytes, offset) => fs.writeSync(descriptor, bytes, 0, bytes.length, offset),
  resize: fs.ftruncateSync,
  sync: fs.fsyncSync,
  async syncLater(descriptor) {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    fs.fsync(descriptor, (error) => {
      // Bun gives no error as undefined, too.
      if (error === null || error === undefined) resolve();
      else reject(error);
    });
    await promise;
  },
  makeFolder: (folder, mode) => fs.mkdirSync(folder, { mode }),
  setMode: fs.chmodSync,
  syncFolder(folder) {
    const descriptor = fs.openSync(folder, fs.constants.O_RDONLY);
    try {
      fs.fsyncSync(descriptor);
    } finally {
      fs.closeSync(descriptor);
    }
  },
  rename: fs.renameSync,
  remove: (place) => fs.rmSync(place, { recursive: true, force: true }),
};

/** A file being written. */
export interface Target {
  readonly descriptor: number;
  readonly path: string;
}

/**
 * Creates a file that must not exist yet.
 *
 * @throws MferenceError "install.io"
 */
export function createTarget(filePath: string, io: InstallIo): Target {
  return { descriptor: attempt(filePath, io, () => io.create(filePath)), path: filePath };
}

/**
 * Opens a file that an earlier run made; undefined when it is not there with just this size.
 *
 * @throws MferenceError "format.path" when it is a link or anything else but a file
 */
export function reopenTarget(filePath: string, bytes: number, io: InstallIo): Target | undefined {
  const status = fs.lstatSync(filePath, { throwIfNoEntry: false });
  if (status === undefined || (status.isFile() && status.size !== bytes)) return undefined;
  if (!status.isFile()) throw new MferenceError("format.path", `${filePath} is not a regular file`);
  return { descriptor: attempt(filePath, io, () => io.open(filePath)), path: filePath };
}

/**
 * Files that could not be forced to the disk. The system tells of a lost page once: that a later call
 * succeeds says nothing about it.
 */
const unsafe = new WeakSet<Target>();

/** Forces a written file to the disk without keeping the event loop from other work. */
export async function syncTarget(target: Target, io: InstallIo): Promise<void> {
  try {
    if (unsafe.has(target)) throw new Error("an earlier write to it was lost");
    await io.syncLater(target.descriptor);
    if (unsafe.has(target)) throw new Error("another write to it was lost");
  } catch (error) {
    unsafe.add(target);
    throw ioError(error, target.path, io);
  }
}

/**
 * Writes all bytes at an offset.
 *
 * @throws MferenceError "install.space" when the disk is full, else "install.io"
 */
export function writeAll(target: Target, bytes: Uint8Array, offset: number, io: InstallIo): void {
  let done = 0;
  while (done < bytes.length) {
    try {
      const count = io.write(target.descriptor, bytes.subarray(done), offset + done);
      if (count <= 0) throw new Error("the write took no bytes");
      done += count;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "EINTR") continue;
      throw ioError(error, target.path, io);
    }
  }
}

/** Gives a new file its size; what is not written yet reads as zeros. */
export function sizeTarget(target: Target, bytes: number, io: InstallIo): void {
  attempt(target.path, io, () => io.resize(target.descriptor, bytes));
}

/** Forces a written file to the disk and closes it. */
export function finishTarget(target: Target, io: InstallIo): void {
  try {
    attempt(target.path, io, () => io.sync(target.descriptor));
  } finally {
    fs.closeSync(target.descriptor);
  }
}

/** Writes a new small file and forces it to the disk. */
export function writeDurably(filePath: string, pieces: Iterable<Uint8Array>, io: InstallIo): void {
  const target = createTarget(filePath, io);
  let offset = 0;
  try {
    for (const piece of pieces) {
      writeAll(target, piece, offset, io);
      offset += piece.length;
    }
  } catch (error) {
    fs.closeSync(target.descriptor);
    throw error;
  }
  finishTarget(target, io);
}

/**
 * Puts new content under a name, all at once: a reader sees the old bytes or the new ones. A link under
 * the name is replaced and not followed.
 */
export function replaceDurably(
  filePath: string,
  bytes: Uint8Array,
  io: InstallIo = systemIo,
): void {
  const temporary = `${filePath}.${process.pid}.${crypto.randomUUID()}.tmp`;
  try {
    writeDurably(temporary, [bytes], io);
    attempt(filePath, io, () => io.rename(temporary, filePath));
  } catch (error) {
    removeQuietly(temporary, io);
    throw error;
  }
  syncFolder(path.dirname(filePath), io);
}

/** Forces the names in a folder to the disk. */
export function syncFolder(folder: string, io: InstallIo): void {
  attempt(folder, io, () => io.syncFolder(folder));
}

/** Creates a folder and those above it, so that none of them goes with the power. */
export function makeFolders(folder: string, io: InstallIo): void {
  // Asking for what lies below a file is an error of its own.
  const isThere = (): boolean => fs.existsSync(folder) && fs.statSync(folder).isDirectory();
  if (isThere()) return;
  const above = path.dirname(folder);
  makeFolders(above, io);
  try {
    io.makeFolder(folder, 0o755);
  } catch (error) {
    // Another process may have been faster.
    if (!isThere()) throw ioError(error, folder, io);
  }
  syncFolder(above, io);
}

/**
 * Checks that a folder is still one; a link in its place could lead anywhere.
 *
 * @throws MferenceError "format.path"
 */
export function checkFolder(folder: string): void {
  if (fs.lstatSync(folder, { throwIfNoEntry: false })?.isDirectory() === true) return;
  throw new MferenceError(
    "format.path",
    `${folder} is no folder any more; something else works on it, and the install leaves it alone`,
  );
}

/** Removes a file or a folder with all that it holds, if it is there. */
export function remove(place: string, io: InstallIo): void {
  attempt(place, io, () => io.remove(place));
}

/** The same where something else has failed already, and that is what the user is to hear. */
export function removeQuietly(place: string, io: InstallIo): void {
  try {
    io.remove(place);
  } catch {
    // Whatever stays is cleared by the next install.
  }
}

/** A call to the system; what it throws becomes a sentence. */
export function attempt<Result>(place: string, io: InstallIo, call: () => Result): Result {
  try {
    return call();
  } catch (error) {
    throw ioError(error, place, io);
  }
}

/** Turns a failed system call into a sentence; a full disk has its own code. */
export function ioError(error: unknown, filePath: string, io: InstallIo): MferenceError {
  const code = (error as NodeJS.ErrnoException).code;
  if (code !== "ENOSPC" && code !== "EDQUOT") {
    return new MferenceError("install.io", `cannot write ${filePath}: ${sentenceOf(error)}`, {
      cause: error,
    });
  }
  const available = io.availableBytes(path.dirname(filePath));
  return new MferenceError(
    "install.space",
    `the disk became full while writing ${filePath} (${formatBytes(available)} available); free some space and install again`,
    { cause: error },
  );
}

/**
 * Checks that a folder has room.
 *
 * @throws MferenceError "install.space" with the bytes needed and available
 */
export function checkSpace(directory: string, requiredBytes: number, io: InstallIo): void {
  const available = io.availableBytes(directory);
  if (available >= requiredBytes) return;
  throw new MferenceError(
    "install.space",
    `not enough disk space in ${directory}: ${formatBytes(requiredBytes)} needed (${requiredBytes} bytes), ${formatBytes(available)} available (${available} bytes)`,
  );
}
