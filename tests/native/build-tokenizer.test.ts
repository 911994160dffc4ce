import { afterAll, describe, expect, test } from "bun:test";
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildTokenizerLibrary } from "../../src/native/build-tokenizer.ts";

const root = mkdtempSync(join(tmpdir(), "mference-build-"));
afterAll(() => rmSync(root, { recursive: true }));
const crate = join(import.meta.dir, "../../tokenizers");

/** A cargo that logs how it was called and then does as the script says. */
function fakeCargo(name: string, script: string): { cargo: string; log: string } {
  const log = join(root, `${name}.log`);
  const cargo = join(root, name);
  writeFileSync(cargo, `#!/bin/sh\necho "$@" >> "${log}"\n${script}\n`);
  chmodSync(cargo, 0o755);
  return { cargo, log };
}

const suffix = process.platform === "darwin" ? "dylib" : "so";
const building = `while [ $# -gt 1 ]; do
  if [ "$1" = "--target-dir" ]; then
    sleep 0.1; mkdir -p "$2/release"; echo library > "$2/release/libmference_tokenizer.${suffix}"
  fi
  shift
done`;

describe("building the tokenizer library", () => {
  test("two first runs at once both get one whole library, and later ones build nothing", async () => {
    const { cargo, log } = fakeCargo("builds", building);
    const options = { buildDir: join(root, "built"), cargo };
    const progress: string[] = [];
    const builds = await Promise.all([
      buildTokenizerLibrary({ ...options, onProgress: (sentence) => progress.push(sentence) }),
      buildTokenizerLibrary(options),
    ]);
    const [first, second] = builds.map((build) => ("path" in build ? build.path : ""));
    expect(first).toMatch(/libmference_tokenizer-[0-9a-f]{16}\./);
    expect(second).toBe(first);
    expect(readFileSync(first!, "utf8")).toBe("library\n");
    expect(progress).toEqual(["Building the tokenizer library (once, about a minute)"]);
    const calls = readFileSync(log, "utf8").split("\n").length;
    expect(await buildTokenizerLibrary(options)).toEqual({ path: first! });
    expect(readFileSync(log, "utf8").split("\n").length).toBe(calls);
    expect(readdirSync(options.buildDir).filter((name) => name.endsWith(".tmp"))).toEqual([]);
  });

  test("other sources are another library", async () => {
    const { cargo } = fakeCargo("builds-too", building);
    const sourceDir = join(root, "crate");
    mkdirSync(sourceDir);
    for (const name of ["Cargo.toml", "Cargo.lock", "src"]) {
      cpSync(join(crate, name), join(sourceDir, name), { recursive: true });
    }
    const options = { buildDir: join(root, "changed"), cargo };
    const before = await buildTokenizerLibrary({ ...options, sourceDir });
    expect(before).toEqual(await buildTokenizerLibrary(options));
    writeFileSync(join(sourceDir, "src/lib.rs"), "// changed");
    expect(await buildTokenizerLibrary({ ...options, sourceDir })).not.toEqual(before);
  });

  test("a failure is a sentence, is not tried again at once, and leaves nothing", async () => {
    const { cargo, log } = fakeCargo("offline", 'echo "error: no network" >&2; exit 101');
    const options = { buildDir: join(root, "offline-build"), cargo };
    const unavailable = "the crates of the tokenizer library cannot be had: no network";
    expect(await buildTokenizerLibrary(options)).toEqual({ unavailable });
    expect(await buildTokenizerLibrary(options)).toEqual({ unavailable });
    expect(readFileSync(log, "utf8").trim().split("\n").length).toBe(1);
    expect(await buildTokenizerLibrary({ ...options, isForced: true })).toEqual({ unavailable });
    expect(readFileSync(log, "utf8").trim().split("\n").length).toBe(2);
    expect(readdirSync(options.buildDir).every((name) => name.endsWith(".failed"))).toBe(true);
  });

  test("a cargo that a signal stops says so, and is tried again at once", async () => {
    const { cargo, log } = fakeCargo("stopped", "kill -INT $$");
    const options = { buildDir: join(root, "stopped-build"), cargo };
    const unavailable = "the tokenizer library cannot be built: cargo was stopped by SIGINT";
    expect(await buildTokenizerLibrary(options)).toEqual({ unavailable });
    expect(await buildTokenizerLibrary(options)).toEqual({ unavailable });
    expect(readFileSync(log, "utf8").trim().split("\n").length).toBe(2);
    expect(readdirSync(options.buildDir)).toEqual([]);
  });

  test("a compiler's error is shown, without its code", async () => {
    const script = '[ "$1" = fetch ] || { echo "error[E0001]: bad type" >&2; exit 101; }';
    const { cargo } = fakeCargo("breaks", script);
    expect(await buildTokenizerLibrary({ buildDir: join(root, "breaks-build"), cargo })).toEqual({
      unavailable: "the tokenizer library cannot be built: bad type",
    });
  });

  test("no cargo, no sources, no folder: a sentence each", async () => {
    const sentence = {
      unavailable: expect.stringContaining("the tokenizer library cannot be built"),
    };
    const buildDir = join(root, "none");
    expect(await buildTokenizerLibrary({ buildDir, cargo: join(root, "missing") })).toEqual(
      sentence,
    );
    expect(await buildTokenizerLibrary({ buildDir, sourceDir: join(root, "no") })).toEqual(
      sentence,
    );
    const { cargo } = fakeCargo("unused", building);
    writeFileSync(join(root, "file"), "");
    expect(await buildTokenizerLibrary({ buildDir: join(root, "file"), cargo })).toEqual(sentence);
    expect(existsSync(buildDir)).toBe(true);
  });
});
