/**
 * Positioned reads of whole experts straight into slot memory, through Bun's file API. A read that ends
 * early is an error: bytes that did not arrive are never computed on.
 */
import { constants, openSync, read } from "node:fs";
import { MferenceError } from "../util/errors.ts";

/** One positioned read; resolves to the bytes that arrived, which may be fewer than asked for. */
export type ReadAt = (descriptor: number, target: Uint8Array, position: number) => Promise<number>;

/** Bun's positioned read into a view of any memory. */
export const readAt: ReadAt = (descriptor, target, position) =>
  new Promise((resolve, reject) => {
    read(descriptor, target, 0, target.length, position, (error, count) => {
      if (error) reject(error);
      else resolve(count);
    });
  });

export interface ReadRequest {
  readonly descriptor: number;
  /** The same file opened by `openDirect`; used as long as nothing has arrived. */
  readonly direct?: number | undefined;
  readonly target: Uint8Array;
  readonly position: number;
  /** What is being read, for people. */
  readonly what: string;
}

/**
 * Fills the whole target, continuing after short reads.
 *
 * @throws MferenceError "expert.read" when the file ends early or cannot be read
 */
export async function readWhole(request: ReadRequest, via: ReadAt = readAt): Promise<void> {
  const { target, position, what } = request;
  let done = 0;
  while (done < target.length) {
    const count = await attempt(request, done, via);
    if (count <= 0) {
      throw new MferenceError(
        "expert.read",
        `${what}: the file ends after ${done} of ${target.length} bytes at offset ${position}; ` +
          "it was truncated while in use: run `mference verify` and install the model again",
      );
    }
    done += count;
  }
}

/**
 * Reads in flight at once. A few keep a disk busy while a finished read is handled, and let experts arrive
 * one after another, so that the device works on the first while the others come (docs/performance.md).
 */
export const READS_IN_FLIGHT = 3;

/** Begins reads in the order in which they are asked for, a few at once. */
export class ReadQueue {
  readonly #waiting: (() => void)[] = [];
  #inFlight = 0;

  async run<T>(read: () => Promise<T>): Promise<T> {
    if (this.#inFlight < READS_IN_FLIGHT) this.#inFlight += 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      return await read();
    } finally {
      // Who waits takes over the place.
      const next = this.#waiting.shift();
      if (next === undefined) this.#inFlight -= 1;
      else next();
    }
  }
}

async function attempt(request: ReadRequest, done: number, via: ReadAt): Promise<number> {
  const { target, position, what } = request;
  // What a short read leaves need not begin where direct reads may.
  const isDirect = request.direct !== undefined && done === 0;
  let descriptor = isDirect ? request.direct : request.descriptor;
  for (;;) {
    try {
      return await via(descriptor, done === 0 ? target : target.subarray(done), position + done);
    } catch (cause) {
      const { code } = cause as NodeJS.ErrnoException;
      if (code === "EINTR") continue;
      if (code === "EINVAL" && descriptor !== request.descriptor) {
        // A file system may refuse a direct read only when it comes.
        descriptor = request.descriptor;
        continue;
      }
      throw new MferenceError("expert.read", `${what}: ${(cause as Error).message}`, { cause });
    }
  }
}

/** What direct reads must be multiples of: address, offset and length. */
export const DIRECT_BYTES = 4096;
/** Not every system has it. */
const { O_DIRECT = 0 } = constants as { readonly O_DIRECT?: number };

/**
 * Opens the file behind a descriptor once more, for reads that go past the system's cache straight into
 * the target; undefined where the system or the file system has no such thing. The caller closes it.
 */
export function openDirect(descriptor: number): number | undefined {
  if (O_DIRECT === 0 || process.platform !== "linux") return undefined;
  try {
    return openSync(`/proc/self/fd/${descriptor}`, constants.O_RDONLY | O_DIRECT);
  } catch {
    return undefined;
  }
}
