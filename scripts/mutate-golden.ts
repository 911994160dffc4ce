/**
 * Proves that the golden tests notice mistakes: applies one mutation at a time to a temporary copy of the
 * sources, runs the golden check there and prints a markdown table.
 *
 *   bun scripts/mutate-golden.ts [--only NAME]... [--list]
 *
 * Exits 0 when each mutation was noticed, 1 when one was not, 2 when a mutation no longer applies, does not
 * compile or breaks more than it should. Every C mutation builds the device again: a few minutes in all,
 * which is why this is no part of `bun test`. The tree itself is only read.
 */
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { setPriority, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { z } from "zod";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { MferenceError, sentenceOf } from "../src/util/errors.ts";
import { checkFixture, type StageResult } from "../tests/golden/check.ts";
import { readFixture } from "../tests/golden/fixture.ts";
import {
  type Mutation,
  type MutationList,
  mutationLists,
} from "../tests/golden/mutations/index.ts";

const ROOT = join(import.meta.dir, "..");
const SELF = "scripts/mutate-golden.ts";
const COPIED = ["src", "cpu", "include", "scripts", "tests/golden", "tests/reference"];
const COPIED_FILES = ["package.json", "tsconfig.json"];
const LINKED = ["node_modules", "tests/fixtures"];
/** Far beyond a build and a check: a mutation that never ends is not a result. */
const CHECK_MS_MAX = 600_000;
/** Lower priority than whatever else the machine does. */
const NICENESS = 10;
const UNCHANGED: Mutation = { name: "none", title: "none", edits: [] };

/** JSON has no infinity and no NaN: null stands for both. */
const measured = z
  .number()
  .nullable()
  .transform((value) => value ?? Number.POSITIVE_INFINITY);
const outcomesSchema = z.array(
  z.object({
    fixture: z.string(),
    passed: z.boolean(),
    /** The sentence with which the check stopped. */
    stopped: z.string().optional(),
    worst: z.object({ stage: z.string(), feeding: z.string(), excess: measured }).optional(),
    /** Largest difference of a logit over the largest logit. */
    logits: measured.optional(),
  }),
);
type Outcome = z.input<typeof outcomesSchema>[number];
type Outcomes = z.output<typeof outcomesSchema>;

/** The stage furthest beyond its allowance. Routed experts have none, so that any other stage says more. */
function worstOf(stages: readonly StageResult[]): StageResult | undefined {
  const measuredStages = stages.filter(({ stage }) => !stage.endsWith(".experts"));
  const candidates = measuredStages.some(({ isWithin }) => !isWithin) ? measuredStages : stages;
  return candidates.reduce<StageResult | undefined>(
    (worst, next) => (worst !== undefined && next.excess <= worst.excess ? worst : next),
    undefined,
  );
}

function logitsChange(directory: string, stages: readonly StageResult[]): number {
  const truth = readFixture(directory).tensors.get("logits")!;
  const largest = Math.max(...Array.from(truth.values, Math.abs));
  const changes = stages.filter(({ stage }) => stage === "logits");
  return Math.max(...changes.map(({ difference }) => difference)) / largest;
}

async function check(
  fixture: string,
  library: string,
  slots: number | undefined,
): Promise<Outcome> {
  const directory = join(ROOT, "tests/fixtures/golden", fixture);
  const options = { library, simd: "portable", ...(slots === undefined ? {} : { slots }) };
  try {
    const { stages, passed } = await checkFixture(directory, options);
    const worst = worstOf(stages)!;
    const { stage, feeding, excess } = worst;
    return {
      fixture,
      passed,
      worst: { stage, feeding, excess },
      logits: logitsChange(directory, stages),
    };
  } catch (error) {
    const isStopped =
      error instanceof MferenceError || sentenceOf(error).startsWith("assertion failed");
    if (!isStopped) throw error;
    return { fixture, passed: false, stopped: sentenceOf(error) };
  }
}

/** What runs inside the copy: checks every fixture and prints the outcomes as JSON. */
async function report(fixtures: readonly string[], slots: number | undefined): Promise<void> {
  const library = await buildDeviceLibrary();
  const outcomes: Outcome[] = [];
  for (const fixture of fixtures) outcomes.push(await check(fixture, library, slots));
  console.log(JSON.stringify(outcomes));
}

/** The files of a mutation with its edits made. */
function mutated(root: string, { name, edits }: Mutation): Map<string, string> {
  const texts = new Map<string, string>();
  for (const { file, from, to } of edits) {
    const text = texts.get(file) ?? readFileSync(join(root, file), "utf8");
    const count = text.split(from).length - 1;
    if (count !== 1) {
      throw new Error(
        `mutation ${name} no longer applies: ${file} has ${count} times ${JSON.stringify(from)}, ` +
          "expected once; adapt tests/golden/mutations",
      );
    }
    texts.set(
      file,
      text.replace(from, () => to),
    );
  }
  return texts;
}

function copyTree(): string {
  const copy = mkdtempSync(join(tmpdir(), "mference-mutate-"));
  process.on("exit", () => rmSync(copy, { recursive: true, force: true }));
  for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(130));
  for (const path of [...COPIED, ...COPIED_FILES]) {
    cpSync(join(ROOT, path), join(copy, path), { recursive: true });
  }
  for (const path of LINKED) symlinkSync(join(ROOT, path), join(copy, path));
  return copy;
}

/** Runs the golden check in the copy as it stands. */
async function checkCopy(
  copy: string,
  fixtures: readonly string[],
  { name, slots }: Mutation,
): Promise<Outcomes> {
  const options = slots === undefined ? [] : ["--slots", `${slots}`];
  const child = Bun.spawn([process.execPath, SELF, "--report", ...options, ...fixtures], {
    cwd: copy,
    // A library of somebody else's would not have the mutation.
    env: { ...process.env, MFERENCE_BUILD_DIR: join(copy, "build"), MFERENCE_LIBRARY: "" },
    stdout: "pipe",
    stderr: "pipe",
    timeout: CHECK_MS_MAX,
  });
  const [stdout, stderr, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (status !== 0) {
    throw new Error(`mutation ${name}: the check itself ended with ${status}:\n${stderr.trim()}`);
  }
  return outcomesSchema.parse(JSON.parse(stdout));
}

/** Applies a mutation to the copy, checks, and takes it back. */
async function tryMutation(
  copy: string,
  fixtures: readonly string[],
  mutation: Mutation,
): Promise<Outcomes> {
  const texts = mutated(copy, mutation);
  const originals = [...texts.keys()].map(
    (file) => [file, readFileSync(join(copy, file), "utf8")] as const,
  );
  try {
    for (const [file, text] of texts) writeFileSync(join(copy, file), text);
    return await checkCopy(copy, fixtures, mutation);
  } finally {
    for (const [file, text] of originals) writeFileSync(join(copy, file), text);
  }
}

function figure(value: number): string {
  if (!Number.isFinite(value)) return "no number";
  const isPlain = value === 0 || (value >= 0.001 && value < 100);
  return isPlain ? value.toPrecision(2) : value.toExponential(1).replace("+", "");
}

/** One line of the table, from the fixture that deviates most. */
function row({ title, edits }: Mutation, outcomes: Outcomes): string {
  const failed = outcomes.filter(({ passed }) => !passed);
  const shown = failed.length > 0 ? failed : outcomes;
  const worst = shown
    .flatMap((outcome) => (outcome.worst === undefined ? [] : [outcome.worst]))
    .toSorted((a, b) => b.excess - a.excess)[0];
  const change = Math.max(0, ...outcomes.flatMap(({ logits }) => logits ?? []));
  const cells = [
    title,
    [...new Set(edits.map(({ file }) => `\`${file}\``))].join(", ") || "-",
    failed.length === 0 ? "none" : failed.map(({ fixture }) => fixture).join(", "),
    worst === undefined ? "-" : `${worst.stage} (${worst.feeding})`,
    worst === undefined ? "stopped" : figure(worst.excess),
    shown.some(({ stopped }) => stopped !== undefined) ? "-" : figure(change),
  ];
  return `| ${cells.join(" | ")} |`;
}

/** The table of one family's mutations; the names of those that went unnoticed. */
async function run(copy: string, { fixtures, mutations }: MutationList): Promise<string[]> {
  const unchanged = await tryMutation(copy, fixtures, UNCHANGED);
  console.log("| mutation | where | fixtures that fail | worst stage (fed) | excess | logits |");
  console.log("| --- | --- | --- | --- | --- | --- |");
  console.log(row(UNCHANGED, unchanged));
  if (unchanged.some(({ passed }) => !passed)) {
    throw new Error("the golden check fails without any mutation: mend that first");
  }
  const unnoticed: string[] = [];
  const sentences: string[] = [];
  for (const mutation of mutations) {
    const outcomes = await tryMutation(copy, fixtures, mutation);
    console.log(row(mutation, outcomes));
    if (outcomes.every(({ passed }) => passed)) unnoticed.push(mutation.name);
    const stopped = outcomes.flatMap((outcome) => outcome.stopped ?? [])[0];
    if (stopped !== undefined) sentences.push(`${mutation.name} stopped: ${stopped}`);
  }
  if (sentences.length > 0) console.log(`\n${sentences.join("\n")}`);
  console.log(`\n${mutations.length} mutations, ${unnoticed.length} unnoticed\n`);
  return unnoticed;
}

/** The lists with the mutations of these names only; all without names. */
function choose(names: readonly string[]): readonly MutationList[] {
  const all = new Set(mutationLists.flatMap((list) => list.mutations.map(({ name }) => name)));
  const unknown = names.find((name) => !all.has(name));
  if (unknown !== undefined) throw new Error(`unknown mutation ${unknown}: --list shows all`);
  if (names.length === 0) return mutationLists;
  return mutationLists
    .map(({ fixtures, mutations }) => ({
      fixtures,
      mutations: mutations.filter(({ name }) => names.includes(name)),
    }))
    .filter(({ mutations }) => mutations.length > 0);
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      list: { type: "boolean", default: false },
      only: { type: "string", multiple: true, default: [] },
      report: { type: "boolean", default: false },
      slots: { type: "string" },
    },
  });
  if (values.report) {
    await report(positionals, values.slots === undefined ? undefined : Number(values.slots));
    return 0;
  }
  const lists = choose(values.only);
  const chosen = lists.flatMap(({ mutations }) => mutations);
  // All at once and before anything is built: a stale one must not cost minutes.
  for (const mutation of chosen) mutated(ROOT, mutation);
  if (values.list) {
    for (const { name, title } of chosen) console.log(`${name.padEnd(24)} ${title}`);
    return 0;
  }
  setPriority(NICENESS);
  const copy = copyTree();
  const unnoticed: string[] = [];
  for (const list of lists) unnoticed.push(...(await run(copy, list)));
  for (const name of unnoticed) console.error(`unnoticed: ${name}`);
  return unnoticed.length === 0 ? 0 : 1;
}

try {
  process.exit(await main());
} catch (error) {
  console.error(sentenceOf(error));
  process.exit(2);
}
