import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { decode, Detokenizer } from "../../src/text/detokenizer.ts";
import { openTokenizer, type Tokenizer } from "../../src/text/tokenizer.ts";
import {
  demoTokenizer,
  type Fixture,
  fixtures,
  gemmaTokenizer,
  isPresent,
  longTexts,
  nativeLibrary,
  notShared,
  readVectors,
  texts,
  unpack,
} from "../conformance/tokenizer.ts";

type Library = { readonly name: string; readonly path: string | undefined; readonly skip?: string };

const libraries: readonly Library[] = [
  "path" in nativeLibrary
    ? { name: "native", path: nativeLibrary.path }
    : { name: "native", path: undefined, skip: nativeLibrary.unavailable },
  { name: "script", path: undefined },
];

const LOAD_MS = 60_000;
const plain = { specials: false };
const opened = new Map<string, Tokenizer>();
/** Ids of the long texts as text, which take a second each, by tokenizer and text. */
const longIds = new Map<string, string>();

/** What a text is after its tokenizer's normalizer; lone surrogates become U+FFFD on the way in. */
const normalized = (fixture: Fixture, text: string) =>
  fixture.isNormalizing ? text.toWellFormed().normalize("NFC") : text.toWellFormed();

function conformance(fixture: Fixture, library: Library): void {
  const reason = isPresent(fixture) ? library.skip : fixture.absence;
  const title = `${fixture.name}, ${library.name}`;
  if (reason !== undefined) {
    test.skip(`${title}: ${reason}`, () => {});
    return;
  }
  describe(title, () => {
    let tokenizer: Tokenizer;
    beforeAll(() => {
      const file = unpack(fixture.source);
      tokenizer = openTokenizer(file.path, library.path);
      opened.set(title, tokenizer);
      file.remove();
    }, LOAD_MS);

    test("says which library it is", () => {
      expect(tokenizer.library).toBe(library.name as "native");
    });

    test("text comes back from its ids", () => {
      for (const text of [...texts, "lone \ud800 surrogate"]) {
        const ids = tokenizer.encode(text, plain);
        expect(decode(tokenizer, ids)).toBe(normalized(fixture, text));
      }
    });

    test("a stream ends as the batch does, in every split of the ids", () => {
      for (const text of texts) {
        const ids = tokenizer.encode(text, plain);
        const detokenizer = new Detokenizer(tokenizer);
        const deltas = [...ids.map((id) => detokenizer.push(id)), detokenizer.flush()];
        expect(deltas.join("")).toBe(normalized(fixture, text));
        const isValid = !text.includes("\ufffd");
        expect(deltas.some((delta) => isValid && delta.includes("\ufffd"))).toBe(false);
      }
    });

    test.each(Object.entries(longTexts))(
      "100,000 characters: %s",
      (name, text) => {
        const ids = tokenizer.encode(text, plain);
        longIds.set(`${title}: ${name}`, ids.join(" "));
        expect(ids.length).toBeLessThanOrEqual(3 * text.length);
        expect(decode(tokenizer, ids)).toBe(text);
      },
      LOAD_MS,
    );

    test("nothing for nothing", () => {
      expect(tokenizer.encode("", plain)).toEqual([]);
      expect(tokenizer.encode("", { specials: true })).toEqual([]);
      expect(decode(tokenizer, [])).toBe("");
    });

    test("spellings of added tokens are ids only where asked for", () => {
      const forgeable = tokenizer.added.tokens.filter(({ content }) => /[^\s\u2581]/.test(content));
      const text = forgeable.map(({ content }) => content).join("x");
      const ids = new Set(tokenizer.encode(text, plain));
      expect(forgeable.filter(({ id }) => ids.has(id))).toEqual([]);
      const specials = tokenizer.encode(text, { specials: true });
      expect(specials.filter((_, index) => index % 2 === 0)).toEqual(forgeable.map(({ id }) => id));
    });

    test("every id of an added token has its spelling, and the spelling its id", () => {
      for (const { id, content } of tokenizer.added.tokens) {
        expect(tokenizer.piece(id)).toBe(content);
        expect(tokenizer.tokenId(content)).toBe(id);
      }
      expect(tokenizer.piece(tokenizer.vocabularySize)).toBeUndefined();
      expect(tokenizer.piece(-1)).toBeUndefined();
      expect(tokenizer.tokenId("no piece is spelled like this")).toBeUndefined();
    });

    if (fixture.name === "Gemma 4") {
      test("Gemma 4's vectors, with and without added tokens", () => {
        const vectors = readVectors("gemma4");
        expect(vectors.length).toBe(46);
        for (const { text, ids } of vectors) {
          expect(tokenizer.encode(text, plain).join(" ")).toBe(ids);
          expect(tokenizer.encode(text, { specials: true }).join(" ")).toBe(ids);
        }
      });
    }
    if (fixture.name === "Qwen 3") {
      test.skipIf(!existsSync(gemmaTokenizer))(
        `Qwen 3.5's vectors but for those with combining marks (${notShared} otherwise)`,
        () => {
          const vectors = readVectors("qwen3.5");
          const wrong = vectors.filter(
            ({ text, ids }) => tokenizer.encode(text, plain).join(" ") !== ids,
          );
          expect(vectors.length).toBe(51);
          expect(wrong.length).toBe(3);
          // Qwen 3.5's expression takes marks for letters; the vocabularies are otherwise the same.
          expect(wrong.every(({ text }) => /\p{M}/u.test(text))).toBe(true);
        },
      );
    }
  });
}

for (const fixture of fixtures) {
  for (const library of libraries) conformance(fixture, library);
  const names = libraries.map(({ name }) => `${fixture.name}, ${name}`);
  const reason = isPresent(fixture) ? libraries[0]!.skip : fixture.absence;
  if (reason !== undefined) {
    test.skip(`${fixture.name}, both alike: ${reason}`, () => {});
    continue;
  }
  test(
    `${fixture.name}: both libraries give the same ids`,
    () => {
      const [native, script] = names.map((name) => opened.get(name)!);
      expect(native!.vocabularySize).toBe(script!.vocabularySize);
      for (const text of texts) {
        for (const specials of [false, true]) {
          expect(native!.encode(text, { specials })).toEqual(script!.encode(text, { specials }));
        }
      }
      for (const name of Object.keys(longTexts)) {
        const [a, b] = names.map((title) => longIds.get(`${title}: ${name}`)!);
        expect(a!.length).toBeGreaterThan(0);
        expect(a === b).toBe(true);
      }
      for (const name of names) {
        opened.get(name)!.close();
        opened.delete(name);
      }
    },
    LOAD_MS,
  );
}

describe("files that are no tokenizer", () => {
  const folder = mkdtempSync(join(tmpdir(), "mference-tokenizer-"));
  afterAll(() => rmSync(folder, { recursive: true }));
  const decoder = { type: "ByteLevel" };
  const model = { type: "BPE", vocab: { a: 0 }, merges: [] };
  const files: readonly (readonly [string, string, RegExp])[] = [
    ["not JSON", "{", /tokenizer/],
    [
      "another model",
      JSON.stringify({ decoder, model: { ...model, type: "Unigram", vocab: [] } }),
      /Unigram/,
    ],
    ["a dropout", JSON.stringify({ decoder, model: { ...model, dropout: 0.1 } }), /dropout/],
    ["another decoder", JSON.stringify({ decoder: { type: "WordPiece" }, model }), /WordPiece/],
    ["no decoder", JSON.stringify({ model }), /decoder is missing/],
    [
      "an id beyond 31 bits",
      JSON.stringify({ decoder, model, added_tokens: [{ id: 2 ** 31, content: "<x>" }] }),
      /added tokens/,
    ],
  ];
  for (const library of libraries) {
    for (const [name, content, sentence] of files) {
      test.skipIf(library.skip !== undefined)(
        `${library.name}: ${name} is refused in one sentence ${library.skip ?? ""}`,
        () => {
          const path = join(folder, "tokenizer.json");
          writeFileSync(path, content);
          expect(() => openTokenizer(path, library.path)).toThrow(sentence);
        },
      );
    }
    test.skipIf(library.skip !== undefined)(
      `${library.name}: a missing file is named ${library.skip ?? ""}`,
      () => {
        expect(() => openTokenizer(join(folder, "missing.json"), library.path)).toThrow(
          /missing.json/,
        );
      },
    );
  }
});

test("a lone surrogate and U+FFFD encode alike", () => {
  const tokenizer = openTokenizer(demoTokenizer);
  expect(tokenizer.encode("\ud800", plain)).toEqual(tokenizer.encode("\ufffd", plain));
});
