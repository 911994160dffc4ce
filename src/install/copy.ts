import fs from "node:fs";
import { MferenceError } from "../util/errors.ts";
import type { OpenFile } from "../format/files.ts";
import { writeAll, type InstallIo, type Target } from "./durable.ts";
import type { Copy } from "./plan.ts";
import { split, targetBytes, type SourceRange } from "./ranges.ts";
import { applyTransform, growth } from "./transform.ts";

/**
 * Carries out a range plan from local shards. Every byte passes through one tile of 512 KiB; no tensor
 * and no expert is ever whole in memory.
 */
export const TILE_BYTES = 524_288;
/** How long the copy may keep the event loop from signals and progress. */
const SLICE_MS = 10;

export interface CopyJob {
  readonly shards: ReadonlyMap<string, OpenFile>;
  /** Open targets by their path in the package. */
  readonly targets: ReadonlyMap<string, Target>;
  readonly io: InstallIo;
  readonly signal?: AbortSignal | undefined;
  /** Called after each tile with its size. */
  readonly onBytes: (bytes: number) => void;
}

/**
 * Copies all ranges.
 *
 * @throws MferenceError "install.source" when a shard ends early, "install.space", "install.io",
 * "install.cancelled"
 */
export async function copyRanges(ranges: readonly SourceRange[], job: CopyJob): Promise<void> {
  const tile = new Uint8Array(TILE_BYTES);
  const room = new Uint8Array(TILE_BYTES);
  let sliceStart = performance.now();
  for (const piece of tilesOf(ranges)) {
    copyTile(piece, { tile: tile.subarray(0, piece.bytes), room }, job);
    job.onBytes(piece.bytes);
    if (performance.now() - sliceStart < SLICE_MS) continue;
    await Bun.sleep(0);
    checkCancelled(job.signal);
    sliceStart = performance.now();
  }
}

function* tilesOf(ranges: readonly SourceRange[]): Generator<Copy> {
  for (const copy of ranges.flatMap((range) => range.copies)) {
    yield* split(copy, Math.floor(TILE_BYTES / growth(copy.transform)));
  }
}

/** The bytes read, and those that a transform makes of them. */
interface Tiles {
  readonly tile: Uint8Array;
  readonly room: Uint8Array;
}

function copyTile(piece: Copy, { tile, room }: Tiles, job: CopyJob): void {
  const shard = job.shards.get(piece.shard)!;
  const target = job.targets.get(piece.target)!;
  let done = 0;
  while (done < tile.length) {
    const count = fs.readSync(
      shard.descriptor,
      tile,
      done,
      tile.length - done,
      piece.sourceOffset + done,
    );
    if (count === 0) {
      throw new MferenceError(
        "install.source",
        `${shard.path} was cut to ${fs.fstatSync(shard.descriptor).size} bytes while it was copied; it had ${shard.sizeBytes} when the install began`,
      );
    }
    done += count;
  }
  if (piece.transform === undefined) {
    writeAll(target, tile, piece.targetOffset, job.io);
    return;
  }
  const made = room.subarray(0, targetBytes(piece));
  applyTransform(piece.transform, tile, made);
  writeAll(target, made, piece.targetOffset, job.io);
}

/**
 * Ends a cancelled operation.
 *
 * @throws MferenceError "install.cancelled"
 */
export function checkCancelled(signal: AbortSignal | undefined): void {
  if (signal?.aborted !== true) return;
  throw new MferenceError("install.cancelled", "the operation was cancelled; nothing was changed", {
    cause: signal.reason,
  });
}
