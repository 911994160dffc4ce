/**
 * Finds the spellings of added tokens in text, and keeps text that people wrote from being taken for
 * one. It knows spellings and ids; which tokens control what is a family's business.
 */
import { MferenceError } from "../util/errors.ts";

export type AddedToken = {
  readonly id: number;
  readonly content: string;
  /** As the file says; a control token need not be special. */
  readonly special: boolean;
  readonly lstrip: boolean;
  readonly rstrip: boolean;
  readonly singleWord: boolean;
  readonly normalized: boolean;
};

/** A stretch of text, or the added token between two of them. */
export type Stretch = { readonly text: string } | { readonly id: number };

const WORD = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]/u;
const PUNCTUATION = /^[^\p{L}\p{M}\p{N}\s]/u;
/** White space that a template's `trim` must leave, since Python's does: U+FEFF. */
const BYTE_ORDER_MARK = 0xfeff;
const GUARD_FIRST = 0xfdd0;
const GUARD_LAST = 0xfdef;

/** Splits text at added tokens: the longest spelling at the leftmost place wins. */
export class AddedTokens {
  readonly tokens: readonly AddedToken[];
  readonly #byId = new Map<number, AddedToken>();
  /** Per first code unit, the tokens that begin with it, longest first. */
  readonly #byFirst = new Map<number, AddedToken[]>();

  constructor(tokens: readonly AddedToken[]) {
    this.tokens = tokens;
    for (const token of tokens) {
      this.#byId.set(token.id, token);
      if (token.content === "") continue;
      const first = token.content.charCodeAt(0);
      const group = this.#byFirst.get(first) ?? [];
      group.push(token);
      this.#byFirst.set(first, group);
    }
    for (const group of this.#byFirst.values()) {
      group.sort((a, b) => b.content.length - a.content.length);
    }
  }

  get(id: number): AddedToken | undefined {
    return this.#byId.get(id);
  }

  find(content: string): AddedToken | undefined {
    return this.#byFirst.get(content.charCodeAt(0))?.find((token) => token.content === content);
  }

  /** The first token among `ids` that plain text must not become. */
  findForged(ids: readonly number[]): AddedToken | undefined {
    for (const id of ids) {
      const token = this.#byId.get(id);
      if (token !== undefined && isForgeable(token)) return token;
    }
    return undefined;
  }

  /** Stretches of text and the tokens between them, in order; empty stretches are left out. */
  split(text: string): Stretch[] {
    const stretches: Stretch[] = [];
    let from = 0;
    let at = 0;
    while (at < text.length) {
      const token = this.#tokenAt(text, at);
      if (token === undefined) {
        at += 1;
        continue;
      }
      const before = text.slice(from, at);
      pushText(stretches, token.lstrip ? before.trimEnd() : before);
      stretches.push({ id: token.id });
      at += token.content.length;
      if (token.rstrip) at += (/^\s*/.exec(text.slice(at))?.[0] ?? "").length;
      from = at;
    }
    pushText(stretches, text.slice(from));
    return stretches;
  }

  #tokenAt(text: string, at: number): AddedToken | undefined {
    const group = this.#byFirst.get(text.charCodeAt(at));
    return group?.find(
      ({ content, singleWord }) =>
        text.startsWith(content, at) && (!singleWord || isSingleWord(text, at, content.length)),
    );
  }

  /**
   * Writes `guard` into text so that no added token is found in it, nor in what a template makes of it
   * by joining, trimming or cutting. Removing the guard restores the text.
   */
  guard(text: string, guard: string): string {
    let guarded = "";
    let from = 0;
    const end = text.trimEnd().length;
    for (let at = 0; at < text.length; at += 1) {
      const isMark = text.charCodeAt(at) === BYTE_ORDER_MARK;
      if (!isMark && !this.#isRisky(text, at, end)) continue;
      guarded += text.slice(from, at) + (isMark ? guard : "") + text[at] + guard;
      from = at + 1;
    }
    return from === 0 ? text : guarded + text.slice(from);
  }

  /**
   * Whether a token may begin here, if only its first part stands before `end` and another text follows.
   * For punctuation the first character is enough, as templates also cut texts.
   */
  #isRisky(text: string, at: number, end: number): boolean {
    const group = this.#byFirst.get(text.charCodeAt(at));
    if (group === undefined) return false;
    const candidates = group.filter(isForgeable);
    if (candidates.length > 0 && PUNCTUATION.test(text[at]!)) return true;
    return candidates.some(
      ({ content }) =>
        text.startsWith(content, at) ||
        (end - at < content.length && content.startsWith(text.slice(at, end))),
    );
  }
}

/**
 * Whether text could pass for the token: some vocabularies list runs of white space as added tokens
 * (U+2581 among it), which mean no more than the text they are.
 */
function isForgeable({ content }: AddedToken): boolean {
  return /[^\s\u2581]/.test(content);
}

function pushText(stretches: Stretch[], text: string): void {
  if (text !== "") stretches.push({ text });
}

function isSingleWord(text: string, at: number, length: number): boolean {
  const before = text.slice(Math.max(0, at - 2), at);
  const after = text.slice(at + length, at + length + 2);
  return !WORD.test([...before].at(-1) ?? "") && !WORD.test([...after][0] ?? "");
}

/**
 * A character that none of the texts contains.
 *
 * @throws MferenceError "text.messages" if all 32 candidates occur
 */
export function chooseGuard(texts: Iterable<string>): string {
  const used = new Set<number>();
  for (const text of texts) {
    for (const match of text.matchAll(/[\ufdd0-\ufdef]/g)) used.add(match[0].charCodeAt(0));
  }
  for (let code = GUARD_FIRST; code <= GUARD_LAST; code += 1) {
    if (!used.has(code)) return String.fromCharCode(code);
  }
  throw new MferenceError(
    "text.messages",
    "the messages use all of the noncharacters U+FDD0 to U+FDEF: remove one of them",
  );
}
