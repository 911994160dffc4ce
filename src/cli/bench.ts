/**
 * `mference bench`: how fast an installed model reads prompts and writes on this machine, and how fast the disk
 * gives it experts. Ids are arbitrary: what they mean changes no speed, but what experts they share does.
 */
import fs from "node:fs";
import path from "node:path";
import type { EngineClient } from "../engine/client.ts";
import type { GenerateStats } from "../engine/protocol.ts";
import { formatBytes } from "../util/units.ts";
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { columns } from "./models.ts";
import { modelArgs, outputArgs, type Values } from "./options.ts";
import { type ModelRun, withModel } from "./run.ts";

const PROMPT_TOKENS = 256;
const NEW_TOKENS = 33;
const RUNS = 3;

export const bench = declareCommand({
  name: "bench",
  description: "Measure a model on this machine: prompts, answers, and the disk. Takes a minute.",
  args: { ...modelArgs, json: outputArgs.json, quiet: outputArgs.quiet },
  run: (values) => withModel(values, (run) => runBench(values, run)),
});

/** What was measured: medians of a few runs. */
export interface BenchFigures {
  readonly model: string;
  readonly slots: number | "resident";
  readonly promptTokensPerSecond: number;
  readonly tokensPerSecond: number;
  /** Of the experts that answers asked for, those that were in a slot. */
  readonly hitRate: number;
  readonly bytesReadPerToken: number;
  /** Of the time of an answer: the host awaits reads, and it waits for the device. */
  readonly readShare: number;
  readonly deviceShare: number;
  readonly diskBytesPerSecond?: number | undefined;
  readonly peakMemoryBytes: number;
}

async function runBench(
  values: Values,
  { model, terminal, progress }: ModelRun,
): Promise<ExitCode> {
  const { engine, name, info } = model;
  const stats: { prefill: GenerateStats; decode: GenerateStats }[] = [];
  for (let run = 1; run <= RUNS; run += 1) {
    progress.update(`measuring, run ${run} of ${RUNS}`);
    stats.push(await measure(engine, Math.min(PROMPT_TOKENS, info.contextRows - NEW_TOKENS), run));
  }
  progress.update("measuring the disk");
  const disk = await diskSpeed(info.directory);
  progress.done();
  const figures = figuresOf(stats, { model: name, slots: info.slots, diskBytesPerSecond: disk });
  terminal.out.write(values["json"] === true ? `${JSON.stringify(figures)}\n` : report(figures));
  return EXIT.ok;
}

/** A prompt read from nothing, and the answer after it: the same request again, its prompt cached. */
async function measure(engine: EngineClient, tokens: number, run: number) {
  const { vocabSize } = engine.info;
  const ids = Array.from({ length: tokens }, (_, i) => (i * 7919 + run * 104_729) % vocabSize);
  const request = { prompt: { kind: "ids" as const, ids }, sampling: { temperature: 0 } };
  const prefill = await engine.generate({ ...request, maxNew: 1, isCold: true });
  const decode = await engine.generate({ ...request, maxNew: NEW_TOKENS });
  return { prefill: prefill.stats, decode: decode.stats };
}

async function diskSpeed(directory: string): Promise<number | undefined> {
  const { prepareLibraries } = await import("../engine/libraries.ts");
  const { measureDisk } = await import("../engine/machine.ts");
  const { library } = await prepareLibraries({});
  const folder = path.join(directory, "packed_experts");
  const file = fs.readdirSync(folder).find((name) => name.endsWith(".bin"));
  return file === undefined
    ? undefined
    : measureDisk(library, path.join(folder, file))?.bytesPerSecond;
}

type Facts = Pick<BenchFigures, "model" | "slots" | "diskBytesPerSecond">;

/** Medians of the runs. */
export function figuresOf(
  runs: readonly { readonly prefill: GenerateStats; readonly decode: GenerateStats }[],
  facts: Facts,
): BenchFigures {
  const median = (value: (run: (typeof runs)[number]) => number): number =>
    runs.map(value).toSorted((a, b) => a - b)[Math.floor(runs.length / 2)] ?? 0;
  const perToken = (value: (stats: GenerateStats) => number): number =>
    median(({ decode }) => value(decode) / Math.max(1, decode.newTokens - 1));
  return {
    ...facts,
    promptTokensPerSecond: median(({ prefill }) => prefill.promptTokens / prefill.prefillSeconds),
    tokensPerSecond: 1 / perToken(({ decodeSeconds }) => decodeSeconds),
    hitRate: median(({ decode: { hits, misses } }) => hits / Math.max(1, hits + misses)),
    bytesReadPerToken: perToken(({ bytesRead }) => bytesRead),
    readShare: median(({ decode }) => decode.readSeconds / decode.decodeSeconds),
    deviceShare: median(({ decode }) => decode.deviceWaitSeconds / decode.decodeSeconds),
    peakMemoryBytes: Math.max(...runs.map(({ decode }) => decode.peakMemoryBytes)),
  };
}

/** The figures for people. */
export function report(figures: BenchFigures): string {
  const percent = (share: number): string => `${(100 * share).toFixed(0)}%`;
  const { diskBytesPerSecond: disk, hitRate, bytesReadPerToken: bytes } = figures;
  return columns([
    ["model", `${figures.model}, ${figures.slots} expert slots in each layer`],
    ["prompts", `${figures.promptTokensPerSecond.toFixed(1)} tokens/s`],
    ["answers", `${figures.tokensPerSecond.toFixed(2)} tokens/s`],
    ["experts", `${percent(hitRate)} cached, ${formatBytes(bytes)} read for each token`],
    ["time", `${percent(figures.deviceShare)} device, ${percent(figures.readShare)} reads`],
    ["disk", disk === undefined ? "not measured" : `${formatBytes(disk)}/s, one read at a time`],
    ["memory", `${formatBytes(figures.peakMemoryBytes)} at the peak`],
  ]);
}
