/**
 * What only a Mac can show, once, by its owner: that the Swift library compiles there, that the kernels agree
 * with their references on a real GPU, that the goldens and the demo's tokens hold, and how fast it is.
 * Everything goes into one report file to send back; nothing leaves the machine by itself.
 *
 *   bun scripts/prove-on-mac.ts [--report FILE] [--quick]
 *
 * Takes some ten minutes; close other programs and plug the machine in, for the benchmark. `--quick` does
 * with a few prompts and runs. Elsewhere than on a Mac it says what it would do, and `--anyway` does it.
 */
import { appendFileSync, writeFileSync } from "node:fs";
import { cpus, release, totalmem } from "node:os";
import { parseArgs } from "node:util";
import { ROOT } from "../src/native/built.ts";

const { values } = parseArgs({
  options: {
    report: { type: "string", default: "mference-mac-report.txt" },
    quick: { type: "boolean", default: false },
    anyway: { type: "boolean", default: false },
  },
});
const BUN = process.execPath;
const LINES_MAX = 600;

interface Step {
  readonly title: string;
  readonly command: readonly string[];
  /** Whether a failure means that something is wrong; facts of the machine may be missing. */
  readonly isProof: boolean;
}

const fact = (title: string, ...command: string[]): Step => ({ title, command, isProof: false });
const proof = (title: string, ...command: string[]): Step => ({
  title,
  command: [BUN, ...command],
  isProof: true,
});

function steps(): Step[] {
  const prompts = values.quick ? "3" : "200";
  const runs = values.quick ? "1" : "7";
  const fixtures = ["gemma4-a", "gemma4-a-e16", "gemma4-a-h320"];
  const bench = (device: string): Step =>
    proof(`speed on ${device}`, "bench/decode.ts", "--device", device, "--runs", runs, "--json");
  return [
    fact("system", "sw_vers"),
    fact("chip", "sysctl", "machdep.cpu.brand_string", "hw.memsize", "hw.perflevel0.physicalcpu"),
    fact("power", "pmset", "-g", "batt"),
    fact("Swift", "swift", "--version"),
    fact("revision", "git", "log", "-1", "--format=%H %cI"),
    fact("changes", "git", "status", "--short"),
    proof("this machine", "src/cli/main.ts", "doctor", "--device", "metal", "--json"),
    proof("the whole test suite", "test"),
    proof(
      "both devices",
      "scripts/check-metal.ts",
      "--strict",
      "--prompts",
      values.quick ? "3" : "20",
    ),
    proof(
      "golden fixtures on Metal",
      "scripts/check-golden.ts",
      "--device",
      "metal",
      ...fixtures.map((name) => `tests/fixtures/golden/${name}`),
    ),
    proof("tokens of both devices", "scripts/compare-devices.ts", "--prompts", prompts),
    bench("metal"),
    bench("cpu"),
  ];
}

function write(text: string): void {
  appendFileSync(values.report, `${text}\n`);
}

/** Runs a step into the report; true unless a proof failed. */
async function take({ title, command, isProof }: Step): Promise<boolean> {
  const started = performance.now();
  process.stdout.write(`${title} ... `);
  let output = "";
  let status = 1;
  try {
    const child = Bun.spawn([...command], {
      cwd: ROOT,
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
    });
    const [out, errors, code] = await Promise.all([
      new Response(child.stdout).text(),
      new Response(child.stderr).text(),
      child.exited,
    ]);
    output = `${out}\n${errors}`.trim();
    status = code;
  } catch (error) {
    output = String(error);
  }
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  const verdict = status === 0 ? "ok" : isProof ? `FAILED, status ${status}` : "not known";
  console.log(`${verdict} (${seconds} s)`);
  const name = command[0] === BUN ? "bun" : command[0];
  write(`\n## ${title}: ${verdict} (${seconds} s)\n$ ${[name, ...command.slice(1)].join(" ")}`);
  write(output.split("\n").slice(-LINES_MAX).join("\n"));
  return status === 0 || !isProof;
}

async function prove(): Promise<boolean> {
  const machine = `${process.platform} ${process.arch} ${release()}, ${cpus()[0]?.model}`;
  writeFileSync(
    values.report,
    `# Mference on a Mac\n${new Date().toISOString()}, ${machine}, ${totalmem()} bytes, Bun ${Bun.version}\n`,
  );
  let failed = 0;
  for (const step of steps()) if (!(await take(step))) failed += 1;
  const proofs = steps().filter(({ isProof }) => isProof).length;
  const summary = `${proofs - failed} passed, ${failed} failed`;
  write(`\n${summary}`);
  console.log(`${summary}; please send back ${values.report}`);
  return failed === 0;
}

if (process.platform === "darwin" || values.anyway) {
  process.exit((await prove()) ? 0 : 1);
}
console.log("This script is for a Mac. There it would run:");
for (const { title, command } of steps()) {
  console.log(`  ${title}: ${command.map((word) => (word === BUN ? "bun" : word)).join(" ")}`);
}
