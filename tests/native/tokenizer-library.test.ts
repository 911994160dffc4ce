import { describe, expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { openTokenizerLibrary } from "../../src/native/tokenizer-library.ts";
import {
  demoTokenizer,
  gemmaTokenizer,
  nativeLibrary,
  notShared,
  unpack,
} from "../conformance/tokenizer.ts";

const path = "path" in nativeLibrary ? nativeLibrary.path : "";
const reason = "path" in nativeLibrary ? "" : `: ${nativeLibrary.unavailable}`;

describe.skipIf(path === "")(`the tokenizer library${reason}`, () => {
  test("handles are closed once, and a closed one is a sentence", () => {
    const core = openTokenizerLibrary(path).open(demoTokenizer);
    expect(core.modelSize).toBe(8192);
    core.close();
    core.close();
    expect(() => core.encode("text")).toThrow(/handle \d+ is not open/);
    expect(() => core.piece(1)).toThrow(/is not open/);
  });

  test("two tokenizers do not share anything", () => {
    const library = openTokenizerLibrary(path);
    const [a, b] = [library.open(demoTokenizer), library.open(demoTokenizer)];
    const want = a.encode("Hello, world");
    a.close();
    expect(b.encode("Hello, world")).toEqual(want);
    b.close();
  });

  test("a description has everything but the tables", () => {
    const core = openTokenizerLibrary(path).open(demoTokenizer);
    const description = JSON.parse(core.description) as Record<string, unknown>;
    expect(Object.keys(description).toSorted()).toEqual([
      "added_tokens",
      "decoder",
      "model",
      "normalizer",
      "pre_tokenizer",
    ]);
    expect(core.description.length).toBeLessThan(20_000);
    core.close();
  });

  test("text with every byte and with NUL inside arrives whole", () => {
    const core = openTokenizerLibrary(path).open(demoTokenizer);
    const a = core.encode("a\0b");
    expect(a.length).toBeGreaterThan(2);
    expect(core.id("\0")).toBeUndefined();
    expect(core.id("")).toBeUndefined();
    core.close();
  });
});

test("the symbol table and the header declare the same functions", () => {
  const root = join(import.meta.dir, "../..");
  const names = (file: string, pattern: RegExp) =>
    [...readFileSync(join(root, file), "utf8").matchAll(pattern)]
      .map((match) => match[1]!)
      .toSorted((a, b) => a.localeCompare(b));
  const declared = names("include/mf_tokenizer.h", /^u?int32_t (mf_\w+)\(/gm);
  expect(declared.length).toBe(10);
  expect(names("src/native/tokenizer-library.ts", /^ {2}(mf_\w+): \{/gm)).toEqual(declared);
  expect(names("tokenizers/src/lib.rs", /extern "C" fn (mf_\w+)\(/g)).toEqual(declared);
});

test("a file that is no library is a sentence", () => {
  expect(() => openTokenizerLibrary(demoTokenizer)).toThrow(/cannot load the tokenizer library/);
});

const isMeasurable = path !== "" && existsSync(gemmaTokenizer) && process.platform === "linux";
const why = path === "" ? reason : ` (skipped if ${notShared}, and where there is no /proc)`;

test.skipIf(!isMeasurable)(
  `262,144 entries take at most 130 MB held and 350 MB while loading${why}`,
  async () => {
    const file = unpack(gemmaTokenizer);
    // A process of its own, since this one's peak belongs to all tests before.
    const child = Bun.spawn(
      [
        process.execPath,
        join(import.meta.dir, "../conformance/tokenizer-memory.ts"),
        path,
        file.path,
      ],
      { stdout: "pipe", stderr: "inherit" },
    );
    const output = await new Response(child.stdout).text();
    expect(await child.exited).toBe(0);
    file.remove();
    const memory = JSON.parse(output) as Record<"heldBytes" | "peakBytes" | "laterBytes", number>;
    expect(memory.heldBytes).toBeLessThanOrEqual(130e6);
    expect(memory.peakBytes).toBeLessThanOrEqual(350e6);
    expect(memory.laterBytes).toBeLessThanOrEqual(150e6);
  },
  60_000,
);
