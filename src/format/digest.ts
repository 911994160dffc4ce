import { MferenceError } from "../util/errors.ts";
import { readAt } from "./files.ts";

/**
 * SHA-256 of bytes and of whole files. A file passes through one 512 KiB buffer with asynchronous
 * reads, so that neither the heap nor the event loop notices its size.
 */
export const HASH_TILE_BYTES = 524_288;

const HEX_64 = /^[0-9a-f]{64}$/i;

/** Lower-case hex SHA-256 of bytes in memory. */
export function sha256(bytes: Uint8Array | string): string {
  return new Bun.CryptoHasher("sha256").update(bytes).digest("hex");
}

/** Whether a string has the form of a SHA-256 in hex. */
export function isSha256(text: string): boolean {
  return HEX_64.test(text);
}

/** Whether two hex digests are equal, whatever their case. */
export function sameDigest(left: string, right: string): boolean {
  return left.toLowerCase() === right.toLowerCase();
}

export interface HashOptions {
  readonly signal?: AbortSignal | undefined;
  /** Called after each tile with the bytes it added. */
  readonly onBytes?: ((bytes: number) => void) | undefined;
}

/**
 * SHA-256 of the first `sizeBytes` bytes behind a descriptor, in lower-case hex.
 *
 * @throws MferenceError "format.changed" when the file ends before `sizeBytes`
 */
export async function hashDescriptor(
  descriptor: number,
  file: { readonly path: string; readonly sizeBytes: number },
  options: HashOptions = {},
): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  const tile = new Uint8Array(Math.min(HASH_TILE_BYTES, Math.max(file.sizeBytes, 1)));
  let offset = 0;
  while (offset < file.sizeBytes) {
    options.signal?.throwIfAborted();
    const wanted = Math.min(tile.length, file.sizeBytes - offset);
    const count = await readAt(descriptor, tile.subarray(0, wanted), offset);
    if (count < wanted) {
      throw new MferenceError(
        "format.changed",
        `${file.path} ended at ${offset + count} bytes while it was read; expected ${file.sizeBytes}`,
      );
    }
    hasher.update(tile.subarray(0, count));
    offset += count;
    options.onBytes?.(count);
  }
  return hasher.digest("hex");
}
