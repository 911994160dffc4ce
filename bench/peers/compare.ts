// Measures our CPU path beside llama.cpp's, in turn, with the same forced ids and threads:
//   bun bench/peers/compare.ts PACKAGE GGUF [--limit BYTES] [--slots N] [--prompts 64,512] [--tokens N]
//                              [--warm N] [--rounds N] [--threads N] [--context N] [--precision NAME]
//                              [--chunk ROWS] [--mode repack|mmap] [--sides ours,llama] [--json]
// bench/synthetic.ts writes PACKAGE, bench/peers/gguf.ts GGUF. Each run is a process of its own, and no two
// run at once. With --limit each gets a control group with so much memory, pages of files counted, and finds
// none of its files cached. Plain readers of memory and disk run before and after each; medians are printed.
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { parseManifest } from "../../src/format/manifest.ts";
import { buildDeviceLibrary } from "../../src/native/build.ts";
import { median } from "../median.ts";
import { Readers } from "../readers.ts";
import { buildLlama } from "./llama-build.ts";
import { type GroupCounts, MemoryGroup } from "./memory-group.ts";
import { encodePlan, parseReport, planPhases, type Report } from "./phases.ts";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    limit: { type: "string" },
    slots: { type: "string" },
    prompts: { type: "string" },
    tokens: { type: "string" },
    warm: { type: "string", default: "2" },
    rounds: { type: "string", default: "2" },
    threads: { type: "string", default: String(cpus().length) },
    context: { type: "string", default: "4096" },
    precision: { type: "string", default: "fast" },
    chunk: { type: "string" },
    mode: { type: "string" },
    sides: { type: "string", default: "ours,llama" },
    json: { type: "boolean", default: false },
  },
});
const [packageFolder, gguf] = positionals;
if (packageFolder === undefined || gguf === undefined) {
  throw new Error("usage: bun bench/peers/compare.ts PACKAGE GGUF [options]");
}
const manifest = path.join(packageFolder, "manifest.json");
const { arch } = parseManifest(readFileSync(manifest), manifest);
const limitBytes = flags.limit === undefined ? undefined : Number(flags.limit);
const isLimited = limitBytes !== undefined;
const sizes = {
  prompts: (flags.prompts ?? (isLimited ? "" : "64,512")).split(",").filter(Boolean).map(Number),
  warm: Number(flags.warm),
  tokens: Number(flags.tokens ?? (isLimited ? 3 : 16)),
  vocabSize: arch.vocabSize,
};
const SIDES = ["ours", "llama"] as const;
type Side = (typeof SIDES)[number];
const sides = SIDES.filter((side) => flags.sides.split(",").includes(side));

/** Seconds of a command that is measured; a longer one is given up. */
const PATIENCE_SECONDS = 600;

/** One line of a run's report, with what its control group had counted by then. */
interface Entry extends Report {
  readonly group: GroupCounts | undefined;
}

interface Run {
  readonly side: Side;
  readonly round: number;
  readonly entries: readonly Entry[];
  /** How the process ended. */
  readonly end: "well" | "killed for memory" | `status ${number}`;
  readonly group: GroupCounts | undefined;
  readonly memoryGBs: number;
  readonly diskGBs: number;
}

/** Stopping ends the running side too, and what was made for it is removed. */
const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => stop.abort(new Error(`stopped by ${signal}`)));
}
const readers = new Readers();
const folder = mkdtempSync(path.join(tmpdir(), "mference-peers-"));

const layerFiles = Array.from({ length: arch.numLayers }, (_, layer) =>
  path.join(packageFolder, "packed_experts", `layer_${String(layer).padStart(2, "0")}.bin`),
);
const files: Readonly<Record<Side, readonly string[]>> = {
  ours: [path.join(packageFolder, "model_weights.bin"), ...layerFiles],
  llama: [gguf],
};

/**
 * Weights that a token reads from the file: everything but the experts that were not chosen, and an
 * embedding that is not the head as well.
 */
function ggufBytesPerToken(): number {
  const { hiddenSize, moeIntermediateSize, numExperts, topKExperts, numLayers } = arch;
  const bytesOf = (values: number): number => (values * 18) / 32;
  const expertBytes = bytesOf(3 * hiddenSize * moeIntermediateSize);
  const embeddingBytes = arch.tieWordEmbeddings ? 0 : bytesOf(arch.vocabSize * hiddenSize);
  const unread = numLayers * (numExperts - topKExperts) * expertBytes + embeddingBytes;
  return statSync(gguf!).size - unread;
}

function commands(library: string): Record<Side, (plan: string) => string[]> {
  const { program, backends } = buildLlama();
  const { threads, context, precision, chunk } = flags;
  const slots = flags.slots ?? (isLimited ? "16" : String(arch.numExperts));
  const mode = flags.mode ?? (isLimited ? "mmap" : "repack");
  const options = { package: packageFolder!, library, slots, threads, context, precision, chunk };
  const given = Object.entries(options).flatMap(([key, value]) =>
    value === undefined ? [] : [`--${key}`, value],
  );
  const script = path.join(import.meta.dir, "ours.ts");
  return {
    ours: (plan) => [process.execPath, script, "--plan", plan, ...given],
    llama: (plan) => [program, backends, gguf!, plan, mode, threads, context],
  };
}

/** Runs a command to its end and collects what it reports. */
async function collect(command: readonly string[], group: MemoryGroup | undefined) {
  const child = Bun.spawn(group === undefined ? [...command] : group.enter(command), {
    stdout: "pipe",
    stderr: Bun.file(path.join(folder, "stderr")),
    timeout: PATIENCE_SECONDS * 1000,
    killSignal: "SIGKILL",
    signal: stop.signal,
  });
  const entries: Entry[] = [];
  let rest = "";
  for await (const bytes of child.stdout) {
    const lines = (rest + new TextDecoder().decode(bytes)).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) entries.push({ ...parseReport(line), group: group?.counts() });
  }
  return { entries, status: await child.exited };
}

async function measure(side: Side, command: readonly string[], round: number): Promise<Run> {
  if (isLimited) readers.drop(files[side]);
  const read = () => ({
    memory: readers.memory(Number(flags.threads)),
    disk: readers.disk(layerFiles[round % layerFiles.length]!),
  });
  const before = read();
  const group = isLimited ? new MemoryGroup(limitBytes) : undefined;
  try {
    const { entries, status } = await collect(command, group);
    const counts = group?.counts();
    const after = read();
    const end = status === 0 ? "well" : counts?.kills ? "killed for memory" : `status ${status}`;
    if (end.startsWith("status")) {
      console.error(readFileSync(path.join(folder, "stderr"), "utf8").slice(-2000));
    }
    return {
      side,
      round,
      entries,
      end: end as Run["end"],
      group: counts,
      memoryGBs: (before.memory + after.memory) / 2,
      diskGBs: (before.disk + after.disk) / 2,
    };
  } finally {
    group?.remove();
  }
}

/** Medians of one phase on one side. */
function row(runs: readonly Run[], side: Side, name: string) {
  const own = runs.filter((run) => run.side === side);
  const of = (pick: (entry: Entry, run: Run) => number | undefined): number | undefined => {
    const list = own.flatMap((run) =>
      run.entries.filter((entry) => entry.name === name).map((entry) => pick(entry, run)),
    );
    const known = list.filter((value) => value !== undefined);
    return known.length === 0 ? undefined : median(known);
  };
  const loaded = own[0]?.entries.find((entry) => entry.name === "load")?.bytesPerToken;
  const bytesPerToken = side === "llama" ? ggufBytesPerToken() : loaded;
  const refaultsBefore = (entry: Entry, run: Run): number => {
    const before = run.entries[run.entries.indexOf(entry) - 1];
    return before?.group?.refaultedBytes ?? 0;
  };
  const perToken = (key: "readBytes" | "missedBytes" | "waitSeconds" | "readSeconds") =>
    of((entry) => (entry[key] === undefined ? undefined : entry[key] / entry.tokens));
  return {
    name,
    side,
    runs: own.length,
    tokensPerSecond: of(({ tokens, seconds }) => tokens / seconds),
    /** Of the memory's speed in the same run. */
    bandwidthShare: name.startsWith("decode")
      ? of(
          ({ tokens, seconds }, { memoryGBs }) =>
            ((bytesPerToken ?? 0) * tokens) / seconds / 1e9 / memoryGBs,
        )
      : undefined,
    readBytesPerToken: perToken("readBytes"),
    missedBytesPerToken: perToken("missedBytes"),
    hitRate: of(({ hitRate }) => hitRate),
    waitSecondsPerToken: perToken("waitSeconds"),
    readSecondsPerToken: perToken("readSeconds"),
    majorFaults: of(({ majorFaults }) => majorFaults),
    refaultedBytes: of((entry, run) =>
      entry.group === undefined
        ? undefined
        : entry.group.refaultedBytes - refaultsBefore(entry, run),
    ),
    privateBytes: of(({ privateBytes }) => privateBytes),
    peakBytes: of(({ peakBytes }) => peakBytes),
    /** Of the time: what reading the missed experts at the disk's speed and waiting for the device take. */
    boundShare: of(({ seconds, missedBytes, waitSeconds }, { diskGBs }) =>
      missedBytes === undefined || waitSeconds === undefined
        ? undefined
        : (missedBytes / 1e9 / diskGBs + waitSeconds) / seconds,
    ),
    memoryGBs: of((_, { memoryGBs }) => memoryGBs),
    diskGBs: of((_, { diskGBs }) => diskGBs),
  };
}

const format = (value: number | undefined, digits: number, unit = 1): string =>
  value === undefined || Number.isNaN(value) ? "" : (value / unit).toFixed(digits);

function print(rows: readonly ReturnType<typeof row>[]): void {
  const cells = rows.map((r) => {
    const other = rows.find(({ name, side }) => name === r.name && side !== r.side);
    const ratio = (r.tokensPerSecond ?? 0) / (other?.tokensPerSecond ?? 0);
    return {
      phase: r.name,
      side: r.side,
      "tokens/s": format(r.tokensPerSecond, 2),
      ratio: r.side === "ours" && Number.isFinite(ratio) ? ratio.toFixed(2) : "",
      "% of memory": format(r.bandwidthShare, 0, 0.01),
      "memory GB/s": format(r.memoryGBs, 1),
      "disk GB/s": format(r.diskGBs, 2),
      "MB read/token": format(r.readBytesPerToken, 0, 1e6),
      "MB missed/token": format(r.missedBytesPerToken, 0, 1e6),
      "% hits": format(r.hitRate, 0, 0.01),
      "% of bound": format(r.boundShare, 0, 0.01),
      "major faults": format(r.majorFaults, 0),
      "MB refaulted": format(r.refaultedBytes, 1, 1e6),
      "MB private": format(r.privateBytes, 0, 1e6),
      "MB peak": format(r.peakBytes, 0, 1e6),
    };
  });
  console.table(cells);
}

async function measureAll(): Promise<Run[]> {
  const start = commands(await buildDeviceLibrary());
  const runs: Run[] = [];
  for (let round = 1; round <= Number(flags.rounds); round += 1) {
    const plan = path.join(folder, `plan.${round}`);
    writeFileSync(plan, encodePlan(planPhases(sizes, round)));
    for (const side of sides) {
      const run = await measure(side, start[side](plan), round);
      stop.signal.throwIfAborted();
      runs.push(run);
      const rates = run.entries.map(
        ({ name, tokens, seconds }) =>
          `${name} ${tokens === 0 ? `${seconds.toFixed(1)} s` : (tokens / seconds).toFixed(2)}`,
      );
      console.error(`round ${round}, ${side}: ${rates.join(", ")}; ended ${run.end}`);
    }
  }
  return runs;
}

try {
  const runs = await measureAll();
  const names = [...new Set(runs.flatMap(({ entries }) => entries.map(({ name }) => name)))];
  const rows = names
    .filter((name) => name !== "load" && !name.endsWith(".warm"))
    .flatMap((name) => sides.map((side) => row(runs, side, name)));
  const ends = runs.map(({ side, round, end, entries, group }) => ({
    side,
    round,
    end,
    "load s": entries.find(({ name }) => name === "load")?.seconds.toFixed(1) ?? "",
    "MB private at most": format(Math.max(0, ...entries.map((e) => e.privateBytes)), 0, 1e6),
    "MB in the group at most": format(group?.peakBytes, 0, 1e6),
    "MB refaulted": format(group?.refaultedBytes, 1, 1e6),
    "major faults": group?.majorFaults ?? "",
    kills: group?.kills ?? "",
  }));
  const facts = { machine: `${cpus()[0]?.model} x ${cpus().length}`, options: { ...flags } };
  if (flags.json) console.log(JSON.stringify({ ...facts, rows, runs }));
  else {
    print(rows);
    console.table(ends);
    console.log(facts);
  }
} finally {
  readers.remove();
  rmSync(folder, { recursive: true, force: true });
}
