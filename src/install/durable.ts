import fs from "node:fs";
import path from "node:path";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { formatBytes } from "../util/units.ts";

/**
 * Writing so that a crash leaves the old state or the new one: content reaches the disk before the
 * name that makes it valid. Knows no file format. `InstallIo` is the part that tests replace to see
 * what happens when a disk is full.
 */
export interface InstallIo {
  /** Bytes that this user may still write below a folder. */
  availableBytes(directory: string): number;
  /** Writes at an offset and returns how many bytes were taken. */
  write(descriptor: number, bytes: Uint8Array, offset: number): number;
}

export const systemIo: InstallIo = {
  availableBytes(directory) {
    const { bavail, bsize } = fs.statfsSync(directory);
    return bavail * bsize;
  },
  write(descriptor, bytes, offset) {
    return fs.writeSync(descriptor, bytes, 0, bytes.length, offset);
  },
};

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR } = fs.constants;
/** Bun names no O_CLOEXEC. */
const O_CLOEXEC = process.platform === "darwin" ? 0x1000000 : 0x80000;

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
  const flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  try {
    return { descriptor: fs.openSync(filePath, flags, 0o644), path: filePath };
  } catch (error) {
    throw ioError(error, filePath, io);
  }
}

/**
 * Opens a file that an earlier run made; undefined when it is not there with just this size.
 *
 * @throws MferenceError "format.path" when it is a link or anything else but a file
 */
export function reopenTarget(filePath: string, bytes: number): Target | undefined {
  const status = fs.lstatSync(filePath, { throwIfNoEntry: false });
  if (status === undefined || (status.isFile() && status.size !== bytes)) return undefined;
  if (!status.isFile()) throw new MferenceError("format.path", `${filePath} is not a regular file`);
  const descriptor = fs.openSync(filePath, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  return { descriptor, path: filePath };
}

/** Forces a written file to the disk without keeping the event loop from other work. */
export async function syncTarget(target: Target, io: InstallIo): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<NodeJS.ErrnoException | null>();
  fs.fsync(target.descriptor, resolve);
  const error = await promise;
  if (error !== null && error !== undefined) throw ioError(error, target.path, io);
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
  try {
    fs.ftruncateSync(target.descriptor, bytes);
  } catch (error) {
    throw ioError(error, target.path, io);
  }
}

/** Forces a written file to the disk and closes it. */
export function finishTarget(target: Target, io: InstallIo): void {
  try {
    fs.fsyncSync(target.descriptor);
  } catch (error) {
    throw ioError(error, target.path, io);
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
    fs.renameSync(temporary, filePath);
  } catch (error) {
    fs.rmSync(temporary, { force: true });
    throw error instanceof MferenceError ? error : ioError(error, filePath, io);
  }
  syncFolder(path.dirname(filePath));
}

/** Forces the names in a folder to the disk. */
export function syncFolder(folder: string): void {
  const descriptor = fs.openSync(folder, fs.constants.O_RDONLY);
  try {
    fs.fsyncSync(descriptor);
  } finally {
    fs.closeSync(descriptor);
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
