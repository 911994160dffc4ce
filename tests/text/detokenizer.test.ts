import { describe, expect, test } from "bun:test";
import { AddedTokens } from "../../src/text/added-tokens.ts";
import { decode, Detokenizer } from "../../src/text/detokenizer.ts";
import type { PieceScheme } from "../../src/text/pieces.ts";
import type { Tokenizer } from "../../src/text/tokenizer.ts";

const SPECIAL = 1000;
const MARKER = 1001;
const ORDINARY = 1002;

/** A vocabulary whose first 256 ids are the bytes, written as the scheme writes them. */
function byteTokenizer(scheme: PieceScheme): Tokenizer {
  const token = (id: number, content: string, special: boolean) => ({
    id,
    content,
    special,
    lstrip: false,
    rstrip: false,
    singleWord: false,
    normalized: false,
  });
  const added = new AddedTokens([
    token(SPECIAL, "<special>", true),
    token(MARKER, "<marker>", true),
    token(ORDINARY, "<ordinary>", false),
  ]);
  const levels: string[] = [];
  let next = 0x100;
  for (let byte = 0; byte < 256; byte += 1) {
    const isPrintable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    levels.push(String.fromCodePoint(isPrintable ? byte : next));
    if (!isPrintable) next += 1;
  }
  const piece = (id: number) => {
    if (id >= 256) return added.get(id)?.content ?? (id === 300 ? "\u2581word" : undefined);
    const digits = id.toString(16).toUpperCase().padStart(2, "0");
    return scheme === "byte-level" ? levels[id] : `<0x${digits}>`;
  };
  return {
    library: "script",
    scheme,
    vocabularySize: 1003,
    added,
    encode: () => [],
    tokenId: (content) => added.find(content)?.id,
    piece,
    isSpecial: (id) => added.get(id)?.special ?? false,
    close: () => {},
  };
}

const bytesOf = (text: string) => [...new TextEncoder().encode(text)];

describe.each(["byte-fallback", "byte-level"] as const)("%s", (scheme) => {
  const tokenizer = byteTokenizer(scheme);

  test("a character split over tokens comes out whole, nothing before", () => {
    const detokenizer = new Detokenizer(tokenizer);
    const deltas = bytesOf("\u{1f999}!").map((byte) => detokenizer.push(byte));
    expect(deltas).toEqual(["", "", "", "\u{1f999}", "!"]);
    expect(detokenizer.flush()).toBe("");
  });

  // Source: the WHATWG decoder's rule of one U+FFFD per maximal subpart.
  test.each([
    [[0xed, 0xa0], "\ufffd\ufffd"],
    [[0xed, 0xa0, 0x80], "\ufffd\ufffd\ufffd"],
    [[0xf0, 0x9f, 0xa6], "\ufffd"],
    [[0x80, 0x41], "\ufffdA"],
    [[0xc3], "\ufffd"],
    [[...bytesOf("\u{1f999}"), 0xf0, 0x9f, 0xa6], "\u{1f999}\ufffd"],
    [[0xf0, 0x9f, 0x41], "\ufffdA"],
  ])("ill-formed bytes %j", (ids, text) => {
    expect(decode(tokenizer, ids)).toBe(text);
  });

  test("every split of every byte pair agrees with the platform's decoder", () => {
    for (let first = 0x7f; first < 256; first += 3) {
      for (let second = 0x40; second < 256; second += 3) {
        const ids = [0x61, first, second, 0x9f, 0x62];
        const want = new TextDecoder().decode(Uint8Array.from(ids));
        expect(decode(tokenizer, ids)).toBe(want);
      }
    }
  });

  test("U+FEFF and a genuine U+FFFD survive", () => {
    const text = "\ufeffa\ufffdb\ufeff";
    expect(decode(tokenizer, bytesOf(text))).toBe(text);
  });

  test("pushing after a flush neither repeats nor rewinds", () => {
    const detokenizer = new Detokenizer(tokenizer);
    const [first, ...rest] = bytesOf("é");
    expect(detokenizer.push(first!)).toBe("");
    expect(detokenizer.flush()).toBe("\ufffd");
    expect(detokenizer.flush()).toBe("");
    expect(rest.map((byte) => detokenizer.push(byte)).join("")).toBe("\ufffd");
    expect(detokenizer.push(0x61)).toBe("a");
  });

  test("a special token in a run of bytes is left out and closes nothing", () => {
    const [first, second] = bytesOf("é");
    expect(decode(tokenizer, [first!, SPECIAL, second!])).toBe("é");
  });

  test("an id without a token contributes nothing and closes nothing", () => {
    const [first, second] = bytesOf("é");
    expect(decode(tokenizer, [first!, 999, 5000, second!])).toBe("é");
  });

  test("a barrier commits what is held before it", () => {
    const detokenizer = new Detokenizer(tokenizer, { barriers: new Set([MARKER]) });
    const [first, second] = bytesOf("é");
    expect(detokenizer.push(first!)).toBe("");
    expect(detokenizer.push(MARKER)).toBe("\ufffd");
    expect(detokenizer.push(second!) + detokenizer.flush()).toBe("\ufffd");
  });

  test("special tokens are written where they are asked for", () => {
    const ids = [0x61, SPECIAL, MARKER, ORDINARY];
    const barriers = new Set([MARKER]);
    expect(decode(tokenizer, ids)).toBe("a<ordinary>");
    expect(decode(tokenizer, ids, { barriers, specials: "text" })).toBe(
      "a<special><marker><ordinary>",
    );
    expect(decode(tokenizer, ids, { exempt: new Set([SPECIAL]) })).toBe("a<special><ordinary>");
  });
});

test("a leading space is content", () => {
  expect(decode(byteTokenizer("byte-fallback"), [300, 300])).toBe(" word word");
  expect(decode(byteTokenizer("byte-level"), [0x20, 0x61])).toBe(" a");
});
