/**
 * Positioned reads of whole experts straight into slot memory, through Bun's file API. A read that ends
 * early is an error: bytes that did not arrive are never computed on.
 */
import { read } from "node:fs";
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

async function attempt(request: ReadRequest, done: number, via: ReadAt): Promise<number> {
  const { descriptor, target, position, what } = request;
  for (;;) {
    try {
      return await via(descriptor, done === 0 ? target : target.subarray(done), position + done);
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code === "EINTR") continue;
      throw new MferenceError("expert.read", `${what}: ${(cause as Error).message}`, { cause });
    }
  }
}
