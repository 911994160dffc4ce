/**
 * Builds the program as one file that needs neither this repository nor Bun: TypeScript, the device's
 * library, the tokenizer's, and with `--with-demo` the demo model. `--outfile FILE` names it
 * (build/mference); `--complete` refuses to go without the tokenizer library. Everything that a system must bring is found out here and stated by the program.
 */
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { demoSource } from "../src/install/demo.ts";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { buildMetalLibrary } from "../src/native/build-metal.ts";
import { buildTokenizerLibrary } from "../src/native/build-tokenizer.ts";
import { buildFolder, ROOT } from "../src/native/built.ts";
import type { EmbeddedFile } from "../src/util/embedded.ts";
import { env } from "../src/util/env.ts";
import { MferenceError, sentenceOf } from "../src/util/errors.ts";
import { formatBytes } from "../src/util/units.ts";

/** The files of threads. */
const WORKERS = ["src/engine/worker.ts", "src/install/hash-worker.ts"];
/** Oldest macOS that the Metal device runs on, as Package.swift has it. */
const OLDEST_MACOS = "macOS 15";

/** Paths of what goes in, by what it is for. */
type Contents = Readonly<Record<string, readonly string[]>>;

interface Wishes {
  readonly outfile: string;
  readonly isWithDemo: boolean;
  /** Whether a binary without the tokenizer library is none. */
  readonly isComplete: boolean;
}

async function gatherContents({ isWithDemo, isComplete }: Wishes): Promise<Contents> {
  const onProgress = (sentence: string): void => console.error(sentence);
  const cpu = await buildDeviceLibrary({ onProgress });
  // What stands in for Metal elsewhere is test equipment.
  const metal =
    process.platform === "darwin" ? { metal: [await buildMetalLibrary({ onProgress })] } : {};
  const options = { buildDir: buildFolder(undefined), isForced: true, onProgress };
  const tokenizer = await buildTokenizerLibrary(options);
  if ("unavailable" in tokenizer) {
    if (isComplete) throw new MferenceError("native.build", tokenizer.unavailable);
    console.error(`without the tokenizer library: ${tokenizer.unavailable}`);
  }
  return {
    cpu: [cpu],
    ...metal,
    ...("path" in tokenizer ? { tokenizer: [tokenizer.path] } : {}),
    ...(isWithDemo ? { demo: filesOf(demoSource()) } : {}),
  };
}

function filesOf(folder: string): string[] {
  const names = fs.readdirSync(folder).toSorted();
  return names.filter((name) => name !== "README.md").map((name) => path.join(folder, name));
}

/** What libraries and Bun itself need of the system that runs them. */
async function systemNeeds(binaries: readonly string[]): Promise<string> {
  if (process.platform === "darwin") return `${OLDEST_MACOS} or newer`;
  const [versions, shared] = [new Set<string>(), new Set<string>()];
  for (const binary of binaries) {
    const text = await outputOf(["objdump", "-Tp", binary]);
    for (const [, version] of text.matchAll(/\bGLIBC_(\d+\.\d+(?:\.\d+)?)\b/g)) {
      versions.add(version!);
    }
    for (const [, name] of text.matchAll(/^\s*NEEDED\s+(\S+)/gm)) shared.add(name!);
  }
  const oldest = [...versions].toSorted((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const others = [...shared].filter((name) => !isOfGlibc(name)).toSorted();
  return [`glibc ${oldest.at(-1)} or newer`, ...others].join(", ");
}

const isOfGlibc = (name: string): boolean => /^(lib(c|m|dl|pthread|rt)\.so|ld-linux)/.test(name);

async function outputOf(command: readonly string[]): Promise<string> {
  const child = Bun.spawn([...command], { stdin: "ignore", stdout: "pipe", stderr: "inherit" });
  const [text, status] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  if (status === 0) return text;
  throw new MferenceError("native.build", `${command.join(" ")} failed with status ${status}`);
}

/** The entry of the binary: registers what it carries, then runs the program. */
async function entryText(contents: Contents, needs: string): Promise<string> {
  const imports: string[] = [];
  const groups: string[] = [];
  for (const [group, files] of Object.entries(contents)) {
    const entries: string[] = [];
    for (const file of files) {
      const name = `file${imports.length}`;
      imports.push(`import ${name} from ${JSON.stringify(file)} with { type: "file" };`);
      const { path: _, ...facts } = await describe(file);
      entries.push(`{ path: ${name}, ...${JSON.stringify(facts)} }`);
    }
    groups.push(`${group}: [${entries.join(", ")}]`);
  }
  const from = (source: string): string => JSON.stringify(path.join(ROOT, "src", source));
  return [
    `import { registerEmbedded } from ${from("util/embedded.ts")};`,
    `import { main } from ${from("cli/program.ts")};`,
    ...imports,
    `registerEmbedded({ needs: ${JSON.stringify(needs)}, files: { ${groups.join(", ")} } });`,
    "await main();",
    "",
  ].join("\n");
}

async function describe(file: string): Promise<EmbeddedFile> {
  const hasher = new Bun.CryptoHasher("sha256");
  for await (const tile of Bun.file(file).stream()) hasher.update(tile);
  const sizeBytes = fs.statSync(file).size;
  // A library's own hash is of its sources; outside it is named after its content.
  const name = path.basename(file).replace(/-[0-9a-f]{16}(?=\.\w+$)/, "");
  return { name, path: file, sizeBytes, sha256: hasher.digest("hex") };
}

/** Builds the binary and returns what it needs of a system. */
async function buildBinary(wishes: Wishes): Promise<string> {
  if (env("MFERENCE_LIBRARY") !== undefined) {
    throw new MferenceError(
      "usage.value",
      "unset MFERENCE_LIBRARY: a binary carries what is built here",
    );
  }
  const contents = await gatherContents(wishes);
  const libraries = ["cpu", "metal", "tokenizer"].flatMap((group) => contents[group] ?? []);
  const needs = await systemNeeds([process.execPath, ...libraries]);
  fs.mkdirSync(buildFolder(undefined), { recursive: true });
  const folder = fs.mkdtempSync(path.join(buildFolder(undefined), "binary-"));
  try {
    const entry = path.join(folder, "main.ts");
    fs.writeFileSync(entry, await entryText(contents, needs));
    await Bun.build({
      // Threads load their files by name, from beside the program's.
      entrypoints: [entry, ...WORKERS.map((file) => path.join(ROOT, file))],
      naming: { entry: "[name].[ext]" },
      target: "bun",
      format: "esm",
      // Compiled ahead the program starts sooner by a quarter; names stay for the stack of a fault.
      bytecode: true,
      minify: { whitespace: true, syntax: true, identifiers: false },
      // Nothing in the folder where the program is used may change what it does.
      compile: {
        outfile: path.resolve(wishes.outfile),
        autoloadDotenv: false,
        autoloadBunfig: false,
        autoloadTsconfig: false,
        autoloadPackageJson: false,
      },
    });
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
  return needs;
}

const { values } = parseArgs({
  options: {
    outfile: { type: "string", default: path.join(buildFolder(undefined), "mference") },
    "with-demo": { type: "boolean", default: false },
    complete: { type: "boolean", default: false },
  },
});
try {
  const { outfile, complete: isComplete, "with-demo": isWithDemo } = values;
  const needs = await buildBinary({ outfile, isWithDemo, isComplete });
  const bytes = fs.statSync(outfile).size;
  console.log(`${outfile}: ${formatBytes(bytes)}; needs ${needs}`);
} catch (error) {
  const causes = error instanceof AggregateError ? error.errors : [];
  console.error([error, ...causes].map(sentenceOf).join("\n"));
  process.exit(1);
}
