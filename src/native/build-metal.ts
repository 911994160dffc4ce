/**
 * Builds the Metal device from swift/ with the Swift package manager when it is missing or stale. On
 * macOS it is the product; elsewhere the same sources run on a software Metal, which is test equipment
 * (docs/metal.md). Knows no kernel and no Swift file by name.
 */
import { copyFileSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { MferenceError } from "../util/errors.ts";
import { buildFolder, findOrMake, hashOf, ROOT, runCompiler, SUFFIX } from "./built.ts";
import { renderShaderHeader, SHADER_HEADER } from "./shader-source.ts";

export type MetalBuildOptions = {
  /** Folder of the built libraries; `MFERENCE_BUILD_DIR`, else `build` in the repository. */
  readonly buildDir?: string | undefined;
  /** Swift's command; what the PATH has by default. */
  readonly swift?: string | undefined;
  /** More arguments for `swift build`, as instrumented builds need them. */
  readonly flags?: readonly string[] | undefined;
  /** Called with a sentence before anything that takes longer than a second. */
  readonly onProgress?: ((sentence: string) => void) | undefined;
};

const NAME = "libmference-metal";
const TITLE = "the Metal device";
/** Of Package.swift; the SDK that comes with it is that of macOS 15. */
const SWIFT_LEAST = 6;
const BUILD_FLAGS = ["-c", "release", "--product", "mference"];

/**
 * Path of the Metal device library for the present sources, built if need be.
 *
 * @throws MferenceError "native.build" without Swift or with an old one, with stale generated shaders, or
 *   with the compiler's first lines
 */
export async function buildMetalLibrary(options: MetalBuildOptions = {}): Promise<string> {
  const { swift = "swift", flags = [], onProgress } = options;
  const buildDir = buildFolder(options.buildDir);
  const hash = hashOf([process.platform, process.arch, flags], sourceFiles());
  return await findOrMake({
    title: TITLE,
    name: NAME,
    hash,
    buildDir,
    make: async (path) => {
      await requireSwift(swift);
      requireFreshShaders();
      onProgress?.("Building the Metal device (once, a minute or two)");
      // Builds with other flags would undo each other's work in one folder.
      const kind = flags.length === 0 ? "" : `-${hashOf(flags, [])}`;
      const scratch = join(buildDir, `swift${kind}`);
      const command = [swift, "build", ...BUILD_FLAGS, "--scratch-path", scratch, ...flags];
      await runCompiler(command, { step: "swift build", title: TITLE });
      copyFileSync(join(scratch, "release", `libmference.${SUFFIX}`), path);
    },
  });
}

/** Why a Metal device cannot be built or used here; `undefined` where it can. */
export function metalHindrance(swift = "swift"): string | undefined {
  if (Bun.which(swift) !== null) return undefined;
  const advice =
    process.platform === "darwin"
      ? "`xcode-select --install` brings it; --device cpu does without"
      : "it is for macOS; on Debian 13 `apt install swiftlang` lets its tests run";
  return `the Metal device needs Swift 6 and ${swift} was not found: ${advice}`;
}

async function requireSwift(swift: string): Promise<void> {
  const hindrance = metalHindrance(swift) ?? (await versionHindrance(swift));
  if (hindrance !== undefined) throw new MferenceError("native.build", hindrance);
}

/** What is wrong with the version of Swift. A Mac without developer tools has a `swift` that only says so. */
async function versionHindrance(swift: string): Promise<string | undefined> {
  const child = Bun.spawn([swift, "--version"], {
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [output, errors] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  const version = /Swift version (\d+)[.\d]*/.exec(output);
  if (Number(version?.[1] ?? 0) >= SWIFT_LEAST) return undefined;
  const found = version?.[0] ?? `"${`${errors}\n${output}`.trim().split("\n")[0]}"`;
  const advice =
    process.platform === "darwin"
      ? "Xcode 16 or its command-line tools (`xcode-select --install`, or Software Update) bring it; --device cpu does without"
      : "Debian 13's `swiftlang` is new enough";
  return `the Metal device needs Swift ${SWIFT_LEAST} and \`${swift} --version\` says ${found}: ${advice}`;
}

/** The library holds the generated text, so shaders edited since would be left out of it silently. */
function requireFreshShaders(): void {
  if (readFileSync(join(ROOT, SHADER_HEADER), "utf8") === renderShaderHeader()) return;
  throw new MferenceError(
    "native.build",
    `${SHADER_HEADER} is older than shaders/: run \`bun run gen\``,
  );
}

/** Everything the library is made from. The software Metal is no part of it on macOS. */
function sourceFiles(): string[] {
  const folders = ["include", "swift/Mference", "shaders"];
  if (process.platform !== "darwin") folders.push("swift/SoftMetal");
  const inside = folders.flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && !entry.name.endsWith(".md"))
      .map((entry) => join(entry.parentPath, entry.name).slice(ROOT.length + 1)),
  );
  return ["Package.swift", ...inside.toSorted()];
}
