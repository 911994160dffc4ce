import { MferenceError } from "../util/errors.ts";

/**
 * The lossless ways in which bytes change between a checkpoint and a package. Values stay what they are;
 * only how they are written changes. Works on any part of a tensor that is whole units long.
 */
export type Transform =
  /** Two-bit codes become four-bit codes of the same value. */
  | { readonly kind: "unpackInt2ToInt4" }
  /** A BF16 value per row becomes one per group, with its sign turned or not. */
  | { readonly kind: "repeatBf16"; readonly count: number; readonly isNegated: boolean };

/** Bytes of the source that belong together. */
export function unitBytes(transform: Transform | undefined): number {
  if (transform === undefined) return 1;
  return transform.kind === "unpackInt2ToInt4" ? 4 : 2;
}

/** Bytes that come out for each that goes in. */
export function growth(transform: Transform | undefined): number {
  if (transform === undefined) return 1;
  return transform.kind === "unpackInt2ToInt4" ? 2 : transform.count;
}

/** The name of a transform where plans are compared. */
export function transformText(transform: Transform | undefined): string {
  if (transform === undefined) return "identity";
  if (transform.kind === "unpackInt2ToInt4") return "unpack-int2-to-int4";
  return `repeat-bf16:${transform.count}:${transform.isNegated ? 1 : 0}`;
}

/** Transforms `source` into `target`, which has room for all of it. */
export function applyTransform(transform: Transform, source: Uint8Array, target: Uint8Array): void {
  if (source.length % unitBytes(transform) !== 0) {
    throw new MferenceError(
      "install.source",
      `the install plan is wrong: ${source.length} bytes are no whole number of units`,
    );
  }
  if (transform.kind === "unpackInt2ToInt4") unpack(source, target);
  else repeat(source, target, transform);
}

/** A byte holds four codes, the first in its low bits; of each two codes one byte comes out. */
function unpack(source: Uint8Array, target: Uint8Array): void {
  for (let index = 0; index < source.length; index += 1) {
    const codes = source[index]!;
    target[2 * index] = (codes & 3) | (((codes >> 2) & 3) << 4);
    target[2 * index + 1] = ((codes >> 4) & 3) | ((codes >> 6) << 4);
  }
}

function repeat(
  source: Uint8Array,
  target: Uint8Array,
  { count, isNegated }: { readonly count: number; readonly isNegated: boolean },
): void {
  const sign = isNegated ? 0x80 : 0;
  let at = 0;
  for (let index = 0; index < source.length; index += 2) {
    const low = source[index]!;
    const high = source[index + 1]! ^ sign;
    for (let copy = 0; copy < count; copy += 1) {
      target[at] = low;
      target[at + 1] = high;
      at += 2;
    }
  }
}
