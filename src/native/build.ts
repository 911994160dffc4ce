/**
 * Builds the CPU device from cpu/ with the system's C compiler when it is missing or stale. Knows which
 * file needs which instructions, and nothing of what they do.
 */
import { readdirSync } from "node:fs";
import { availableParallelism } from "node:os";
import { basename, dirname, join } from "node:path";
import { env } from "../util/env.ts";
import { MferenceError } from "../util/errors.ts";
import { buildFolder, findOrMake, hashOf, ROOT, runCompiler } from "./built.ts";

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

const NAME = "libmference-cpu";
const TITLE = "the CPU device";

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
  const compiler = options.compiler ?? env("CC") ?? "";
  const strict = options.isStrict === true ? ["-Werror"] : [];
  const units = deviceUnits().map(({ source, flags }) => ({
    source,
    flags: [...flags, ...strict],
  }));
  return await findOrMake({
    title: TITLE,
    name: NAME,
    hash: hashInputs(units, compiler),
    buildDir: buildFolder(options.buildDir),
    make: async (path) => {
      const command = findCompiler(compiler);
      options.onProgress?.("Building the CPU device (once, some seconds)");
      await build(units, command, path);
    },
  });
}

function listFiles(folder: string, pattern: RegExp): string[] {
  return readdirSync(join(ROOT, folder))
    .filter((name) => pattern.test(name))
    .toSorted()
    .map((name) => `${folder}/${name}`);
}

function hashInputs(units: readonly CompileUnit[], compiler: string): string {
  const headers = ["include", "cpu", "cpu/kernels"].flatMap((folder) => listFiles(folder, /\.h$/));
  // The shaders' text is no part of this device.
  const own = headers.filter((name) => name !== "include/mf_shaders.gen.h");
  const platform = [process.platform, process.arch, compiler, ...LINK_FLAGS];
  return hashOf([platform, units], [...own, ...units.map(({ source }) => source)]);
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

/** Compiles beside the library to be made. */
async function build(
  units: readonly CompileUnit[],
  compiler: readonly string[],
  library: string,
): Promise<void> {
  const run = (command: string[], step: string): Promise<void> =>
    runCompiler(command, { step, title: TITLE });
  const objects = units.map(({ source }) => join(dirname(library), `${basename(source, ".c")}.o`));
  const waiting = [...units.entries()];
  const compileNext = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const [index, { source, flags }] = next;
      await run([...compiler, ...flags, "-c", source, "-o", objects[index]!], source);
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
  await run([...compiler, "-o", library, ...objects, ...LINK_FLAGS], "linking");
}
