import { MferenceError } from "../util/errors.ts";
import type { FilePiece, HashPiece } from "./hashing.ts";
import type { InstallPlan, Copy, PlannedFile } from "./plan.ts";
import { sha256 } from "../format/digest.ts";
import { encodeResidentIndex } from "../format/resident.ts";
import { growth, transformText, unitBytes } from "./transform.ts";

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

/** Cuts a copy into copies of at most `bytesMax` bytes of the source, each of whole units. */
export function split(copy: Copy, bytesMax: number): readonly Copy[] {
  const pieces: Copy[] = [];
  const step =
    Math.max(1, Math.floor(bytesMax / unitBytes(copy.transform))) * unitBytes(copy.transform);
  for (let done = 0; done < copy.bytes; done += step) {
    pieces.push({
      ...copy,
      sourceOffset: copy.sourceOffset + done,
      targetOffset: copy.targetOffset + done * growth(copy.transform),
      bytes: Math.min(step, copy.bytes - done),
    });
  }
  return pieces;
}

/** Bytes of the package that a copy fills. */
export function targetBytes(copy: Copy): number {
  return copy.bytes * growth(copy.transform);
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
    const end = copy.targetOffset + targetBytes(copy);
    if (copy.bytes <= 0) fail(`a copy to ${copy.target} at ${copy.targetOffset} is empty`);
    if (copy.bytes % unitBytes(copy.transform) !== 0) {
      fail(`a copy to ${copy.target} at ${copy.targetOffset} is no whole number of units`);
    }
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
  const hasher = new Bun.CryptoHasher("sha256");
  const stream = new FingerprintStream((bytes) => hasher.update(bytes));
  const version = ranges.some(isTransformed) ? 2 : 1;
  stream.string(`Mference.RemoteInstallPlan.v${version}`);
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
      stream.place(copy, { rangeOffset: range.offset, isVersion2: version === 2 });
    }
  }
  return hasher.digest("hex");
}

function isTransformed(range: SourceRange): boolean {
  return range.copies.some(({ transform }) => transform !== undefined);
}

/**
 * What the digest of a range is of: words that describe it, and what it has left in the package's files.
 *
 * @param targetOf the open file of a path in the package
 */
export function rangePieces(
  range: SourceRange,
  targetOf: (target: string) => Pick<FilePiece, "descriptor" | "path">,
): readonly HashPiece[] {
  const isVersion2 = isTransformed(range);
  const pieces: HashPiece[] = [];
  const stream = new FingerprintStream((bytes) => pieces.push(bytes));
  stream.string(`Mference.RemoteRangeDestination.v${isVersion2 ? 2 : 1}`);
  stream.string(range.id);
  stream.u64(range.copies.length);
  for (const copy of range.copies) {
    stream.string(copy.target);
    stream.place(copy, { rangeOffset: range.offset, isVersion2 });
    const { descriptor, path } = targetOf(copy.target);
    pieces.push({ descriptor, path, offset: copy.targetOffset, bytes: targetBytes(copy) });
  }
  return pieces;
}

/** SHA-256 of a plan's index region, as the fingerprint wants it. */
export function indexSha256(plan: Pick<InstallPlan, "resident">): string {
  return sha256(encodeResidentIndex(plan.resident));
}

/** Writes numbers and texts in the one form that is hashed. */
class FingerprintStream {
  readonly #add: (bytes: Uint8Array) => void;

  constructor(add: (bytes: Uint8Array) => void) {
    this.#add = add;
  }

  u64(value: number): void {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
    this.#add(bytes);
  }

  string(text: string): void {
    const bytes = new TextEncoder().encode(text);
    this.u64(bytes.length);
    this.#add(bytes);
  }

  /** Where a copy comes from and goes to. */
  place(copy: Copy, range: { readonly rangeOffset: number; readonly isVersion2: boolean }): void {
    this.u64(copy.targetOffset);
    this.u64(copy.sourceOffset - range.rangeOffset);
    this.u64(copy.bytes);
    if (!range.isVersion2) return;
    this.u64(targetBytes(copy));
    this.string(transformText(copy.transform));
  }
}

function fail(problem: string): never {
  throw new MferenceError("install.source", `the install plan is wrong: ${problem}`);
}
