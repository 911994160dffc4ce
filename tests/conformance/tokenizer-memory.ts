/**
 * Prints how much memory a tokenizer takes over that of the bare process: held after loading, at the
 * peak of loading, and after a megabyte of text. Arguments: the library, the tokenizer.json.
 */
import { readFileSync } from "node:fs";
import { openTokenizerLibrary } from "../../src/native/tokenizer-library.ts";

function memory(field: "VmRSS" | "VmHWM"): number {
  const line = new RegExp(`^${field}:\\s+(\\d+) kB`, "m").exec(
    readFileSync("/proc/self/status", "utf8"),
  );
  return Number(line![1]) * 1024;
}

const [libraryPath, tokenizerPath] = process.argv.slice(2);
const library = openTokenizerLibrary(libraryPath!);
const bareBytes = memory("VmRSS");
const core = library.open(tokenizerPath!);
const heldBytes = memory("VmRSS") - bareBytes;
const peakBytes = memory("VmHWM") - bareBytes;
core.encode("The quick brown fox jumps over the lazy dog. ".repeat(23_000));
const laterBytes = memory("VmRSS") - bareBytes;
process.stdout.write(JSON.stringify({ heldBytes, peakBytes, laterBytes }));
