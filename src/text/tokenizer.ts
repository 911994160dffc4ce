/**
 * The tokenizer that the rest of the program sees: ids of text, spellings of ids, added tokens. Owns
 * the choice between the two libraries behind it, which give the same ids. Refuses to know what a
 * control token is for.
 */
import { z } from "zod";
import { openTokenizerLibrary, type TokenizerCore } from "../native/tokenizer-library.ts";
import { MferenceError } from "../util/errors.ts";
import { type AddedToken, AddedTokens } from "./added-tokens.ts";
import { type PieceScheme, schemeOf } from "./pieces.ts";

export type EncodeOptions = {
  /** Whether spellings of added tokens in the text become their ids; without, text stays text. */
  readonly specials: boolean;
  /** A character to remove after the spellings were found (see `AddedTokens.guard`). */
  readonly guard?: string;
};

export type Tokenizer = {
  /** Which library encodes. */
  readonly library: "native" | "script";
  readonly scheme: PieceScheme;
  /** One more than the largest id, added tokens included. */
  readonly vocabularySize: number;
  readonly added: AddedTokens;
  encode(text: string, options: EncodeOptions): number[];
  /** The id whose spelling is exactly `piece`: an added token, else a piece of the model. */
  tokenId(piece: string): number | undefined;
  /** The spelling of an id in the vocabulary; `undefined` for an id that has none. */
  piece(id: number): string | undefined;
  /** Whether the file marks the id as special; control tokens need not be. */
  isSpecial(id: number): boolean;
  close(): void;
};

const descriptionSchema = z.object({
  decoder: z.unknown(),
  added_tokens: z.array(
    z.object({
      id: z.int().nonnegative().max(0x7fffffff),
      content: z.string(),
      special: z.boolean().default(false),
      lstrip: z.boolean().default(false),
      rstrip: z.boolean().default(false),
      single_word: z.boolean().default(false),
      normalized: z.boolean().default(true),
    }),
  ),
});

/**
 * Opens a `tokenizer.json`, through the native library at `libraryPath` where there is one.
 *
 * @throws MferenceError "text.tokenizer", "native.load", "native.abi"
 */
export function openTokenizer(path: string, libraryPath?: string): Tokenizer {
  const core =
    libraryPath === undefined
      ? loadScript().openScriptTokenizer(path)
      : openTokenizerLibrary(libraryPath).open(path);
  try {
    return new CoreTokenizer(core, libraryPath === undefined ? "script" : "native");
  } catch (cause) {
    core.close();
    throw cause instanceof MferenceError
      ? new MferenceError(cause.code, `the tokenizer ${path}: ${cause.message}`, { cause })
      : cause;
  }
}

/** The script is read only where it is used: most starts have the library and should be quick. */
function loadScript(): typeof import("./script-tokenizer.ts") {
  return require("./script-tokenizer.ts") as typeof import("./script-tokenizer.ts");
}

class CoreTokenizer implements Tokenizer {
  readonly library: "native" | "script";
  readonly scheme: PieceScheme;
  readonly vocabularySize: number;
  readonly added: AddedTokens;
  readonly #core: TokenizerCore;

  constructor(core: TokenizerCore, library: "native" | "script") {
    const parsed = descriptionSchema.safeParse(JSON.parse(core.description));
    if (!parsed.success) {
      throw new MferenceError(
        "text.tokenizer",
        `its added tokens: ${z.prettifyError(parsed.error)}`,
      );
    }
    const tokens = parsed.data.added_tokens.map(
      ({ single_word: singleWord, ...token }): AddedToken => ({ ...token, singleWord }),
    );
    this.library = library;
    this.scheme = schemeOf(parsed.data.decoder);
    this.added = new AddedTokens(tokens);
    this.vocabularySize = tokens.reduce((size, { id }) => Math.max(size, id + 1), core.modelSize);
    this.#core = core;
  }

  encode(text: string, { specials, guard }: EncodeOptions): number[] {
    const clean = (stretch: string) =>
      guard === undefined ? stretch : stretch.replaceAll(guard, "");
    const wellFormed = text.toWellFormed();
    if (!specials) return this.#encodeText(clean(wellFormed));
    const ids: number[] = [];
    for (const stretch of this.added.split(wellFormed)) {
      if ("id" in stretch) ids.push(stretch.id);
      else for (const id of this.#encodeText(clean(stretch.text))) ids.push(id);
    }
    return ids;
  }

  /**
   * Ids of text that holds no control token. A model whose own pieces include an added token could
   * still reach it; such a piece is written in two halves.
   */
  #encodeText(text: string): number[] {
    if (text === "") return [];
    const ids = [...this.#core.encode(text)];
    const forged = this.added.findForged(ids);
    if (forged === undefined) return ids;
    const { content } = forged;
    const at = text.indexOf(content);
    // Normalizers may have made the spelling; then there is no place to cut and the text stays as is.
    if (at < 0 || content.length < 2) return ids;
    const cut = at + (text.codePointAt(at)! > 0xffff ? 2 : 1);
    return [...this.#encodeText(text.slice(0, cut)), ...this.#encodeText(text.slice(cut))];
  }

  tokenId(piece: string): number | undefined {
    return this.added.find(piece)?.id ?? this.#core.id(piece);
  }

  piece(id: number): string | undefined {
    return this.added.get(id)?.content ?? this.#core.piece(id);
  }

  isSpecial(id: number): boolean {
    return this.added.get(id)?.special ?? false;
  }

  close(): void {
    this.#core.close();
  }
}
