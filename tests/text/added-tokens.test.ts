import { describe, expect, test } from "bun:test";
import { type AddedToken, AddedTokens, chooseGuard } from "../../src/text/added-tokens.ts";

const token = (id: number, content: string, flags: Partial<AddedToken> = {}): AddedToken => ({
  id,
  content,
  special: true,
  lstrip: false,
  rstrip: false,
  singleWord: false,
  normalized: false,
  ...flags,
});

describe("added tokens", () => {
  test("the longest at the leftmost place wins", () => {
    const tokens = new AddedTokens([token(1, "<a"), token(2, "<a>"), token(3, "a>b")]);
    expect(tokens.split("x<a>b<a<")).toEqual([
      { text: "x" },
      { id: 2 },
      { text: "b" },
      { id: 1 },
      { text: "<" },
    ]);
  });

  test("strips white space and asks for whole words where the file says so", () => {
    const tokens = new AddedTokens([
      token(1, "<m>", { lstrip: true, rstrip: true }),
      token(2, "word", { singleWord: true }),
    ]);
    expect(tokens.split("a \t<m>\n b")).toEqual([{ text: "a" }, { id: 1 }, { text: "b" }]);
    expect(tokens.split("swords word.")).toEqual([{ text: "swords " }, { id: 2 }, { text: "." }]);
  });

  test("guarded text holds no token, joined and cut however, and comes back", () => {
    const tokens = new AddedTokens([token(1, "<|turn>"), token(2, "turn"), token(3, "\n\n")]);
    const guard = chooseGuard([]);
    for (const text of ["<|turn>", "a turn <|", "<", "plain", "\ufeff x", "\n\n<|turn><|turn>"]) {
      const guarded = tokens.guard(text, guard);
      expect(guarded.replaceAll(guard, "")).toBe(text);
      for (let at = 0; at <= guarded.length; at += 1) {
        const joined = guarded.slice(at) + guarded.slice(0, at);
        const ids = tokens.split(joined).flatMap((part) => ("id" in part ? [part.id] : []));
        // Runs of white space mean no more than the text they are.
        expect(ids.filter((id) => id === 1)).toEqual([]);
      }
    }
    const halves = tokens.guard("<|tu", guard) + tokens.guard("rn>", guard);
    expect(tokens.split(halves)).toEqual([{ text: halves }]);
  });

  test("a byte order mark at the edge is not white space to a template's trim", () => {
    const guard = chooseGuard([]);
    const guarded = new AddedTokens([]).guard(" \ufeffa\ufeff ", guard);
    expect(guarded.trim().replaceAll(guard, "")).toBe("\ufeffa\ufeff");
  });

  test("the guard is a character that no text has", () => {
    expect(chooseGuard(["a"])).toBe("\ufdd0");
    expect(chooseGuard(["\ufdd1", "x\ufdd0"])).toBe("\ufdd2");
    const all = Array.from({ length: 32 }, (_, index) => String.fromCharCode(0xfdd0 + index));
    expect(() => chooseGuard(all)).toThrow(/noncharacters/);
  });
});
