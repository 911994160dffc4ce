/**
 * The Metal half of the checks, on a Mac or, with a software Metal, where Swift can be had on Linux: builds
 * the library, and runs the conformance cases, plain and checked, the tests of the device, the golden
 * fixtures, the demo models' tokens against the CPU's, and a chat. Prints both devices in one report and
 * last "N passed, N failed, N skipped".
 *
 *   bun scripts/check-metal.ts [--strict] [--root FOLDER] [--prompts 20]
 *
 * `--strict`: where Swift is not to be had, that is a failure. `--root`: the folder of a Debian 13 that is
 * made where this system cannot run Swift itself.
 */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { buildMetalLibrary } from "../src/native/build-metal.ts";
import { ROOT } from "../src/native/built.ts";
import { sentenceOf } from "../src/util/errors.ts";
import type { ConformanceReport } from "../tests/conformance/report.ts";
import { findSwift, inRoot } from "./swift-here.ts";

const { values } = parseArgs({
  options: {
    strict: { type: "boolean", default: false },
    root: { type: "string" },
    prompts: { type: "string", default: "20" },
    inside: { type: "boolean", default: false },
  },
});
const BUN = process.execPath;
const ON_MAC = process.platform === "darwin";
const scratch = mkdtempSync(join(tmpdir(), "mference-metal-"));

interface Counts {
  passed: number;
  failed: number;
  skipped: number;
}

/** One process of the half. */
interface Task {
  readonly title: string;
  readonly command: readonly string[];
  readonly variables?: Readonly<Record<string, string>>;
  /** Counts out of its output; by default those of `bun test` or "N passed, N failed". */
  readonly count?: (output: string) => Counts;
}

const METAL = { MFERENCE_TEST_DEVICE: "metal" };
const CHECKED = { ...METAL, MTL_SHADER_VALIDATION: "1" };
const TIMEOUT = "--timeout=600000";
const CONFORMANCE = [BUN, "test", TIMEOUT, "tests/native/conformance.test.ts"];
const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.";

const reportFile = (name: string): string => join(scratch, `${name}.json`);

function tasks(): Task[] {
  const conformance = (name: string, variables: Record<string, string>): Task => ({
    title: `conformance cases, ${name}`,
    command: CONFORMANCE,
    variables: { ...variables, MFERENCE_TEST_REPORT: reportFile(name) },
  });
  const suites = [
    "tests/native/device.test.ts",
    "tests/native/metal.test.ts",
    "tests/ops",
    "tests/kv",
    "tests/experts",
    "tests/engine",
    "tests/conformance/products.test.ts",
  ];
  const swiftTests: Task = {
    title: "the software Metal itself",
    command: ["swift", "test", "--scratch-path", join(ROOT, "build/metal-half/swift-test")],
    count: countSwiftTests,
  };
  return [
    conformance("Metal checked", CHECKED),
    conformance("Metal", METAL),
    ...(ON_MAC ? [] : [swiftTests]),
    {
      title: "golden fixtures, Metal",
      command: [BUN, "test", TIMEOUT, "tests/e2e/golden.test.ts"],
      variables: METAL,
    },
    {
      title: "the device and what builds on it, Metal",
      command: [BUN, "test", TIMEOUT, ...suites],
      variables: METAL,
    },
    ...["demo", "demo-qwen36"].map((model) => ({
      title: `tokens of ${model}, Metal against CPU`,
      command: [BUN, "scripts/compare-devices.ts", "--model", model, "--prompts", values.prompts],
    })),
    conformance("CPU", { MFERENCE_TEST_DEVICE: "cpu" }),
    {
      title: "a chat on Metal",
      command: [BUN, "src/cli/main.ts", "chat", "--device", "metal", "--prompt", QUESTION],
      variables: { MFERENCE_HOME: join(scratch, "home") },
      count: (output) => tally(output.split("\n").includes(ANSWER)),
    },
  ];
}

const tally = (isGood: boolean): Counts => ({
  passed: isGood ? 1 : 0,
  failed: isGood ? 0 : 1,
  skipped: 0,
});

/** The last "N pass", "N passed" and so on. */
function countLines(output: string): Counts {
  const last = (word: string): number => {
    const found = [...output.matchAll(new RegExp(`(?:^|[ ,])(\\d+) ${word}\\b`, "gm"))].at(-1);
    return Number(found?.[1] ?? 0);
  };
  return {
    passed: last("pass(?:ed)?"),
    failed: last("fail(?:ed)?"),
    skipped: last("skip(?:ped)?"),
  };
}

/** Swift's tests say how many there were, and mark each one that failed. */
function countSwiftTests(output: string): Counts {
  const total = Number(/Test run with (\d+) tests?/.exec(output)?.[1] ?? 0);
  const failed = output.split("\n").filter((line) => /Test \S+ failed after/.test(line)).length;
  return { passed: Math.max(total - failed, 0), failed, skipped: 0 };
}

async function runTask(task: Task): Promise<Counts> {
  const started = performance.now();
  const child = Bun.spawn([...task.command], {
    cwd: ROOT,
    env: { ...process.env, ...task.variables },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [output, errors, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  const all = `${output}\n${errors}`;
  const counts = (task.count ?? countLines)(all);
  // A process that ends badly, or ran nothing, has failed whatever it counted.
  const isWrong = status !== 0 || counts.passed + counts.failed === 0;
  if (isWrong && counts.failed === 0) counts.failed = 1;
  if (counts.failed > 0) console.log(all.trim().split("\n").slice(-80).join("\n"));
  const seconds = ((performance.now() - started) / 1000).toFixed(0);
  const { passed, failed, skipped } = counts;
  console.log(
    `${task.title}: ${passed} passed, ${failed} failed, ${skipped} skipped (${seconds} s)`,
  );
  return counts;
}

/** Two at a time: most of them keep one core busy. */
async function runAll(list: readonly Task[]): Promise<Counts> {
  const total: Counts = { passed: 0, failed: 0, skipped: 0 };
  const waiting = [...list];
  const work = async (): Promise<void> => {
    for (let task = waiting.shift(); task !== undefined; task = waiting.shift()) {
      const counts = await runTask(task);
      for (const key of ["passed", "failed", "skipped"] as const) total[key] += counts[key];
    }
  };
  await Promise.all([work(), work()]);
  return total;
}

/** The devices side by side, a line for each kernel. */
function printReport(): void {
  const names = ["CPU", "Metal", "Metal checked"];
  const reports = names.flatMap((name) => {
    try {
      return [JSON.parse(readFileSync(reportFile(name), "utf8")) as ConformanceReport];
    } catch {
      return [{}];
    }
  });
  console.log("\nConformance: cases passed of those run; largest error / its tolerance");
  console.log(["kernel".padEnd(22), ...names.map((name) => name.padEnd(30))].join(""));
  for (const kernel of Object.keys(reports[0]!)) {
    const cells = reports.map((report) => {
      const found = report[kernel];
      if (found === undefined) return "not run";
      const { passed, run, difference, allowed } = found;
      const error =
        allowed === 0 ? "exact" : `${difference.toExponential(1)} / ${allowed.toExponential(1)}`;
      return `${passed} of ${run}, ${error}`;
    });
    console.log([kernel.padEnd(22), ...cells.map((cell) => cell.padEnd(30))].join(""));
  }
}

async function runHalf(): Promise<Counts> {
  const started = performance.now();
  try {
    await buildMetalLibrary({ onProgress: (sentence) => console.log(sentence) });
  } catch (error) {
    console.log(sentenceOf(error));
    return tally(false);
  }
  const seconds = ((performance.now() - started) / 1000).toFixed(0);
  console.log(`the Metal library: built (${seconds} s)`);
  const counts = await runAll(tasks());
  counts.passed += 1;
  printReport();
  return counts;
}

/** Runs this script where Swift is. */
async function runElsewhere(root: string): Promise<number> {
  const command = [BUN, "scripts/check-metal.ts", "--inside", "--prompts", values.prompts];
  // Built there, for another libc: apart from what this system loads.
  const variables = [`MFERENCE_BUILD_DIR=${join(ROOT, "build/metal-half")}`];
  const child = Bun.spawn(inRoot(root, [...variables, ...command]), {
    stdin: "ignore",
    stdout: "inherit",
    stderr: "inherit",
  });
  return await child.exited;
}

async function main(): Promise<number> {
  const place = values.inside ? { kind: "here" as const } : await findSwift(values.root);
  if (place.kind === "none") {
    console.log(`the Metal half did not run: ${place.reason}`);
    console.log(values.strict ? "0 passed, 1 failed" : "0 passed, 0 failed, 1 skipped");
    return values.strict ? 1 : 0;
  }
  if (place.kind === "chroot") return await runElsewhere(place.root);
  const { passed, failed, skipped } = await runHalf();
  console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
  return failed === 0 ? 0 : 1;
}

let exitCode = 1;
try {
  exitCode = await main();
} finally {
  rmSync(scratch, { recursive: true, force: true });
}
process.exit(exitCode);
