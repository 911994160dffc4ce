/**
 * Builds the tokenizer library from tokenizers/ when it is missing or stale. The file's name carries a
 * hash of its sources, so that a stale one is never loaded and two first runs cannot disturb each
 * other. Without it everything still works, more slowly: each failure is one sentence, and quick.
 */
import { createHash } from "node:crypto";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { env } from "../util/env.ts";
import { MferenceError, sentenceOf } from "../util/errors.ts";

export type TokenizerBuild = { readonly path: string } | { readonly unavailable: string };

export type TokenizerBuildOptions = {
  /** Folder of the built libraries. */
  readonly buildDir: string;
  /** The crate; the repository's own by default. */
  readonly sourceDir?: string | undefined;
  /** Cargo; `CARGO`, the PATH and the usual place by default. */
  readonly cargo?: string | undefined;
  /** Whether to try again although a build failed within the last hour. */
  readonly isForced?: boolean | undefined;
  /** Called with a sentence before anything that takes longer than a second. */
  readonly onProgress?: ((sentence: string) => void) | undefined;
};

const SUFFIX = process.platform === "darwin" ? "dylib" : "so";
const RETRY_AFTER_MS = 60 * 60 * 1000;
const FETCH_SECONDS_MAX = 90;
const BUILD_SECONDS_MAX = 1200;

/**
 * The tokenizer library to load, as `MFERENCE_TOKENIZER` asks: `native` insists on it, `script` does
 * without. It is built unless `obtain` has it from elsewhere.
 *
 * @throws MferenceError "usage.value" for another value, "native.build" if `native` is impossible
 */
export async function findTokenizerLibrary(
  options: TokenizerBuildOptions,
  obtain: (options: TokenizerBuildOptions) => Promise<TokenizerBuild> = buildTokenizerLibrary,
): Promise<TokenizerBuild> {
  const choice = env("MFERENCE_TOKENIZER");
  if (choice === "script") return { unavailable: "MFERENCE_TOKENIZER=script asks for the script" };
  if (choice !== undefined && choice !== "native") {
    throw new MferenceError(
      "usage.value",
      `MFERENCE_TOKENIZER is ${JSON.stringify(choice)}; expected native or script`,
    );
  }
  const build = await obtain({ ...options, isForced: choice === "native" });
  if (choice === "native" && "unavailable" in build) {
    throw new MferenceError("native.build", `MFERENCE_TOKENIZER=native, but ${build.unavailable}`);
  }
  return build;
}

/** Returns the library for the present sources, building it if need be; never throws for a failure. */
export async function buildTokenizerLibrary(
  options: TokenizerBuildOptions,
): Promise<TokenizerBuild> {
  const sourceDir = options.sourceDir ?? join(import.meta.dir, "../../tokenizers");
  try {
    const hash = hashSources(sourceDir);
    const path = join(options.buildDir, `libmference_tokenizer-${hash}.${SUFFIX}`);
    if (existsSync(path)) return { path };
    const cargo = options.cargo ?? findCargo();
    if (cargo === undefined) return { unavailable: "cargo was not found" };
    const failure = `${path}.failed`;
    if (options.isForced !== true && isRecent(failure)) {
      return { unavailable: readFileSync(failure, "utf8") };
    }
    const unavailable = await build({ ...options, sourceDir, cargo }, path);
    if (unavailable === undefined) return { path };
    writeFileSync(failure, unavailable);
    return { unavailable };
  } catch (cause) {
    return { unavailable: `the tokenizer library cannot be built: ${sentenceOf(cause)}` };
  }
}

function isRecent(path: string): boolean {
  return existsSync(path) && Date.now() - statSync(path).mtimeMs < RETRY_AFTER_MS;
}

/** Sixteen hexadecimal digits over the names and contents of the crate's files. */
function hashSources(sourceDir: string): string {
  const sources = readdirSync(join(sourceDir, "src")).toSorted();
  const hash = createHash("sha256");
  for (const name of ["Cargo.toml", "Cargo.lock", ...sources.map((name) => `src/${name}`)]) {
    const content = readFileSync(join(sourceDir, name));
    hash.update(`${name}\0${content.length}\0`).update(content);
  }
  return hash.digest("hex").slice(0, 16);
}

/** The command that runs cargo: `CARGO`, the PATH or the usual place. */
export function findCargo(): string | undefined {
  const given = env("CARGO");
  if (given !== undefined) return given;
  const usual = join(env("HOME") ?? "/", ".cargo/bin/cargo");
  return Bun.which("cargo") ?? (existsSync(usual) ? usual : undefined);
}

/** Builds into a folder that cargo itself locks, then moves the result into place. */
async function build(
  options: TokenizerBuildOptions & { readonly sourceDir: string; readonly cargo: string },
  path: string,
): Promise<string | undefined> {
  mkdirSync(options.buildDir, { recursive: true });
  options.onProgress?.("Building the tokenizer library (once, about a minute)");
  const run = (parameters: readonly string[], secondsMax: number) =>
    runCargo([options.cargo, ...parameters], options.sourceDir, secondsMax);
  // Without retries a machine that is offline fails at once instead of after minutes.
  const network = ["--config", "net.retry=0", "--config", "http.timeout=15"];
  const fetched = await run(["fetch", "--locked", ...network], FETCH_SECONDS_MAX);
  if (fetched !== undefined) return `the crates of the tokenizer library cannot be had: ${fetched}`;
  const target = join(options.buildDir, "tokenizer-target");
  const release = ["build", "--release", "--locked", "--offline", "--target-dir", target];
  const built = await run(release, BUILD_SECONDS_MAX);
  if (built !== undefined) return `the tokenizer library cannot be built: ${built}`;
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    copyFileSync(join(target, `release/libmference_tokenizer.${SUFFIX}`), temporary);
    renameSync(temporary, path);
  } finally {
    rmSync(temporary, { force: true });
  }
  return undefined;
}

/** Runs cargo; the sentence of its failure, or `undefined`. */
async function runCargo(
  command: string[],
  folder: string,
  secondsMax: number,
): Promise<string | undefined> {
  const child = Bun.spawn(command, {
    cwd: folder,
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
    timeout: secondsMax * 1000,
  });
  const begun = performance.now();
  const [errors, status] = await Promise.all([new Response(child.stderr).text(), child.exited]);
  if (status === 0) return undefined;
  if (child.signalCode !== null) {
    if (performance.now() - begun >= secondsMax * 1000)
      return `cargo was stopped after ${secondsMax} s`;
    // Somebody's Ctrl-C is no failure of the crate: thrown, it is not remembered, and the next run tries again.
    throw new MferenceError("native.build", `cargo was stopped by ${child.signalCode}`);
  }
  const lines = errors.split("\n").map((line) => line.trim());
  const error = lines.find((line) => line.startsWith("error"));
  const last = lines.findLast((line) => line !== "");
  const parts = new Set([error, last].filter((line) => line !== undefined));
  if (parts.size === 0) return `cargo ended with status ${status}`;
  return [...parts].join("; ").replace(/^error(\[\w+\])?:\s*/, "");
}
