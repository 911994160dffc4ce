// Measures a full-size package (bench/synthetic.ts writes one) with forced token ids:
//   bun bench/full.ts DIR [--slots 16,128] [--tokens N] [--warm N] [--prompts 64,512] [--runs N] [--threads N]
//                     [--precision fast|quick|exact] [--reads rule|buffered|direct|both] [--chunk ROWS] [--json]
// Ids are forced, because greedy decoding of random weights repeats one id and flatters the cache. Two
// streams of them: "following" ids share experts as the package was written to, "scattered" ones only by
// chance. A plain reader of memory and of the disk runs beside every run; medians are printed.
import { readFileSync } from "node:fs";
import { cpus } from "node:os";
import { parseArgs } from "node:util";
import { loadModel } from "../src/engine/model.ts";
import { Session } from "../src/engine/session.ts";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { peakMemoryBytes } from "../src/util/memory.ts";
import {
  bytesPerToken,
  compute,
  countersOf,
  type Draw,
  expertFilesOf,
  fill,
  idsOf,
  STREAMS,
} from "./forced.ts";
import { median } from "./median.ts";
import { Readers } from "./readers.ts";

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
    chunk: { type: "string" },
    json: { type: "boolean", default: false },
  },
});
const directory = positionals[0];
if (directory === undefined) throw new Error("usage: bun bench/full.ts DIR [options]");

const numbers = (list: string): number[] => list.split(",").filter(Boolean).map(Number);
const [slotCounts, prompts] = [numbers(flags.slots), numbers(flags.prompts)];
const [tokens, runs, threads] = [Number(flags.tokens), Number(flags.runs), Number(flags.threads)];
const PRECISIONS = ["exact", "fast", "quick"] as const;
const precision = PRECISIONS.find((name) => name === flags.precision) ?? "fast";
/** Steps before a measured run, that fill the slots. */
const WARM_TOKENS = Number(flags.warm);
const readers = new Readers();

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
  const memoryGBs = readers.memory(threads);
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
    diskGBs: readers.disk(file!),
  };
}

/** Decodes forced ids; `isCold` gives the layer files' cached pages back before every step, untimed. */
async function decode(session: Session, ids: Uint32Array, isCold: boolean): Promise<Sample> {
  session.reset();
  for (const id of ids.subarray(0, WARM_TOKENS)) await compute(session, Uint32Array.of(id));
  const before = countersOf(session);
  let seconds = 0;
  for (const id of ids.subarray(WARM_TOKENS)) {
    if (isCold) readers.drop(expertFilesOf(session.model));
    const begin = performance.now();
    await compute(session, Uint32Array.of(id));
    seconds += (performance.now() - begin) / 1000;
  }
  return sampleOf(session, { seconds, steps: ids.length - WARM_TOKENS, before });
}

async function prefill(session: Session, ids: Uint32Array): Promise<Sample> {
  session.reset();
  const before = countersOf(session);
  const begin = performance.now();
  await compute(session, ids);
  const seconds = (performance.now() - begin) / 1000;
  return sampleOf(session, { seconds, steps: ids.length, before });
}

interface Case {
  readonly name: string;
  readonly run: (session: Session, run: number) => Promise<Sample>;
}

const drawOf = ({ model }: Session, run: number): Draw => ({
  vocabSize: model.shape.vocabSize,
  run,
});

function casesOf(isPartial: boolean): Case[] {
  const decodes = STREAMS.flatMap((stream) =>
    (isPartial ? [false, true] : [false]).map((isCold) => ({
      name: `decode, ${stream} ids${isCold ? ", files not cached" : ""}`,
      run: (session: Session, run: number) =>
        decode(session, idsOf(stream, WARM_TOKENS + tokens, drawOf(session, run)), isCold),
    })),
  );
  const prefills = prompts.map((length) => ({
    name: `prefill of ${length}, scattered ids`,
    run: (session: Session, run: number) =>
      prefill(session, idsOf("scattered", length, drawOf(session, run))),
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
    contextRows: Math.max(1024, ...prompts),
    ...(flags.chunk === undefined ? {} : { chunkRows: Number(flags.chunk) }),
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
  readers.remove();
}
