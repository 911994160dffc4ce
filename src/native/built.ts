/**
 * The folder of built libraries: names that carry a hash of everything a library is made from, so that a
 * stale one is never loaded and two first runs cannot disturb each other; results moved into place whole;
 * old ones removed. Knows no compiler.
 */
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
} from "node:fs";
import { basename, join, relative } from "node:path";
import { env } from "../util/env.ts";
import { MferenceError, sentenceOf } from "../util/errors.ts";

/** The repository. */
export const ROOT = join(import.meta.dir, "../..");
/** Ending of a shared library's name. */
export const SUFFIX = process.platform === "darwin" ? "dylib" : "so";

/** Between the name of a library and a random end: the folder in which it is made. */
const TEMPORARY = ".tmp-";
const HOUR_MS = 60 * 60 * 1000;
const DAY_MS = 24 * HOUR_MS;
/** A library in use is at most a day older than its last use (`markUsed`): one of these days is for it. */
const KEPT_DAYS = 3;
const ERROR_LINES = 6;

/** Folder of the built libraries; `MFERENCE_BUILD_DIR`, else `build` in the repository. */
export function buildFolder(given: string | undefined): string {
  return given ?? env("MFERENCE_BUILD_DIR") ?? join(ROOT, "build");
}

/** Sixteen hexadecimal digits over files of the repository and whatever else decides about the result. */
export function hashOf(facts: unknown, paths: readonly string[]): string {
  const hash = createHash("sha256");
  hash.update(JSON.stringify(facts));
  for (const name of paths) {
    const content = readFileSync(join(ROOT, name));
    hash.update(`${name}\0${content.length}\0`).update(content);
  }
  return hash.digest("hex").slice(0, 16);
}

/** A library to be found or made. */
export interface Library {
  /** What people call it. */
  readonly title: string;
  /** Name without hash and ending. */
  readonly name: string;
  readonly hash: string;
  readonly buildDir: string;
  /** Makes the file in a folder of its own, at the path given. */
  readonly make: (path: string) => Promise<void>;
}

/**
 * The library's path; made if it is not there.
 *
 * @throws MferenceError "native.build"
 */
export async function findOrMake(library: Library): Promise<string> {
  const { buildDir, name, hash } = library;
  const path = join(buildDir, `${name}-${hash}.${SUFFIX}`);
  if (existsSync(path)) {
    markUsed(path);
    return path;
  }
  try {
    mkdirSync(buildDir, { recursive: true });
    await makeInPlace(library, path);
    removeOld(buildDir, name);
  } catch (cause) {
    if (cause instanceof MferenceError) throw cause;
    const reason = `${library.title} cannot be built in ${buildDir}: ${sentenceOf(cause)}`;
    throw new MferenceError("native.build", reason, { cause });
  }
  return path;
}

async function makeInPlace({ make }: Library, path: string): Promise<void> {
  const folder = mkdtempSync(`${path}${TEMPORARY}`);
  try {
    const made = join(folder, basename(path));
    await make(made);
    renameSync(made, path);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * Runs a compiler in the repository.
 *
 * @param what the step, and what is being built
 * @throws MferenceError "native.build" with the compiler's first lines
 */
export async function runCompiler(
  command: readonly string[],
  what: { readonly step: string; readonly title: string },
): Promise<void> {
  const child = Bun.spawn([...command], {
    cwd: ROOT,
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [output, errors, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (status === 0) return;
  const lines = `${errors}\n${output}`.split("\n").filter((line) => line.trim() !== "");
  const wrong = lines.findIndex((line) => /\berror:/.test(line));
  const first = lines.slice(Math.max(wrong, 0)).slice(0, ERROR_LINES).join("\n");
  throw new MferenceError(
    "native.build",
    `${command[0]} failed (${what.step}, status ${status}) while building ${what.title}:\n${first}`,
  );
}

/** A library in use stays young; once a day is enough. */
function markUsed(path: string): void {
  const now = new Date();
  try {
    if (now.getTime() - statSync(path).mtimeMs > DAY_MS) utimesSync(path, now, now);
  } catch {
    // A folder of somebody else: then somebody else clears it.
  }
}

/**
 * Libraries of other sources go once nobody has used them for days; a process that has one loaded keeps it. So
 * do leftovers of killed builds, of which an hour tells: compilers write into that folder all the time, and the
 * slowest one is done in minutes.
 */
function removeOld(buildDir: string, name: string): void {
  for (const found of readdirSync(buildDir)) {
    if (!found.startsWith(`${name}-`)) continue;
    const path = join(buildDir, found);
    const ageMs = Date.now() - (statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Date.now());
    const keptMs = found.includes(TEMPORARY) ? HOUR_MS : KEPT_DAYS * DAY_MS;
    if (ageMs > keptMs) rmSync(path, { recursive: true, force: true });
  }
}

/** The path for people. */
export function describeLibrary(path: string): string {
  const near = relative(process.cwd(), path);
  return near.startsWith("..") ? path : near;
}
