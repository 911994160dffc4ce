// Measures a full-size package (bench/synthetic.ts writes one) with forced token ids:
//   bun bench/full.ts DIR [--slots 16,128] [--tokens N] [--warm N] [--prompts 64,512] [--runs N] [--threads N]
//                     [--precision fast|exact] [--reads rule|buffered|direct|both] [--json]
// Ids are forced, because greedy decoding of random weights repeats one id and flatters the cache. Two
// streams of them: "following" ids share experts as the package was written to, "scattered" ones only by
// chance. A plain reader of memory and of the disk runs beside every run; medians are printed.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { loadModel, type Model } from "../src/engine/model.ts";
import { Session } from "../src/engine/session.ts";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { peakMemoryBytes } from "../src/util/memory.ts";
import { fractions, permutation } from "./weights.ts";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    slots: { type: "string", default: "16,128" },
    tokens: { type: "string", default: "32" },
    warm: { type: "string", default: "24" },
    prompts: { type: "string", default: "64,512" },
    runs: { type: "string", default: "3" },
    threads: { type: "string", default: String(cpus().length) },
    precision: { type: "string", default: "fast" },
    reads: { type: "string", default: "rule" },
    json: { type: "boolean", default: false },
  },
});
const directory = positionals[0];
if (directory === undefined) throw new Error("usage: bun bench/full.ts DIR [options]");

const numbers = (list: string): number[] => list.split(",").filter(Boolean).map(Number);
const [slotCounts, prompts] = [numbers(flags.slots), numbers(flags.prompts)];
const [tokens, runs, threads] = [Number(flags.tokens), Number(flags.runs), Number(flags.threads)];
const precision = flags.precision === "exact" ? "exact" : "fast";
/** Steps before a measured run, that fill the slots. */
const WARM_TOKENS = Number(flags.warm);
const STREAMS = ["following", "scattered"] as const;
type StreamName = (typeof STREAMS)[number];
/** Of the only family with a synthetic package. */
const VOCABULARY = 262_144;
const DISK_BYTES = 600e6;

/** One measured run. */
interface Sample {
  readonly tokensPerSecond: number;
  readonly hitRate: number;
  readonly missedBytesPerToken: number;
  /** Of the time: the host waits for the device. */
  readonly waitShare: number;
  /** Of the time: the host awaits reads. */
  readonly readShare: number;
  /** Of the time: neither; TypeScript and calls into C. */
  readonly scriptShare: number;
  /** Of what the reader reads in the same run, the weights that a token reads. */
  readonly bandwidthShare: number;
  readonly memoryGBs: number;
  readonly diskGBs: number;
}

const median = (list: readonly number[]): number =>
  list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)]!;

const folder = mkdtempSync(path.join(tmpdir(), "mference-bench-"));

function tool(...args: string[]): number {
  const { stdout, exitCode } = Bun.spawnSync([path.join(folder, "reader"), ...args]);
  if (exitCode !== 0) throw new Error(`reader ${args[0]} failed`);
  return Number(stdout.toString());
}

function buildReader(): void {
  const source = path.join(import.meta.dir, "reader.c");
  const flagsOfC = ["-O3", "-march=native", "-pthread", "-o", path.join(folder, "reader")];
  const { exitCode } = Bun.spawnSync(["cc", ...flagsOfC, source], { stderr: "inherit" });
  if (exitCode !== 0) throw new Error("cc could not build bench/reader.c");
}

const expertFilesOf = (model: Model): string[] => model.package.layers.map((layer) => layer.path);

/** Bytes of weights that one decode step reads: all common ones once, and the chosen experts. */
function bytesPerToken(model: Model): number {
  const { package: opened, shape } = model;
  const experts = opened.layers.filter((layer) => layer.subTensors !== undefined).length;
  return opened.weights.residentBytes + experts * shape.expertsPerToken * opened.strideBytes;
}

function idsOf(stream: StreamName, count: number, run: number): Uint32Array {
  const random = fractions(`${stream}/${run}`);
  if (stream === "scattered")
    return Uint32Array.from(permutation(VOCABULARY, random).slice(0, count));
  const first = Math.floor(random() * (VOCABULARY - count));
  return Uint32Array.from({ length: count }, (_, i) => first + i);
}

const GREEDY = {
  options: { temperature: 0, topK: undefined, topP: 1, repetitionPenalty: 1, seed: 0n },
  index: 0,
  seen: new Uint32Array(0),
} as const;

/** Computes one id and chooses a token, as decoding does; what is chosen is ignored. */
async function step(session: Session, id: number): Promise<void> {
  await session.extend(Uint32Array.of(id));
  await session.choose(GREEDY);
}

function countersOf({ model }: Session) {
  return { ...model.experts.counters, waitSeconds: model.stream.waitSeconds };
}

interface Timed {
  readonly seconds: number;
  readonly steps: number;
  readonly before: ReturnType<typeof countersOf>;
}

function sampleOf(session: Session, { seconds, steps, before }: Timed): Sample {
  const after = countersOf(session);
  const [hits, misses] = [after.hits - before.hits, after.misses - before.misses];
  const share = (key: "waitSeconds" | "readSeconds"): number =>
    (after[key] - before[key]) / seconds;
  const memoryGBs = tool("memory", String(threads));
  const [file] = expertFilesOf(session.model);
  return {
    tokensPerSecond: steps / seconds,
    hitRate: hits / (hits + misses),
    missedBytesPerToken: (after.bytesRead - before.bytesRead) / steps,
    waitShare: share("waitSeconds"),
    readShare: share("readSeconds"),
    scriptShare: 1 - share("waitSeconds") - share("readSeconds"),
    bandwidthShare: (bytesPerToken(session.model) * steps) / seconds / 1e9 / memoryGBs,
    memoryGBs,
    diskGBs: tool("disk", file!, String(DISK_BYTES)),
  };
}

/** Decodes forced ids; `isCold` gives the layer files' cached pages back before every step, untimed. */
async function decode(session: Session, ids: Uint32Array, isCold: boolean): Promise<Sample> {
  session.reset();
  for (const id of ids.subarray(0, WARM_TOKENS)) await step(session, id);
  const before = countersOf(session);
  let seconds = 0;
  for (const id of ids.subarray(WARM_TOKENS)) {
    if (isCold) tool("drop", ...expertFilesOf(session.model));
    const begin = performance.now();
    await step(session, id);
    seconds += (performance.now() - begin) / 1000;
  }
  return sampleOf(session, { seconds, steps: ids.length - WARM_TOKENS, before });
}

async function prefill(session: Session, ids: Uint32Array): Promise<Sample> {
  session.reset();
  const before = countersOf(session);
  const begin = performance.now();
  await session.extend(ids);
  await session.choose(GREEDY);
  const seconds = (performance.now() - begin) / 1000;
  return sampleOf(session, { seconds, steps: ids.length, before });
}

interface Case {
  readonly name: string;
  readonly run: (session: Session, run: number) => Promise<Sample>;
}

function casesOf(isPartial: boolean): Case[] {
  const decodes = STREAMS.flatMap((stream) =>
    (isPartial ? [false, true] : [false]).map((isCold) => ({
      name: `decode, ${stream} ids${isCold ? ", files not cached" : ""}`,
      run: (session: Session, run: number) =>
        decode(session, idsOf(stream, WARM_TOKENS + tokens, run), isCold),
    })),
  );
  const prefills = prompts.map((length) => ({
    name: `prefill of ${length}, scattered ids`,
    run: (session: Session, run: number) => prefill(session, idsOf("scattered", length, run)),
  }));
  return [...decodes, ...prefills];
}

interface Row {
  readonly slots: number;
  readonly name: string;
  readonly medians: Sample;
}

const medianSample = (samples: readonly Sample[]): Sample =>
  Object.fromEntries(
    (Object.keys(samples[0]!) as (keyof Sample)[]).map((key) => [
      key,
      median(samples.map((sample) => sample[key])),
    ]),
  ) as unknown as Sample;

/** Brings every expert into its slot where there is one for each, and something into each else. */
async function fill(session: Session): Promise<void> {
  if (session.model.slots !== session.model.shape.expertCount) return await warm(session);
  // One chunk leaves hardly an expert untouched, and a hit rate below 100 % would tell.
  const ids = idsOf("scattered", 128, 0);
  await session.extend(ids);
  await session.choose(GREEDY);
}

async function warm(session: Session): Promise<void> {
  for (const id of idsOf("scattered", 2, 0)) await step(session, id);
}

/** Which ways of reading are measured, in turn within each run. */
const READS: Readonly<Record<string, readonly (boolean | undefined)[]>> = {
  rule: [undefined],
  buffered: [false],
  direct: [true],
  both: [false, true],
};

async function open(library: string, slots: number, isDirect: boolean | undefined) {
  const model = await loadModel({
    directory: directory!,
    library,
    policy: "trusted-receipt",
    precision,
    slots,
    threads,
    contextRows: 1024,
    ...(isDirect === undefined ? {} : { directReads: isDirect }),
  });
  return new Session(model);
}

async function measure(library: string, slots: number): Promise<Row[]> {
  const ways = READS[flags.reads] ?? [];
  const rows: { readonly name: string; readonly samples: Sample[] }[] = [];
  const sessions: Session[] = [];
  try {
    for (const isDirect of ways) sessions.push(await open(library, slots, isDirect));
    for (const session of sessions) await fill(session);
    const cases = casesOf(slots < sessions[0]!.model.shape.expertCount);
    const jobs = cases.flatMap(({ name, run }) =>
      sessions.map((session, i) => {
        const way = ways[i] === undefined ? "" : ways[i] ? ", direct" : ", buffered";
        const row = { name: name + way, samples: [] as Sample[] };
        rows.push(row);
        return async (number: number): Promise<void> => {
          const sample = await run(session, number);
          row.samples.push(sample);
          console.error(
            `${slots} slots, ${row.name}: ${sample.tokensPerSecond.toFixed(2)} tokens/s`,
          );
        };
      }),
    );
    for (let run = 1; run <= runs; run += 1) for (const job of jobs) await job(run);
    return rows.map(({ name, samples }) => ({ slots, name, medians: medianSample(samples) }));
  } finally {
    for (const session of sessions) {
      session.close();
      session.model.close();
    }
  }
}

const percent = (share: number): string => `${(100 * share).toFixed(0)} %`;

function print(rows: readonly Row[]): void {
  const cells = rows.map(({ slots, name, medians: m }) => ({
    slots,
    case: name,
    "tokens/s": m.tokensPerSecond.toFixed(2),
    hits: percent(m.hitRate),
    "MB missed/token": (m.missedBytesPerToken / 1e6).toFixed(0),
    wait: percent(m.waitShare),
    reads: percent(m.readShare),
    script: percent(m.scriptShare),
    "of memory speed": name.startsWith("decode") ? percent(m.bandwidthShare) : "",
    "memory GB/s": m.memoryGBs.toFixed(1),
    "disk GB/s": m.diskGBs.toFixed(2),
  }));
  console.table(cells);
}

try {
  buildReader();
  const library = await buildDeviceLibrary();
  const rows: Row[] = [];
  for (const slots of slotCounts) rows.push(...(await measure(library, slots)));
  const load = readFileSync("/proc/loadavg", "utf8").split(" ")[0];
  const facts = {
    machine: `${cpus()[0]?.model} x ${cpus().length}`,
    load: Number(load),
    peakBytes: peakMemoryBytes(),
  };
  const options = { runs, tokens, threads, precision };
  if (flags.json) console.log(JSON.stringify({ ...facts, ...options, rows }));
  else {
    print(rows);
    console.log({ ...facts, ...options });
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
