/**
 * What a token's piece means as bytes: which of the two ways of writing bytes in a vocabulary a
 * tokenizer uses, and the translation. Knows no ids.
 */
import { MferenceError } from "../util/errors.ts";

/**
 * `byte-fallback`: pieces are text with U+2581 for a space, and `<0xNN>` pieces are single bytes.
 * `byte-level`: every character of a piece stands for one byte.
 */
export type PieceScheme = "byte-fallback" | "byte-level";

type DecoderEntry = {
  readonly type?: unknown;
  readonly decoders?: unknown;
  readonly pattern?: unknown;
  readonly content?: unknown;
};

/**
 * The scheme that a tokenizer file's `decoder` entry stands for.
 *
 * @throws MferenceError "text.tokenizer" for any other decoder, by name
 */
export function schemeOf(decoder: unknown): PieceScheme {
  const entries = flatten(decoder);
  const names = entries.map((entry) => String(entry.type));
  if (names.length === 1 && names[0] === "ByteLevel") return "byte-level";
  const [replace] = entries;
  const isFallback =
    names.join() === "Replace,ByteFallback,Fuse" &&
    replace?.content === " " &&
    (replace.pattern as { String?: unknown } | undefined)?.String === "\u2581";
  if (isFallback) return "byte-fallback";
  throw new MferenceError(
    "text.tokenizer",
    `its decoder is ${names.join(", ") || "missing"}; expected ByteLevel, or Replace (U+2581 by a space), ByteFallback and Fuse`,
  );
}

function flatten(decoder: unknown): DecoderEntry[] {
  if (typeof decoder !== "object" || decoder === null) return [];
  const entry = decoder as DecoderEntry;
  if (entry.type !== "Sequence" || !Array.isArray(entry.decoders)) return [entry];
  return entry.decoders.flatMap(flatten);
}

/** Byte values of the characters that byte-level vocabularies use, by code point. */
const LEVEL_BYTES: ReadonlyMap<string, number> = levelBytes();

/** Printable bytes stand for themselves; the others for U+0100 and up, in order. Source: GPT-2. */
function levelBytes(): Map<string, number> {
  const bytes = new Map<string, number>();
  let next = 0x100;
  for (let byte = 0; byte < 256; byte += 1) {
    const isPrintable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    bytes.set(String.fromCodePoint(isPrintable ? byte : next), byte);
    if (!isPrintable) next += 1;
  }
  return bytes;
}

/** The bytes of a byte-level piece; characters outside the alphabet keep their own UTF-8 bytes. */
export function levelPieceBytes(piece: string): number[] {
  const bytes: number[] = [];
  for (const character of piece) {
    const byte = LEVEL_BYTES.get(character);
    if (byte === undefined) bytes.push(...new TextEncoder().encode(character));
    else bytes.push(byte);
  }
  return bytes;
}

/** The byte of a `<0xNN>` piece. */
export function fallbackPieceByte(piece: string): number | undefined {
  const digits = /^<0x([0-9A-Fa-f]{2})>$/.exec(piece)?.[1];
  return digits === undefined ? undefined : Number.parseInt(digits, 16);
}
