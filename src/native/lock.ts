import { dlopen, read, type Pointer } from "bun:ffi";
import fs from "node:fs";
import { MferenceError, sentenceOf } from "../util/errors.ts";

/**
 * Advisory file locks through `flock(2)`, which Bun does not offer. Owns the descriptor of a held lock
 * and the check that the path still names the locked file; knows nothing about what the lock protects.
 * `flock` and not `fcntl`: record locks vanish when any descriptor of the process closes.
 */
const LOCK_EX = 2;
const LOCK_NB = 4;
const LOCK_UN = 8;
const EINTR = 4;
const EWOULDBLOCK = process.platform === "darwin" ? 35 : 11;
/** Bun names no O_CLOEXEC; a child that inherits the descriptor would keep the lock. */
const O_CLOEXEC = process.platform === "darwin" ? 0x1000000 : 0x80000;
const { O_CREAT, O_NOFOLLOW, O_RDWR } = fs.constants;

const ERRNO_SYMBOL = process.platform === "darwin" ? "__error" : "__errno_location";
const LIBRARIES =
  process.platform === "darwin"
    ? ["libSystem.B.dylib"]
    : ["libc.so.6", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1", "libc.so"];

interface Libc {
  flock(descriptor: number, operation: number): number;
  errno(): number;
}

let loaded: Libc | undefined;

function libc(): Libc {
  loaded ??= loadLibc();
  return loaded;
}

function loadLibc(): Libc {
  const failures: string[] = [];
  for (const name of LIBRARIES) {
    try {
      const { symbols } = dlopen(name, {
        flock: { args: ["i32", "i32"], returns: "i32" },
        [ERRNO_SYMBOL]: { args: [], returns: "ptr" },
      });
      const location = symbols[ERRNO_SYMBOL] as () => Pointer;
      return {
        flock: symbols.flock,
        errno: () => read.i32(location(), 0),
      };
    } catch (error) {
      failures.push(sentenceOf(error));
    }
  }
  throw new MferenceError(
    "native.lock",
    `file locks need the system's C library, and none of ${LIBRARIES.join(", ")} could be loaded: ${failures.join("; ")}`,
  );
}

/** A held lock. */
export interface FileLock {
  readonly path: string;
  /** Gives the lock up; the file stays, so that a later holder locks the same one. */
  release(): void;
}

/**
 * Takes an exclusive lock on `path`, creating the file when absent, and never waits. The lock ends with
 * `release` or with the process.
 *
 * @throws MferenceError "install.busy" when another holder has it, "install.space" on a full disk
 * @throws MferenceError "native.lock" when the path is a link or no regular file, or the call fails
 */
export function acquireLock(path: string): FileLock {
  const library = libc();
  const descriptor = openLockFile(path);
  try {
    takeLock(library, descriptor, path);
    checkSameFile(descriptor, path);
  } catch (error) {
    fs.closeSync(descriptor);
    throw error;
  }
  let isHeld = true;
  return {
    path,
    release() {
      if (!isHeld) return;
      isHeld = false;
      library.flock(descriptor, LOCK_UN);
      fs.closeSync(descriptor);
    },
  };
}

function openLockFile(path: string): number {
  try {
    return fs.openSync(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o600);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOSPC" || code === "EDQUOT") {
      const sentence = `the disk is full: there is no room for ${path}; free some space and try again`;
      throw new MferenceError("install.space", sentence, { cause: error });
    }
    throw new MferenceError(
      "native.lock",
      `cannot open the lock file ${path}: ${sentenceOf(error)}; it must be a regular file that this user may write, and not a link`,
      { cause: error },
    );
  }
}

function takeLock(library: Libc, descriptor: number, path: string): void {
  for (;;) {
    if (library.flock(descriptor, LOCK_EX | LOCK_NB) === 0) return;
    const errno = library.errno();
    if (errno === EINTR) continue;
    // The runtime may have made calls of its own in between; an errno of 0 tells nothing more.
    if (errno === EWOULDBLOCK || errno === 0) {
      throw new MferenceError(
        "install.busy",
        `another process holds ${path}; wait until it has finished and try again`,
      );
    }
    throw new MferenceError("native.lock", `flock(${path}) failed with errno ${errno}`);
  }
}

/** Refuses a lock on a file that was renamed or replaced between the open and the lock. */
function checkSameFile(descriptor: number, path: string): void {
  const held = fs.fstatSync(descriptor);
  const named = fs.lstatSync(path, { throwIfNoEntry: false });
  if (!held.isFile() || named?.ino !== held.ino || named.dev !== held.dev) {
    throw new MferenceError(
      "native.lock",
      `the lock file ${path} is not a regular file or was replaced while it was being locked`,
    );
  }
}
