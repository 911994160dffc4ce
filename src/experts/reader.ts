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

/**
 * Begins the reads `0 .. count` in order, a few at a time, and calls `onArrived` for each in order, as soon
 * as it and all before it have arrived. After a failure it begins no other read; it ends when none is under
 * way any more, with the first failure if there was one.
 */
export async function readEach(
  count: number,
  read: (index: number) => Promise<void>,
  onArrived: (index: number) => void,
): Promise<void> {
  const arrived = new Uint8Array(count);
  const failures: unknown[] = [];
  let next = 0;
  let told = 0;
  const lane = async (): Promise<void> => {
    while (next < count && failures.length === 0) {
      const index = next;
      next += 1;
      try {
        await read(index);
        arrived[index] = 1;
        for (; arrived[told] === 1; told += 1) onArrived(told);
      } catch (error) {
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(READS_IN_FLIGHT, count) }, lane));
  if (failures.length > 0) throw failures[0];
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
