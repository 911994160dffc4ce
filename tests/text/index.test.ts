import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { chat } from "../../src/families/gemma4/chat.ts";
import { findTextFiles, openText } from "../../src/text/index.ts";

const files = findTextFiles(join(import.meta.dir, "../../models/demo"))!;

describe("the text of a model", () => {
  test("raw text stays text, unless tokens are asked for", () => {
    const text = openText({ files, dialect: chat });
    expect(text.encodeRaw("", { bos: false })).toEqual([]);
    expect(text.encodeRaw("", { bos: true })).toEqual([2]);
    expect(text.encodeRaw("<eos>", { bos: false })).not.toContain(1);
    expect(text.encodeRaw("<eos>", { bos: false, specials: true })).toEqual([1]);
    expect([...text.stopIds.keys()]).toEqual([1, 106, 50]);
    text.close();
  });

  test("a detokenizer writes markers only where asked", () => {
    const text = openText({ files, dialect: chat });
    const ids = text.encodeRaw("a<turn|>", { bos: true, specials: true });
    const write = (specials: "skip" | "text") => {
      const detokenizer = text.detokenizer({ specials });
      return ids.map((id) => detokenizer.push(id)).join("") + detokenizer.flush();
    };
    expect(write("skip")).toBe("a");
    expect(write("text")).toBe("<bos>a<turn|>");
  });

  test("a marker that the vocabulary lacks is named", () => {
    const dialect = { ...chat, bos: "<start>" };
    expect(() => openText({ files, dialect })).toThrow(/no token <start>/);
    const stops = [{ token: "<halt>", meaning: "eos" }] as const;
    expect(() => openText({ files, dialect: { ...chat, stops } })).toThrow(/no token <halt>/);
  });

  test("without a template there is no chat, and a sentence that says so", () => {
    const { tokenizer, config } = files;
    const text = openText({ files: { tokenizer, config }, dialect: chat });
    expect(text.canChat).toBe(false);
    expect(() => text.encodeChat({ messages: [{ role: "user", content: "x" }] })).toThrow(
      /no chat template/,
    );
  });
});
