/**
 * Builds the CPU device into small drivers and runs them where `bun test` cannot:
 *
 *   --arm64   cross-compiled, under user-mode QEMU, on the paths neon and portable
 *   --asan    under the address and undefined-behaviour sanitizers
 *   --tsan    under the thread sanitizer
 *   --all     all of them (the default)
 *
 * Each replays the conformance cases on every path, tries every kernel with impossible parameters, and
 * strains the core from several threads. A tool
 * that is missing is said in a sentence and fails only with --strict. Ends with "N passed, N failed".
 */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { basename, join } from "node:path";
import { deviceUnits } from "../src/native/build.ts";
import { env } from "../src/util/env.ts";
import { exportCase } from "../tests/conformance/export.ts";
import { allCases } from "../tests/conformance/index.ts";

interface Target {
  readonly flag: string;
  readonly title: string;
  readonly compiler: string;
  readonly arch: string;
  readonly flags: readonly string[];
  /** Runs the drivers; empty where this processor does. */
  readonly runner: readonly string[];
  readonly paths: readonly string[];
  readonly threads: number;
  readonly stressRounds: number;
  /** Rounds over all kernels with impossible parameters. */
  readonly fuzzRounds: number;
  /** Debian packages that bring the tools. */
  readonly packages: string;
}

/** What ran: numbers of cases, or nothing because something is missing. */
interface Outcome {
  readonly passed: number;
  readonly failed: number;
}

const ROOT = join(import.meta.dir, "..");
/** No dispatch is too small for several threads here. */
const GANGS = "-DMF_SOLO_BYTES=0";
const SANITIZED = ["-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", GANGS];
const NATIVE = {
  compiler: env("CC") ?? "cc",
  arch: process.arch,
  runner: [],
  paths: process.arch === "arm64" ? ["portable", "neon"] : ["portable", "avx2", "avx512"],
  threads: 3,
  packages: "gcc libc6-dev",
} as const;

const TARGETS: readonly Target[] = [
  {
    flag: "--arm64",
    title: "arm64 under QEMU",
    compiler: "aarch64-linux-gnu-gcc",
    arch: "arm64",
    flags: ["-static", GANGS],
    runner: ["qemu-aarch64"],
    paths: ["portable", "neon"],
    threads: 2,
    stressRounds: 1,
    fuzzRounds: 2,
    packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
  },
  {
    ...NATIVE,
    flag: "--asan",
    title: "address and undefined-behaviour sanitizers",
    flags: [...SANITIZED, "-fsanitize=address,undefined"],
    stressRounds: 3,
    fuzzRounds: 100,
  },
  {
    ...NATIVE,
    flag: "--tsan",
    title: "thread sanitizer",
    flags: [...SANITIZED, "-fsanitize=thread"],
    stressRounds: 3,
    fuzzRounds: 20,
  },
];

interface Finished {
  readonly status: number;
  readonly output: string;
}

async function run(command: readonly string[]): Promise<Finished> {
  const child = Bun.spawn([...command], { cwd: ROOT, stdout: "pipe", stderr: "pipe" });
  const [stdout, stderr, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { status, output: `${stdout}${stderr}`.trim() };
}

/** Runs a command that must succeed. */
async function make(command: readonly string[]): Promise<void> {
  const { status, output } = await run(command);
  if (status !== 0) throw new Error(`${command[0]} failed (status ${status}):\n${output}`);
}

/** Objects of the device, and from them the drivers; the folder that holds the drivers. */
async function build(target: Target, folder: string): Promise<void> {
  mkdirSync(folder, { recursive: true });
  const drivers = ["replay", "fuzz", "stress"];
  const device = deviceUnits(target.arch);
  const flags = device[0]!.flags;
  const units = [
    ...device,
    ...drivers.map((name) => ({ source: `cpu/driver/${name}.c`, flags: [...flags] })),
  ];
  const objectOf = (source: string): string => join(folder, `${basename(source, ".c")}.o`);
  const waiting = [...units];
  const compileNext = async (): Promise<void> => {
    for (let unit = waiting.shift(); unit !== undefined; unit = waiting.shift()) {
      const { source, flags } = unit;
      await make([
        target.compiler,
        ...flags,
        ...target.flags,
        "-c",
        source,
        "-o",
        objectOf(source),
      ]);
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, compileNext));
  const objects = device.map(({ source }) => objectOf(source));
  for (const name of drivers) {
    const inputs = [objectOf(name), ...objects];
    await make([
      target.compiler,
      ...target.flags,
      "-o",
      join(folder, name),
      ...inputs,
      "-pthread",
      "-lm",
    ]);
  }
}

/** Reads a driver's last line; a driver that died counts as one failure. */
function judge(title: string, { status, output }: Finished): Outcome {
  if (status === 3) {
    console.log(`${title}: skipped, ${output}`);
    return { passed: 0, failed: 0 };
  }
  const counts = /(\d+) passed, (\d+) failed/.exec(output);
  const passed = Number(counts?.[1] ?? 0);
  const failed = Number(counts?.[2] ?? 0);
  const isDead = counts === null || (status !== 0 && failed === 0);
  console.log(`${title}: ${isDead ? `died with status ${status}` : counts[0]}`);
  if (status !== 0) console.log(output);
  return { passed, failed: isDead ? failed + 1 : failed };
}

async function check(target: Target, work: string, cases: readonly string[]): Promise<Outcome> {
  const { title, compiler, runner, packages } = target;
  const missing = [compiler, ...runner].filter((tool) => Bun.which(tool) === null);
  if (missing.length > 0) {
    console.log(`${title}: skipped, ${missing.join(" and ")} not found (apt install ${packages})`);
    return { passed: 0, failed: process.argv.includes("--strict") ? 1 : 0 };
  }
  const folder = join(work, target.flag.slice(2));
  await build(target, folder);
  const outcomes: Outcome[] = [];
  for (const path of target.paths) {
    const command = [...runner, join(folder, "replay"), path, String(target.threads), ...cases];
    outcomes.push(judge(`${title}, ${path}`, await run(command)));
    const fuzz = [...runner, join(folder, "fuzz"), path, String(target.fuzzRounds)];
    outcomes.push(judge(`${title}, ${path}, impossible parameters`, await run(fuzz)));
  }
  const stress = [...runner, join(folder, "stress"), String(target.stressRounds)];
  outcomes.push(judge(`${title}, strain`, await run(stress)));
  return total(outcomes);
}

const total = (outcomes: readonly Outcome[]): Outcome => ({
  passed: outcomes.reduce((sum, { passed }) => sum + passed, 0),
  failed: outcomes.reduce((sum, { failed }) => sum + failed, 0),
});

/** Writes the cases that an emulator or a sanitizer can run in good time; their paths. */
async function exportCases(folder: string): Promise<string[]> {
  const light = allCases.filter(({ isHeavy }) => !isHeavy);
  const files = light.map((_, i) => join(folder, "cases", `${i}.case`));
  for (const [i, conformanceCase] of light.entries()) {
    await Bun.write(files[i]!, exportCase(conformanceCase));
  }
  return files;
}

const wanted = TARGETS.filter(({ flag }) => process.argv.includes(flag));
const work = mkdtempSync(join(env("TMPDIR") ?? tmpdir(), "mference-check-"));
try {
  const cases = await exportCases(work);
  const outcomes: Outcome[] = [];
  for (const target of wanted.length > 0 ? wanted : TARGETS) {
    outcomes.push(await check(target, work, cases));
  }
  const { passed, failed } = total(outcomes);
  console.log(`${passed} passed, ${failed} failed`);
  if (failed > 0) process.exitCode = 1;
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
} finally {
  rmSync(work, { recursive: true, force: true });
}
