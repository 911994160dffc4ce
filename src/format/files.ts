import fs from "node:fs";
import path from "node:path";
import { MferenceError, sentenceOf, type ErrorCode } from "../util/errors.ts";

/**
 * Reading files that may be hostile: no link is followed inside a package, nothing but regular files is
 * opened, nothing larger than its cap enters the heap. Owns no state and knows no file format.
 */
const { O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = fs.constants;
/** Bun names no O_CLOEXEC. */
const O_CLOEXEC = process.platform === "darwin" ? 0x1000000 : 0x80000;

/** What a descriptor pointed to when it was opened, so that a later change can be noticed. */
export interface FileIdentity {
  readonly device: number;
  readonly inode: number;
  readonly sizeBytes: number;
  readonly modifiedMs: number;
}

/** An open regular file; whoever opened it closes it. */
export interface OpenFile {
  readonly descriptor: number;
  readonly path: string;
  readonly sizeBytes: number;
}

/** How to open: which errors to throw, and whether a link at the end of the path is followed. */
export interface OpenOptions {
  /** Code when the file does not exist. */
  readonly missing: ErrorCode;
  /** Code when it is not a regular file, or cannot be opened. */
  readonly unsafe: ErrorCode;
  readonly isLinkAllowed?: boolean;
}

/**
 * Opens a regular file for reading. A pipe or a device does not block and is refused.
 *
 * @throws MferenceError `options.missing` or `options.unsafe`
 */
export function openRegular(filePath: string, options: OpenOptions): OpenFile {
  // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one.
  const flags =
    O_RDONLY | O_NONBLOCK | O_CLOEXEC | (options.isLinkAllowed === true ? 0 : O_NOFOLLOW);
  let descriptor: number;
  try {
    descriptor = fs.openSync(filePath, flags);
  } catch (error) {
    throw openError(filePath, error, options);
  }
  const status = fs.fstatSync(descriptor);
  if (!status.isFile()) {
    fs.closeSync(descriptor);
    throw new MferenceError(options.unsafe, `${filePath} is not a regular file`);
  }
  return { descriptor, path: filePath, sizeBytes: status.size };
}

function openError(filePath: string, error: unknown, options: OpenOptions): MferenceError {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "ENOENT" || code === "ENOTDIR") {
    return new MferenceError(options.missing, missingSentence(filePath, options), { cause: error });
  }
  if (code === "ELOOP" || code === "EMLINK") {
    return new MferenceError(
      options.unsafe,
      `${filePath} is a symbolic link; a package holds regular files only`,
      { cause: error },
    );
  }
  return new MferenceError(options.unsafe, `cannot open ${filePath}: ${sentenceOf(error)}`, {
    cause: error,
  });
}

/** A package is made again; what belongs to a checkpoint only its owner can bring back. */
function missingSentence(filePath: string, { missing }: OpenOptions): string {
  return missing === "install.missing"
    ? `${filePath} is missing; install the model again`
    : `${filePath} is missing`;
}

/**
 * Opens a file of a package by its relative path; neither the file nor a folder on the way may be a
 * link. The package's own folder may.
 */
export function openInside(root: string, relativePath: string, options: OpenOptions): OpenFile {
  const components = relativePath.split("/");
  for (let depth = 1; depth < components.length; depth += 1) {
    const folder = path.join(root, ...components.slice(0, depth));
    const status = fs.lstatSync(folder, { throwIfNoEntry: false });
    if (status === undefined) {
      throw new MferenceError(options.missing, missingSentence(folder, options));
    }
    if (!status.isDirectory()) {
      throw new MferenceError(
        options.unsafe,
        `${folder} is not a folder; a package holds no links`,
      );
    }
  }
  return openRegular(path.join(root, relativePath), options);
}

/** The identity of the file behind a descriptor. */
export function identityOf(descriptor: number): FileIdentity {
  const status = fs.fstatSync(descriptor);
  return {
    device: status.dev,
    inode: status.ino,
    sizeBytes: status.size,
    modifiedMs: status.mtimeMs,
  };
}

/**
 * Checks that the file behind a descriptor is the one that was checked before, unchanged.
 *
 * @throws MferenceError "format.changed"
 */
export function checkUnchanged(descriptor: number, expected: FileIdentity, filePath: string): void {
  const found = identityOf(descriptor);
  const isSame =
    found.device === expected.device &&
    found.inode === expected.inode &&
    found.sizeBytes === expected.sizeBytes &&
    found.modifiedMs === expected.modifiedMs;
  if (isSame) return;
  throw new MferenceError(
    "format.changed",
    `${filePath} was replaced or written to after it was verified (${expected.sizeBytes} bytes then, ${found.sizeBytes} now); load the model again`,
  );
}

/**
 * Checks that a path still leads to the file that was opened, and that nobody wrote to it since.
 *
 * @throws MferenceError "format.changed"
 */
export function checkUntouched(file: OpenFile, expected: FileIdentity): void {
  checkUnchanged(file.descriptor, expected, file.path);
  const status = fs.statSync(file.path, { throwIfNoEntry: false });
  if (status?.dev === expected.device && status.ino === expected.inode) return;
  throw new MferenceError(
    "format.changed",
    `${file.path} was ${status === undefined ? "removed" : "replaced"} while it was in use; load the model again`,
  );
}

/**
 * Reads up to `buffer.length` bytes at `offset`; fewer come back only at the end of the file.
 *
 * @throws MferenceError "install.io" when the system call fails
 */
export async function readAt(
  descriptor: number,
  buffer: Uint8Array,
  offset: number,
): Promise<number> {
  let done = 0;
  while (done < buffer.length) {
    const count = await readOnce(descriptor, buffer.subarray(done), offset + done);
    if (count === 0) break;
    done += count;
  }
  return done;
}

function readOnce(descriptor: number, buffer: Uint8Array, offset: number): Promise<number> {
  return new Promise((resolve, reject) => {
    fs.read(descriptor, buffer, 0, buffer.length, offset, (error, count) => {
      if (error === null) resolve(count);
      else if (error.code === "EINTR") resolve(readOnce(descriptor, buffer, offset));
      else reject(new MferenceError("install.io", `read failed: ${error.message}`));
    });
  });
}

/**
 * Reads exactly `length` bytes at `offset` synchronously; for headers and other small regions.
 *
 * @throws MferenceError `code` when the file ends early
 */
export function readExactly(
  file: OpenFile,
  range: { readonly offset: number; readonly length: number },
  code: ErrorCode,
): Uint8Array {
  const buffer = new Uint8Array(range.length);
  let done = 0;
  while (done < buffer.length) {
    const count = fs.readSync(
      file.descriptor,
      buffer,
      done,
      buffer.length - done,
      range.offset + done,
    );
    if (count === 0) {
      throw new MferenceError(
        code,
        `${file.path} ends at ${range.offset + done} bytes; expected at least ${range.offset + range.length}`,
      );
    }
    done += count;
  }
  return buffer;
}

/**
 * The bytes of a small open file. The cap is checked before anything is read.
 *
 * @throws MferenceError `code` when the file is larger than `bytesMax` or ends early
 */
export function readCapped(file: OpenFile, bytesMax: number, code: ErrorCode): Uint8Array {
  if (file.sizeBytes > bytesMax) {
    throw new MferenceError(
      code,
      `${file.path} has ${file.sizeBytes} bytes, more than its metadata cap of ${bytesMax}`,
    );
  }
  return readExactly(file, { offset: 0, length: file.sizeBytes }, code);
}
