/**
 * Ids to text, one at a time and at constant cost: batch decoding is pushing every id and then
 * flushing. Owns the bytes of an incomplete character and nothing else; it never takes back what it
 * has returned. Ill-formed bytes become one U+FFFD per maximal subpart, on both libraries alike.
 */
import { fallbackPieceByte, levelPieceBytes } from "./pieces.ts";
import type { Tokenizer } from "./tokenizer.ts";

export type DetokenizerOptions = {
  /** Whether added tokens marked special are written out; the default leaves them out. */
  readonly specials?: "skip" | "text";
  /**
   * Ids that end a run of bytes: what is held comes out as their own delta, so that it belongs to what
   * was before them. They give no text themselves unless `specials` is `text`.
   */
  readonly barriers?: ReadonlySet<number>;
  /** Ids that are text even where special tokens are left out. */
  readonly exempt?: ReadonlySet<number>;
};

/** A token's contribution: bytes that may end inside a character, or nothing. */
type Fragment =
  | { readonly kind: "bytes"; readonly bytes: Uint8Array }
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "nothing" }
  | { readonly kind: "barrier"; readonly text: string };

/** Fragments kept per detokenizer; a long answer uses a few thousand different tokens. */
const CACHE_ENTRIES_MAX = 8192;

export class Detokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #options: DetokenizerOptions;
  readonly #fragments = new Map<number, Fragment>();
  #decoder = createDecoder();
  #isHolding = false;

  constructor(tokenizer: Tokenizer, options: DetokenizerOptions = {}) {
    this.#tokenizer = tokenizer;
    this.#options = options;
  }

  /** The text that became certain with this id; often empty inside a multi-byte character. */
  push(id: number): string {
    const fragment = this.#fragment(id);
    switch (fragment.kind) {
      case "bytes":
        this.#isHolding = true;
        return this.#decoder.decode(fragment.bytes, { stream: true });
      case "text":
        return this.#isHolding ? this.flush() + fragment.text : fragment.text;
      case "barrier":
        return this.flush() + fragment.text;
      case "nothing":
        return "";
    }
  }

  /** What is still held: an incomplete character becomes U+FFFD. Pushing may go on afterwards. */
  flush(): string {
    if (!this.#isHolding) return "";
    this.#isHolding = false;
    const rest = this.#decoder.decode();
    this.#decoder = createDecoder();
    return rest;
  }

  #fragment(id: number): Fragment {
    const known = this.#fragments.get(id);
    if (known !== undefined) return known;
    if (this.#fragments.size >= CACHE_ENTRIES_MAX) this.#fragments.clear();
    const fragment = this.#createFragment(id);
    this.#fragments.set(id, fragment);
    return fragment;
  }

  #createFragment(id: number): Fragment {
    const { specials = "skip", barriers, exempt } = this.#options;
    const added = this.#tokenizer.added.get(id);
    if (barriers?.has(id) === true) {
      const isText = specials === "text" || exempt?.has(id) === true;
      return { kind: "barrier", text: isText ? (added?.content ?? "") : "" };
    }
    if (added !== undefined) {
      const isSkipped = added.special && specials === "skip" && exempt?.has(id) !== true;
      return isSkipped ? { kind: "nothing" } : { kind: "text", text: this.#plain(added.content) };
    }
    const piece = this.#tokenizer.piece(id);
    if (piece === undefined) return { kind: "nothing" };
    if (this.#tokenizer.scheme === "byte-level") {
      return { kind: "bytes", bytes: Uint8Array.from(levelPieceBytes(piece)) };
    }
    const byte = fallbackPieceByte(piece);
    if (byte !== undefined) return { kind: "bytes", bytes: Uint8Array.of(byte) };
    return { kind: "text", text: this.#plain(piece) };
  }

  /** U+2581 stands for a space only where the vocabulary writes its pieces as text. */
  #plain(piece: string): string {
    return this.#tokenizer.scheme === "byte-fallback" ? piece.replaceAll("\u2581", " ") : piece;
  }
}

/** The platform's decoder follows the maximal-subpart rule; without `ignoreBOM` it eats U+FEFF. */
function createDecoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

/** The text of a list of ids. */
export function decode(
  tokenizer: Tokenizer,
  ids: Iterable<number>,
  options: DetokenizerOptions = {},
): string {
  const detokenizer = new Detokenizer(tokenizer, options);
  let text = "";
  for (const id of ids) text += detokenizer.push(id);
  return text + detokenizer.flush();
}
