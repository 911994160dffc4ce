import { MferenceError } from "../util/errors.ts";
import type { InstallPlan, Copy, PlannedFile } from "./plan.ts";
import { sha256 } from "../format/digest.ts";
import { encodeResidentIndex } from "../format/resident.ts";

/**
 * Cuts a plan's copies into ranges of the source, so that each byte of a shard is read once and in
 * order. A local install walks the ranges with reads, a remote one with requests. The fingerprint
 * identifies a plan across runs: a saved download belongs to one fingerprint.
 */
export const RANGE_BYTES_DEFAULT = 67_108_864;

/** Consecutive bytes of a shard and where parts of them go. */
export interface SourceRange {
  /** `range-` and eight digits, in sweep order. */
  readonly id: string;
  readonly shard: string;
  readonly offset: number;
  readonly bytes: number;
  /** By target, target offset and source offset. */
  readonly copies: readonly Copy[];
}

/**
 * Splits copies at the range size, sorts them by source and joins neighbours. Gaps of unwanted bytes
 * inside a range are part of it.
 *
 * @throws MferenceError "install.source" when a copy is empty, ends outside its file, or two copies
 * meet in a file
 */
export function planRanges(
  plan: { readonly outputs: readonly PlannedFile[]; readonly copies: readonly Copy[] },
  rangeBytes = RANGE_BYTES_DEFAULT,
): readonly SourceRange[] {
  checkTargets(plan);
  const pieces = plan.copies.flatMap((copy) => split(copy, rangeBytes)).toSorted(bySource);
  const ranges: SourceRange[] = [];
  let open: Copy[] = [];
  let end = 0;
  const close = (): void => {
    const first = open[0];
    if (first === undefined) return;
    const id = `range-${String(ranges.length).padStart(8, "0")}`;
    const { shard, sourceOffset: offset } = first;
    ranges.push({ id, shard, offset, bytes: end - offset, copies: open.toSorted(byTarget) });
  };
  for (const piece of pieces) {
    const first = open[0];
    const pieceEnd = piece.sourceOffset + piece.bytes;
    const isJoined =
      first !== undefined &&
      first.shard === piece.shard &&
      Math.max(end, pieceEnd) - first.sourceOffset <= rangeBytes;
    if (!isJoined) {
      close();
      open = [];
      end = 0;
    }
    open.push(piece);
    end = Math.max(end, pieceEnd);
  }
  close();
  return ranges;
}

function split(copy: Copy, bytesMax: number): readonly Copy[] {
  const pieces: Copy[] = [];
  for (let done = 0; done < copy.bytes; done += bytesMax) {
    pieces.push({
      ...copy,
      sourceOffset: copy.sourceOffset + done,
      targetOffset: copy.targetOffset + done,
      bytes: Math.min(bytesMax, copy.bytes - done),
    });
  }
  return pieces;
}

function bySource(left: Copy, right: Copy): number {
  return compare(left.shard, right.shard) || left.sourceOffset - right.sourceOffset;
}

function byTarget(left: Copy, right: Copy): number {
  return (
    compare(left.target, right.target) ||
    left.targetOffset - right.targetOffset ||
    left.sourceOffset - right.sourceOffset
  );
}

function compare(left: string, right: string): number {
  if (left === right) return 0;
  return left < right ? -1 : 1;
}

function checkTargets(plan: {
  readonly outputs: readonly PlannedFile[];
  readonly copies: readonly Copy[];
}): void {
  const sizes = new Map(plan.outputs.map((output) => [output.path, output.bytes]));
  const ordered = plan.copies.toSorted(byTarget);
  for (const [index, copy] of ordered.entries()) {
    const end = copy.targetOffset + copy.bytes;
    if (copy.bytes <= 0) fail(`a copy to ${copy.target} at ${copy.targetOffset} is empty`);
    if (!Number.isSafeInteger(end) || !Number.isSafeInteger(copy.sourceOffset + copy.bytes)) {
      fail(`a copy to ${copy.target} ends beyond 2^53 - 1`);
    }
    const size = sizes.get(copy.target);
    if (size === undefined) fail(`a copy goes to ${copy.target}, which is not planned`);
    else if (end > size) fail(`a copy to ${copy.target} ends at ${end}, beyond its ${size} bytes`);
    const next = ordered[index + 1];
    if (next?.target === copy.target && end > next.targetOffset) {
      fail(`two copies overlap in ${copy.target} at ${next.targetOffset}`);
    }
  }
}

/** The digest that identifies a plan, whatever folder it is carried out in. */
export function planFingerprint(
  plan: Pick<InstallPlan, "outputs"> & { readonly indexSha256: string },
  ranges: readonly SourceRange[],
  rangeBytes = RANGE_BYTES_DEFAULT,
): string {
  const stream = new FingerprintStream();
  stream.string("Mference.RemoteInstallPlan.v1");
  for (const value of [1, 0, rangeBytes]) stream.u64(value);
  for (const text of ["identity", "", plan.indexSha256]) stream.string(text);
  stream.u64(plan.outputs.length);
  for (const { path, bytes } of plan.outputs.toSorted((a, b) => compare(a.path, b.path))) {
    stream.string(path);
    stream.u64(bytes);
  }
  stream.u64(ranges.length);
  for (const range of ranges) {
    stream.string(range.id);
    stream.string(range.shard.normalize("NFC"));
    for (const value of [range.offset, range.bytes, range.copies.length]) stream.u64(value);
    for (const copy of range.copies) {
      stream.string(copy.target.normalize("NFC"));
      stream.u64(copy.targetOffset);
      stream.u64(copy.sourceOffset - range.offset);
      stream.u64(copy.bytes);
    }
  }
  return stream.digest();
}

/** SHA-256 of a plan's index region, as the fingerprint wants it. */
export function indexSha256(plan: Pick<InstallPlan, "resident">): string {
  return sha256(encodeResidentIndex(plan.resident));
}

class FingerprintStream {
  readonly #hasher = new Bun.CryptoHasher("sha256");

  u64(value: number): void {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
    this.#hasher.update(bytes);
  }

  string(text: string): void {
    const bytes = new TextEncoder().encode(text);
    this.u64(bytes.length);
    this.#hasher.update(bytes);
  }

  digest(): string {
    return this.#hasher.digest("hex");
  }
}

function fail(problem: string): never {
  throw new MferenceError("install.source", `the install plan is wrong: ${problem}`);
}
