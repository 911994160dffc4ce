/**
 * Every check that a change must pass, quickest first: types, lint, format, generated files, tests.
 * Stops at the first one that fails. `--fast` leaves the tests out.
 */
import { join } from "node:path";

interface Step {
  readonly name: string;
  readonly command: readonly string[];
  /** What to do when it fails. */
  readonly remedy: string;
}

const ROOT = join(import.meta.dir, "..");
const BUN = process.execPath;
const OXLINT = join(ROOT, "node_modules/.bin/oxlint");

const STEPS: readonly Step[] = [
  { name: "types", command: [BUN, "check"], remedy: "mend the types listed above" },
  {
    name: "lint",
    command: [BUN, OXLINT, "--deny-warnings"],
    remedy:
      "mend the lines listed above; an exception is `oxlint-disable-next-line RULE -- reason`",
  },
  { name: "format", command: [BUN, "fmt", "--check"], remedy: "run `bun fmt`" },
  {
    name: "generated files",
    command: [BUN, "scripts/gen-kernels.ts", "--check"],
    remedy: "run `bun run gen`",
  },
  {
    name: "shaders",
    command: [BUN, "scripts/gen-shaders.ts", "--check"],
    remedy: "run `bun run gen`",
  },
  { name: "tests", command: [BUN, "test"], remedy: "mend the tests that failed above" },
];

/** Runs one step; true when it passed. A step's output is shown only when it fails. */
async function run({ name, command, remedy }: Step): Promise<boolean> {
  const started = performance.now();
  const isLong = name === "tests";
  const child = Bun.spawn([...command], {
    cwd: ROOT,
    stdout: isLong ? "inherit" : "pipe",
    stderr: isLong ? "inherit" : "pipe",
  });
  const [stdout, stderr, status] = await Promise.all([
    isLong ? "" : new Response(child.stdout).text(),
    isLong ? "" : new Response(child.stderr).text(),
    child.exited,
  ]);
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  if (status === 0) {
    console.log(`${name}: ok (${seconds} s)`);
    return true;
  }
  console.log(`${stdout}${stderr}`.trimEnd());
  console.log(`${name}: failed with status ${status} after ${seconds} s: ${remedy}`);
  return false;
}

const isFast = process.argv.includes("--fast");
for (const step of STEPS) {
  if (isFast && step.name === "tests") continue;
  if (!(await run(step))) process.exit(1);
}
