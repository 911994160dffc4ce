/**
 * Which lines of swift/Mference the tests execute: builds the library with counters, runs the tests of the
 * Metal device on it, and lists every line that none of them reached. Where Swift cannot run, in the same
 * Debian 13 as scripts/check-metal.ts. Ends with "N passed, N failed": a line that no test can reach is
 * named below with the reason, and any other one fails.
 *
 *   bun scripts/cover-metal.ts [--root FOLDER]
 */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { buildMetalLibrary } from "../src/native/build-metal.ts";
import { ROOT } from "../src/native/built.ts";
import { findSwift, inRoot } from "./swift-here.ts";

const { values } = parseArgs({
  options: { root: { type: "string" }, inside: { type: "boolean", default: false } },
});
const BUN = process.execPath;

interface Unreachable {
  readonly file: string;
  /** Part of the line. */
  readonly text: string;
  readonly why: string;
}

/** Lines that no test reaches: none at present. */
const UNREACHABLE: readonly Unreachable[] = [];

/** Counters live in the profile's file itself, because Bun ends without what runs at a normal exit. */
const FLAGS = [
  "-profile-generate",
  "-profile-coverage-mapping",
  "-Xllvm",
  "-runtime-counter-relocation",
];
const SUITES = [
  "tests/native/device.test.ts",
  "tests/native/metal.test.ts",
  "tests/ops",
  "tests/e2e/golden.test.ts",
];
/** Names of dispatches are for validated runs only. */
const CHECKED_SUITES = ["tests/ops/stream.test.ts"];

function tool(name: string): string {
  return Bun.which(name, { PATH: `/usr/libexec/swift/bin:${process.env["PATH"]}` }) ?? name;
}

async function output(command: readonly string[], variables: Record<string, string> = {}) {
  const child = Bun.spawn([...command], {
    cwd: ROOT,
    env: { ...process.env, ...variables },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, errors, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (status === 0) return out;
  throw new Error(
    `${command.join(" ")} ended with ${status}:\n${errors.slice(-4000)}\n${out.slice(-4000)}`,
  );
}

interface Line {
  readonly file: string;
  readonly number: number;
  readonly text: string;
  readonly isRun: boolean;
}

/** Lines with a count, out of `llvm-cov show`: `  12|   3|text`. */
function linesOf(shown: string): Line[] {
  let file = "";
  const lines: Line[] = [];
  for (const row of shown.split("\n")) {
    const name = /^(\/.*\.swift):$/.exec(row)?.[1];
    if (name !== undefined) file = basename(name);
    const [, number, count, text = ""] = /^\s*(\d+)\|\s*([\d.kMGE]+)\|(.*)$/.exec(row) ?? [];
    if (number === undefined) continue;
    lines.push({ file, number: Number(number), text: text.trim(), isRun: count !== "0" });
  }
  return lines;
}

async function cover(scratch: string): Promise<boolean> {
  const flags = FLAGS.flatMap((flag) => ["-Xswiftc", flag]);
  const library = await buildMetalLibrary({ flags, onProgress: (text) => console.log(text) });
  const variables = {
    MFERENCE_LIBRARY: library,
    MFERENCE_TEST_DEVICE: "metal",
    LLVM_PROFILE_FILE: join(scratch, "run-%p%c.profraw"),
  };
  const command = [BUN, "test", "--timeout=600000"];
  await output([...command, ...SUITES], variables);
  await output([...command, ...CHECKED_SUITES], { ...variables, MTL_SHADER_VALIDATION: "1" });
  const profiles = readdirSync(scratch).map((name) => join(scratch, name));
  const merged = join(scratch, "merged.profdata");
  await output([tool("llvm-profdata"), "merge", "-sparse", "-o", merged, ...profiles]);
  const sources = join(ROOT, "swift/Mference");
  const shown = await output([
    tool("llvm-cov"),
    "show",
    library,
    `-instr-profile=${merged}`,
    "-show-branches=count",
    sources,
  ]);
  return report(linesOf(shown));
}

function report(lines: readonly Line[]): boolean {
  const known = (line: Line) =>
    UNREACHABLE.find(({ file, text }) => line.file === file && line.text.includes(text));
  const files = [...new Set(lines.map(({ file }) => file))].toSorted();
  for (const file of files) {
    const own = lines.filter((line) => line.file === file);
    console.log(
      `${file.padEnd(24)} ${own.filter(({ isRun }) => isRun).length} of ${own.length} lines`,
    );
  }
  let failed = 0;
  for (const line of lines.filter(({ isRun }) => !isRun)) {
    const reason = known(line)?.why;
    if (reason === undefined) failed += 1;
    console.log(`${line.file}:${line.number}: ${line.text}  (${reason ?? "NOT RUN"})`);
  }
  const passed = lines.filter(({ isRun }) => isRun).length;
  console.log(`${passed} passed, ${failed} failed`);
  return failed === 0 && passed > 0;
}

async function main(): Promise<number> {
  const place = values.inside ? { kind: "here" as const } : await findSwift(values.root);
  if (place.kind === "none") throw new Error(place.reason);
  if (place.kind === "chroot") {
    const variables = [`MFERENCE_BUILD_DIR=${join(ROOT, "build/metal-half")}`];
    const command = inRoot(place.root, [...variables, BUN, "scripts/cover-metal.ts", "--inside"]);
    return await Bun.spawn(command, { stdout: "inherit", stderr: "inherit" }).exited;
  }
  const scratch = mkdtempSync(join(tmpdir(), "mference-cover-"));
  try {
    return (await cover(scratch)) ? 0 : 1;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

process.exit(await main());
