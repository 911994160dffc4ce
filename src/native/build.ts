/**
 * Builds the CPU device from cpu/ with the system's C compiler when it is missing or stale. The file's
 * name carries a hash of everything it is made from, so that a stale one is never loaded and two first
 * runs cannot disturb each other. Knows which file needs which instructions, and nothing of what they do.
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
import { availableParallelism } from "node:os";
import { basename, join, relative } from "node:path";
import { env } from "../util/env.ts";
import { MferenceError, sentenceOf } from "../util/errors.ts";

export type DeviceBuildOptions = {
  /** Folder of the built libraries; `MFERENCE_BUILD_DIR`, else `build` in the repository. */
  readonly buildDir?: string | undefined;
  /** The compiler's command; `CC`, else what the system has. */
  readonly compiler?: string | undefined;
  /** Whether warnings are errors. */
  readonly isStrict?: boolean | undefined;
  /** Called with a sentence before anything that takes longer than a second. */
  readonly onProgress?: ((sentence: string) => void) | undefined;
};

/** One file to compile, and what its instructions need. */
export type CompileUnit = { readonly source: string; readonly flags: readonly string[] };

const ROOT = join(import.meta.dir, "../..");
const NAME = "libmference-cpu";
const SUFFIX = process.platform === "darwin" ? "dylib" : "so";
const DAY_MS = 24 * 60 * 60 * 1000;
const KEPT_DAYS = 14;
const ERROR_LINES = 6;
/** Between the name of a library and a random end: the folder in which it is made. */
const TEMPORARY = ".tmp-";

/** Multiplications and additions stay separate unless a kernel fuses them itself: results are the same everywhere. */
const COMPILE_FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden"];
const WARNING_FLAGS = ["-Wall", "-Wextra"];
const LINK_FLAGS =
  process.platform === "darwin" ? ["-dynamiclib"] : ["-shared", "-Wl,-z,defs", "-pthread", "-lm"];
const COMPILERS = ["cc", "gcc", "clang"];

const AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c"];
const AVX512_FLAGS = ["f", "bw", "vl", "dq", "vnni"].map((part) => `-mavx512${part}`);
/** Files with these suffixes are compiled on one architecture only, with these flags. */
const INSTRUCTION_FLAGS: readonly {
  readonly suffix: string;
  readonly arch: string;
  readonly flags: readonly string[];
}[] = [
  { suffix: "_avx2.c", arch: "x64", flags: AVX2_FLAGS },
  { suffix: "_avx512.c", arch: "x64", flags: [...AVX2_FLAGS, ...AVX512_FLAGS] },
  { suffix: "_neon.c", arch: "arm64", flags: ["-march=armv8.2-a+dotprod"] },
];

/** The device's C files for an architecture (as `process.arch` names it), with their flags. */
export function deviceUnits(arch: string = process.arch): CompileUnit[] {
  const sources = ["cpu", "cpu/kernels"].flatMap((folder) => listFiles(folder, /\.c$/));
  return sources.flatMap((source) => {
    const special = INSTRUCTION_FLAGS.find(({ suffix }) => source.endsWith(suffix));
    if (special !== undefined && special.arch !== arch) return [];
    const flags = [...COMPILE_FLAGS, ...WARNING_FLAGS, "-Iinclude", "-Icpu"];
    return [{ source, flags: [...flags, ...(special?.flags ?? [])] }];
  });
}

/**
 * Path of the device library for the present sources, built if need be; `MFERENCE_LIBRARY` names
 * another one, which is not looked into.
 *
 * @throws MferenceError "native.build" without a compiler, or with the compiler's first lines
 */
export async function buildDeviceLibrary(options: DeviceBuildOptions = {}): Promise<string> {
  const given = env("MFERENCE_LIBRARY");
  if (given !== undefined) return given;
  const buildDir = options.buildDir ?? env("MFERENCE_BUILD_DIR") ?? join(ROOT, "build");
  const compiler = options.compiler ?? env("CC") ?? "";
  const strict = options.isStrict === true ? ["-Werror"] : [];
  const units = deviceUnits().map(({ source, flags }) => ({
    source,
    flags: [...flags, ...strict],
  }));
  const path = join(buildDir, `${NAME}-${hashInputs(units, compiler)}.${SUFFIX}`);
  if (existsSync(path)) {
    markUsed(path);
    return path;
  }
  const command = findCompiler(compiler);
  options.onProgress?.("Building the CPU device (once, some seconds)");
  try {
    mkdirSync(buildDir, { recursive: true });
    await build(units, command, path);
    removeOld(buildDir);
  } catch (cause) {
    if (cause instanceof MferenceError) throw cause;
    const reason = `the CPU device cannot be built in ${buildDir}: ${sentenceOf(cause)}`;
    throw new MferenceError("native.build", reason, { cause });
  }
  return path;
}

function listFiles(folder: string, pattern: RegExp): string[] {
  return readdirSync(join(ROOT, folder))
    .filter((name) => pattern.test(name))
    .toSorted()
    .map((name) => `${folder}/${name}`);
}

/** Sixteen hexadecimal digits over sources, headers, flags and compiler. */
function hashInputs(units: readonly CompileUnit[], compiler: string): string {
  const hash = createHash("sha256");
  const platform = [process.platform, process.arch, compiler, ...LINK_FLAGS];
  hash.update(JSON.stringify([platform, units]));
  const headers = ["include", "cpu", "cpu/kernels"].flatMap((folder) => listFiles(folder, /\.h$/));
  for (const name of [...headers, ...units.map(({ source }) => source)]) {
    const content = readFileSync(join(ROOT, name));
    hash.update(`${name}\0${content.length}\0`).update(content);
  }
  return hash.digest("hex").slice(0, 16);
}

/** The compiler's command, split at spaces so that `CC="ccache gcc"` works. */
function findCompiler(wanted: string): string[] {
  const words = wanted.split(" ").filter((word) => word !== "");
  const candidates = words.length > 0 ? [words[0]!] : COMPILERS;
  const found = candidates.find((name) => Bun.which(name) !== null);
  if (found !== undefined) return [found, ...words.slice(1)];
  const advice =
    process.platform === "darwin"
      ? "`xcode-select --install` brings one"
      : "install one (`apt install gcc libc6-dev`, `dnf install gcc`, `apk add gcc musl-dev`)";
  throw new MferenceError(
    "native.build",
    `the CPU device needs a C compiler and ${candidates.join(", ")} was not found: ${advice}, or name another in CC`,
  );
}

/** Compiles into a folder of its own and moves the result into place. */
async function build(
  units: readonly CompileUnit[],
  compiler: readonly string[],
  path: string,
): Promise<void> {
  const folder = mkdtempSync(`${path}${TEMPORARY}`);
  try {
    const objects = units.map(({ source }) => join(folder, `${basename(source, ".c")}.o`));
    const waiting = [...units.entries()];
    const compileNext = async (): Promise<void> => {
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
        const [index, { source, flags }] = next;
        await runCompiler([...compiler, ...flags, "-c", source, "-o", objects[index]!], source);
      }
    };
    const workers = Array.from({ length: availableParallelism() }, () =>
      compileNext().catch((error: unknown) => {
        // The others end after what they are at, so that none writes into a folder that is gone.
        waiting.length = 0;
        throw error;
      }),
    );
    await Promise.allSettled(workers);
    await Promise.all(workers);
    const library = join(folder, basename(path));
    await runCompiler([...compiler, "-o", library, ...objects, ...LINK_FLAGS], "linking");
    renameSync(library, path);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function runCompiler(command: string[], what: string): Promise<void> {
  const child = Bun.spawn(command, {
    cwd: ROOT,
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
  });
  const [errors, status] = await Promise.all([new Response(child.stderr).text(), child.exited]);
  if (status === 0) return;
  const lines = errors.split("\n").filter((line) => line.trim() !== "");
  const first = lines.slice(0, ERROR_LINES).join("\n");
  throw new MferenceError(
    "native.build",
    `${command[0]} failed (${what}, status ${status}) while building the CPU device:\n${first}`,
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

/** Libraries of other sources go once nobody has used them for long, leftovers of killed builds too. */
function removeOld(buildDir: string): void {
  for (const name of readdirSync(buildDir)) {
    if (!name.startsWith(`${NAME}-`)) continue;
    const path = join(buildDir, name);
    const ageMs = Date.now() - (statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Date.now());
    const keptMs = name.includes(TEMPORARY) ? DAY_MS : KEPT_DAYS * DAY_MS;
    if (ageMs > keptMs) rmSync(path, { recursive: true, force: true });
  }
}

/** The path for people. */
export function describeLibrary(path: string): string {
  const near = relative(process.cwd(), path);
  return near.startsWith("..") ? path : near;
}
