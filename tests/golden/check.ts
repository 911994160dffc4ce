/**
 * Runs a golden fixture through install, load and engine in every way of feeding it, and compares each
 * recorded stage with the truth. The tests and `scripts/check-golden.ts` share this code.
 *
 * Tolerances (float32 against Hugging Face float32): |difference| <= 2e-4 + 1e-4 |truth|, or 1e-5 of the
 * largest value where that is more (the final norm of some fixtures reaches 270, where float32 itself is
 * 5e-4 away from float64), and a cosine of at least 0.999999; routed weights 1e-5, or as far as the truth
 * itself is from float64; routed experts equal. Where a fixture has logits of ids fed one by one, a
 * recurrent form must be within 1e-5 of their largest, and as far as they themselves are from float64.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadModel, type Model, type ModelOptions } from "../../src/engine/model.ts";
import { Session } from "../../src/engine/session.ts";
import { installLocal } from "../../src/install/install.ts";
import { capLogits } from "../../src/ops/sampling.ts";
import { rowsOf, Scratch } from "../../src/ops/tensor.ts";
import { type Fixture, type GoldenTensor, readFixture } from "./fixture.ts";
import { Rows, StageRecorder } from "./recorder.ts";

export interface StageResult {
  readonly stage: string;
  readonly feeding: string;
  /** Largest absolute difference. */
  readonly difference: number;
  /** Largest difference over its allowance: above 1 fails. */
  readonly excess: number;
  readonly isWithin: boolean;
}

export interface GoldenReport {
  readonly fixture: string;
  readonly stages: readonly StageResult[];
  readonly passed: boolean;
}

export type GoldenOptions = Pick<ModelOptions, "library" | "slots" | "threads" | "simd">;

/** One way of feeding the ids: lengths of consecutive calls. */
interface Feeding {
  readonly name: string;
  readonly lengths: readonly number[];
}

function feedingsOf({ inputs }: Fixture): Feeding[] {
  const count = inputs.ids.length;
  const feedings: Feeding[] = [{ name: "whole", lengths: [count] }];
  if (inputs.singles !== false) {
    feedings.push({ name: "singles", lengths: Array.from({ length: count }, () => 1) });
  }
  for (const split of inputs.splits) feedings.push({ name: split.join("+"), lengths: split });
  return feedings;
}

/** Installs a checkpoint folder into a temporary place, and removes it afterwards. */
export async function withPackage<T>(
  source: string,
  work: (directory: string) => Promise<T>,
): Promise<T> {
  const models = mkdtempSync(join(tmpdir(), "mference-golden-"));
  try {
    const { directory } = await installLocal({ source, name: "fixture", models });
    return await work(directory);
  } finally {
    rmSync(models, { recursive: true, force: true });
  }
}

/** Checks every stage of a fixture in every feeding. */
export async function checkFixture(
  directory: string,
  options: GoldenOptions,
): Promise<GoldenReport> {
  const fixture = readFixture(directory);
  return await withPackage(directory, async (installed) => {
    const stages: StageResult[] = [];
    for (const feeding of feedingsOf(fixture)) {
      stages.push(...(await checkFeeding(fixture, installed, { ...options, feeding })));
    }
    // Nothing compared is nothing shown.
    const passed = stages.length > 0 && stages.every(({ isWithin }) => isWithin);
    return { fixture: fixture.name, stages, passed };
  });
}

async function checkFeeding(
  fixture: Fixture,
  directory: string,
  options: GoldenOptions & { readonly feeding: Feeding },
): Promise<StageResult[]> {
  const { feeding, ...rest } = options;
  const { ids } = fixture.inputs;
  const rows = Math.max(...feeding.lengths);
  const model = await loadModel({
    ...rest,
    directory,
    precision: "exact",
    contextRows: ids.length,
    chunkRows: rows,
    logitRows: rows,
  });
  try {
    const recorder = await feed(model, Uint32Array.from(ids), feeding.lengths);
    return compare(fixture, recorder, feeding.name);
  } finally {
    model.close();
  }
}

/** Feeds the ids in calls of the given lengths and records every stage, the logits included. */
export async function feed(
  model: Model,
  ids: Uint32Array,
  lengths: readonly number[],
): Promise<Map<string, Rows>> {
  const recorder = new StageRecorder(model);
  const session = new Session(model);
  let first = 0;
  for (const length of lengths) {
    await session.extend(ids.subarray(first, first + length), { head: "all", tap: recorder });
    recorder.tensor("logits", model.forward.logits, length);
    recordCapped(model, recorder, length);
    first += length;
  }
  for (const [stage, rows] of recorder.endOfStates()) recorder.stages.set(stage, rows);
  for (const [layer, shape] of model.shape.kvLayers.entries()) {
    if (shape === undefined) continue;
    const { keys, values } = recorder.endOfCache(layer);
    recorder.stages.set(`layer${layer}.k_end`, keys);
    recorder.stages.set(`layer${layer}.v_end`, values);
  }
  session.close();
  return recorder.stages;
}

function recordCapped(model: Model, recorder: StageRecorder, T: number): void {
  const { finalSoftcap: cap } = model.shape;
  if (cap === 0) return;
  const scratch = new Scratch(model.device);
  const { logits } = model.forward;
  const y = scratch.tensor(T, logits.columns);
  // The engine's own call, a row at a time as it samples.
  for (let t = 0; t < T; t += 1) {
    capLogits(model.stream, rowsOf(logits, t, 1), rowsOf(y, t, 1), cap);
  }
  recorder.tensor("logits_capped", y, T);
  scratch.close();
}

function compare(fixture: Fixture, stages: Map<string, Rows>, feeding: string): StageResult[] {
  const results: StageResult[] = [];
  for (const [stage, truth] of fixture.tensors) {
    // A margin describes the fixture.
    if (stage.endsWith("_margin")) continue;
    const found = stages.get(stage === "logits_steps" ? "logits" : stage);
    const allowance = allowanceOf(stage, truth, fixture.distances.get(stage) ?? 0);
    results.push({ stage, feeding, ...compareStage(truth, found, allowance) });
  }
  return results;
}

type Comparison = Pick<StageResult, "difference" | "excess" | "isWithin">;

function compareStage(
  truth: GoldenTensor,
  rows: Rows | undefined,
  allowance: (wanted: number) => number,
): Comparison {
  const found = rows?.last(truth.shape[0]!);
  if (found === undefined || found.length !== truth.values.length) {
    return { difference: Number.NaN, excess: Number.POSITIVE_INFINITY, isWithin: false };
  }
  let difference = 0;
  let excess = 0;
  let [dot, ours, theirs] = [0, 0, 0];
  for (const [i, value] of found.entries()) {
    const wanted = truth.values[i]!;
    const distance = Math.abs(value - wanted);
    const ratio = distance / allowance(wanted);
    // A NaN is beyond every allowance, and stays: it compares false with everything.
    if (Number.isNaN(ratio)) [difference, excess] = [Number.NaN, Number.POSITIVE_INFINITY];
    if (distance > difference) difference = distance;
    if (ratio > excess) excess = ratio;
    dot += value * wanted;
    ours += value * value;
    theirs += wanted * wanted;
  }
  const cosine = ours * theirs === 0 ? 1 : dot / Math.sqrt(ours * theirs);
  return { difference, excess, isWithin: excess <= 1 && cosine >= 0.999999 };
}

/** How far a value of a stage may be from its truth. */
function allowanceOf(
  stage: string,
  { values }: GoldenTensor,
  distance: number,
): (wanted: number) => number {
  if (stage.endsWith(".experts")) return () => Number.MIN_VALUE;
  if (stage.endsWith(".weights")) return () => 1e-5 + distance;
  const largest = Array.from(values).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  if (stage === "logits_steps") return () => 1e-5 * largest + distance;
  return (wanted) => Math.max(2e-4 + 1e-4 * Math.abs(wanted), 1e-5 * largest);
}

/**
 * The largest difference of each stage, a column for each way of feeding it, and the share of its allowance
 * that the worst of them takes.
 */
export function printReport({ fixture, stages, passed }: GoldenReport): string {
  const feedings = [...new Set(stages.map(({ feeding }) => feeding))];
  const cells = (row: readonly string[]): string =>
    row.map((cell, at) => cell.padStart(Math.max(9, feedings[at]?.length ?? 0))).join("  ");
  const lines = [...Map.groupBy(stages, ({ stage }) => stage)].map(([stage, results]) => {
    const row = feedings.map(
      (name) => results.find(({ feeding }) => feeding === name)?.difference.toExponential(2) ?? "-",
    );
    const excess = results.reduce((most, next) => (next.excess <= most ? most : next.excess), 0);
    const verdict = results.every(({ isWithin }) => isWithin) ? "" : "  TOO LARGE";
    return `  ${stage.padEnd(22)} ${cells([...row, excess.toFixed(4)])}${verdict}`;
  });
  const verdict = passed ? "passed" : "failed";
  return [
    `${fixture}: largest difference for each way of feeding the ids, and the worst over its allowance`,
    `  ${"stage".padEnd(22)} ${cells([...feedings, "worst"])}`,
    ...lines,
    `${fixture}: ${verdict}`,
  ].join("\n");
}
