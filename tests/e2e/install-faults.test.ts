/**
 * Downloads under seeded schedules of faults of the server, of the disk, of the power and of the
 * process: whatever happens, the next runs finish the package, bit for bit, and fetch nothing again that
 * was durable, unless it was damaged meanwhile.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { MferenceError } from "../../src/util/errors.ts";
import { sha256 } from "../../src/format/digest.ts";
import type { InstallIo } from "../../src/install/durable.ts";
import { planInstall, type InstallPlan } from "../../src/install/plan.ts";
import { planRanges, targetBytes, type SourceRange } from "../../src/install/ranges.ts";
import { installRemote } from "../../src/install/remote.ts";
import { readSaved, resumePath, type SavedDownload } from "../../src/install/resume.ts";
import type { Clock } from "../../src/install/retry.ts";
import { openCheckpoint } from "../../src/install/source.ts";
import { flipByte } from "../fixtures/checkpoints.ts";
import { contentsOf } from "../fixtures/contents.ts";
import { faultyIo, RecordingDisk, type Loss } from "../fixtures/disk.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { createRandom, type Random } from "../reference/random.ts";
import { REPOSITORY, startHub, type Fault, type Hub } from "../support/hub.ts";

const SCHEDULES = Number(process.env["FAULT_SCHEDULES"] ?? 200);
/** Schedules under way at once: they wait for silences and children. */
const PARALLEL = 4;
/** Every so many schedules the first runs are processes of their own, and killed. */
const KILL_EVERY = 4;
const KILLED_RUNS = 3;
/** Every so many schedules something of what was durable is damaged. */
const DAMAGE_EVERY = 5;
/** After so many runs nothing fails any more. */
const RUNS_MAX = 25;
/** Above that of a Bun that does nothing. */
const CHILD_MEMORY_BYTES_MAX = 150e6;

const clock: Clock = { now: Date.now, random: () => 0, sleep: () => Promise.resolve() };
const FAULTS: readonly Fault[] = [
  { kind: "short" },
  { kind: "reset" },
  { kind: "whole" },
  { kind: "stall" },
  { kind: "drip" },
  { kind: "gzip" },
  { kind: "expired" },
  { kind: "shortToTheEnd" },
  { kind: "status", status: 500 },
  { kind: "status", status: 401 },
  { kind: "status", status: 403 },
  { kind: "status", status: 404 },
  { kind: "status", status: 416 },
  { kind: "status", status: 429, headers: { "Retry-After": "5" } },
  { kind: "headers", headers: { "Content-Range": "bytes 0-1/2" } },
  { kind: "headers", headers: { "Content-Encoding": "gzip" } },
  { kind: "headers", headers: { ETag: '"changed"' } },
  { kind: "redirect", to: "http://example.com/" },
  { kind: "redirect", to: "/loop" },
];

/** A checkpoint of a family, and what its install comes to without faults. */
interface Source {
  readonly folder: string;
  readonly indexSha256: string;
  readonly expected: Readonly<Record<string, string>>;
  readonly plan: InstallPlan;
}

interface Schedule {
  readonly seed: number;
  readonly random: Random;
  readonly source: Source;
  readonly hub: Hub;
  /** Folder of the packages; nothing else is in it. */
  readonly models: string;
  /** Of the package. */
  readonly directory: string;
  readonly rangeBytes: number;
  readonly ranges: readonly SourceRange[];
  readonly disk: RecordingDisk;
  /** Ranges that were damaged after they had been durable, and not fetched since. */
  readonly damaged: Set<string>;
}

let root: string;
let bareBytes = 0;
let peakBytes = 0;
const sources: Source[] = [];
/** A Hub of its own for each of the schedules under way, for each source. */
const hubs: Hub[][] = [];
const counts = {
  schedules: 0,
  runs: 0,
  resumed: 0,
  ranges: 0,
  rangesFetched: 0,
  cancelled: 0,
  killed: 0,
  powerLosses: 0,
  damaged: 0,
  diskFaults: {} as Record<string, number>,
  serverFaults: {} as Record<string, number>,
};

function countOf(kinds: Record<string, number>, kind: string): void {
  kinds[kind] = (kinds[kind] ?? 0) + 1;
}

beforeAll(async () => {
  // Thousands of forced writes: what is in memory forgets them at once.
  const above = fs.existsSync("/dev/shm") ? "/dev/shm" : os.tmpdir();
  root = fs.realpathSync(fs.mkdtempSync(path.join(above, "mf-faults-")));
  for (const snapshot of Object.values(SNAPSHOTS)) {
    const folder = writeSnapshot(snapshot("tiny"));
    fs.writeFileSync(path.join(folder, "tokenizer.json"), "{}");
    fs.writeFileSync(path.join(folder, "tokenizer_config.json"), "{}");
    const indexSha256 = sha256(fs.readFileSync(path.join(folder, "model.safetensors.index.json")));
    const checkpoint = await openCheckpoint(folder);
    const plan = planInstall(checkpoint);
    checkpoint.close();
    const own = await Promise.all(Array.from({ length: PARALLEL }, () => startHub(folder)));
    hubs.push(own);
    const options = optionsOf({ hub: own[0]!, indexSha256, models: root }, 30_000);
    const { directory } = await installRemote(options);
    sources.push({ folder, indexSha256, expected: contentsOf(directory), plan });
    fs.rmSync(directory, { recursive: true });
  }
  const probe = path.join(import.meta.dir, "../fixtures/memory-probe.ts");
  const bare = Bun.spawnSync([process.execPath, probe]).stdout.toString();
  bareBytes = (JSON.parse(bare) as { peakBytes: number }).peakBytes;
});
afterAll(() => {
  for (const hub of hubs.flat()) hub.stop();
  fs.rmSync(root, { recursive: true, force: true });
});

function optionsOf(
  place: { readonly hub: Hub; readonly indexSha256: string; readonly models: string },
  rangeBytes: number,
) {
  return {
    source: { repository: REPOSITORY, revision: "main", indexSha256: place.indexSha256 },
    name: "m",
    base: place.hub.base,
    models: place.models,
    limits: { rangeBytes, parallel: 2, idleMs: 250, retry: { attempts: 3, baseMs: 1, clock } },
  };
}

/** A disk that cuts writes short, fails at one call and loses its power at one, or none of these. */
function failingDisk({ disk, random }: Schedule): InstallIo {
  const few = (): number => 1 + random.below(10 ** (1 + random.below(4)));
  if (random.below(3) === 0) disk.failsAt = disk.count + few();
  let left = random.below(3) === 0 ? few() : Infinity;
  const cutEvery = random.below(3) === 0 ? 3 : Infinity;
  return faultyIo(
    disk,
    (operation) => {
      left -= 1;
      if (left <= 0 && !disk.isOff) {
        left = Infinity;
        const code = random.below(2) === 0 ? "ENOSPC" : "EIO";
        countOf(counts.diskFaults, `${operation} ${code}`);
        return code;
      }
      if (operation !== "write" || random.below(cutEvery) !== 0) return undefined;
      countOf(counts.diskFaults, "write short");
      return "short";
    },
    (descriptor) => disk.loseUnsynced(descriptor, "some", random),
  );
}

/** Makes the server misbehave at some of the next requests. */
function failingServer({ hub, random }: Schedule): void {
  const every = 8 + random.below(40);
  hub.fault = ({ file }) => {
    if (random.below(every) !== 0) return undefined;
    const fault = FAULTS[random.below(FAULTS.length)]!;
    // A text file that is said not to be there makes another package, and rightly so.
    const isAbsence = "to" in fault || ("status" in fault && fault.status === 404);
    if (isAbsence && file.endsWith(".json")) return undefined;
    countOf(counts.serverFaults, fault.kind === "status" ? `status ${fault.status}` : fault.kind);
    return fault;
  };
}

/** One run that may fail in any way but an unforeseen one; true when the package is finished. */
async function attempt(schedule: Schedule, io: InstallIo): Promise<boolean> {
  const { source, hub, models, random, disk } = schedule;
  const controller = new AbortController();
  let events = random.below(3) === 0 ? random.below(10 ** (1 + random.below(3))) : Infinity;
  try {
    await installRemote({
      ...optionsOf({ ...source, hub, models }, schedule.rangeBytes),
      io,
      signal: controller.signal,
      onProgress() {
        events -= 1;
        if (events <= 0) controller.abort();
      },
    });
    return true;
  } catch (error) {
    if (!(error instanceof MferenceError)) throw error;
    const isForeseen = /^install\.(network|remote|auth|space|io|cancelled|exists)$/.test(
      error.code,
    );
    expect([schedule.seed, isForeseen ? "" : error.message]).toEqual([schedule.seed, ""]);
    if (error.code === "install.cancelled") counts.cancelled += 1;
    return error.code === "install.exists" && !disk.isOff;
  }
}

/** The same in a process of its own, which is killed after some requests or kills itself. */
async function attemptKilled(schedule: Schedule): Promise<boolean> {
  const { hub, random, source } = schedule;
  const child = Bun.spawn(
    [
      process.execPath,
      path.join(import.meta.dir, "../fixtures/install-child.ts"),
      hub.base.href,
      schedule.models,
      source.indexSha256,
      String(schedule.rangeBytes),
      "m",
      String(random.below(1e9)),
    ],
    { stderr: "ignore" },
  );
  const first = hub.requests.length;
  const requestCount = 8 + random.below(60);
  while (child.exitCode === null && child.signalCode === null) {
    peakBytes = Math.max(peakBytes, peakOf(child.pid));
    if (hub.requests.length - first >= requestCount) child.kill("SIGKILL");
    await Bun.sleep(1);
  }
  await child.exited;
  if (child.signalCode === "SIGKILL") counts.killed += 1;
  schedule.disk.reload();
  return child.exitCode === 0;
}

/** Of a process that may be gone at any moment. */
function peakOf(pid: number): number {
  try {
    const status = fs.readFileSync(`/proc/${pid}/status`, "utf8");
    return 1024 * Number(/^VmHWM:\s+(\d+) kB/m.exec(status)?.[1] ?? 0);
  } catch {
    return 0;
  }
}

/** Damages one durable range, or a whole file of the package and with it all of them. */
function damage({ directory, ranges, random, disk, damaged }: Schedule): void {
  const kept = readSaved(directory)?.completedRanges ?? [];
  const id = kept[random.below(kept.length)]?.id;
  const copies = ranges.find((range) => range.id === id)?.copies ?? [];
  const copy = copies[random.below(copies.length)];
  if (id === undefined || copy === undefined) return;
  const file = path.join(`${directory}.partial`, copy.target);
  if (random.below(4) === 0) {
    fs.truncateSync(file, random.below(fs.statSync(file).size));
    for (const range of kept) damaged.add(range.id);
  } else {
    flipByte(file, copy.targetOffset + random.below(targetBytes(copy)));
    damaged.add(id);
  }
  disk.reload();
  counts.damaged += 1;
}

/** A run, what it may be, and what must hold after it. */
async function run(schedule: Schedule, index: number): Promise<boolean> {
  const { seed, hub, random, disk, directory, ranges, damaged } = schedule;
  const isKilled = seed % KILL_EVERY === 0 && index < KILLED_RUNS;
  if (seed % DAMAGE_EVERY === 0 && random.below(3) === 0) damage(schedule);
  const before = (readSaved(directory)?.completedRanges ?? []).map(({ id }) => id);
  const kept = new Set(before.filter((id) => !damaged.has(id)));
  const certain = durableIds(schedule).filter((id) => !damaged.has(id));
  hub.requests.length = 0;
  hub.fault = () => undefined;
  if (index < RUNS_MAX) failingServer(schedule);
  counts.runs += 1;
  if (before.length > 0) counts.resumed += 1;
  const io = index < RUNS_MAX ? failingDisk(schedule) : disk;
  let isDone = await (isKilled ? attemptKilled(schedule) : attempt(schedule, io));
  expect([seed, index, disk.isOff ? [] : disk.differences()]).toEqual([seed, index, []]);
  if (disk.isOff) {
    counts.powerLosses += 1;
    const isAllLost = disk.couldLoseBoth(resumePath(directory), directory, random);
    expect([seed, index, isAllLost]).toEqual([seed, index, false]);
    disk.crash((["everything", "some", "some", "nothing"] as const)[random.below(4)]!, random);
    isDone = false;
  }
  disk.failsAt = Infinity;
  const asked = new Set(hub.requests.map(({ file, range }) => `${file} ${range?.join(" ")}`));
  const fetched = ranges.filter((range) => asked.has(placeOf(range))).map(({ id }) => id);
  counts.rangesFetched += fetched.length;
  for (const id of fetched) damaged.delete(id);
  // What is durable stays durable, and is not fetched again.
  expect([seed, index, fetched.filter((id) => kept.has(id))]).toEqual([seed, index, []]);
  if (!fs.existsSync(directory)) {
    const after = new Set((readSaved(directory)?.completedRanges ?? []).map(({ id }) => id));
    expect([seed, index, certain.filter((id) => !after.has(id))]).toEqual([seed, index, []]);
  }
  return isDone;
}

/** Ranges that the record lists on the disk; the one that is seen may be newer. */
function durableIds({ disk, directory }: Schedule): readonly string[] {
  const bytes = disk.durableBytes(resumePath(directory));
  if (bytes === undefined) return [];
  const text = new TextDecoder().decode(bytes);
  return (JSON.parse(text) as SavedDownload).completedRanges.map(({ id }) => id);
}

const placeOf = ({ shard, offset, bytes }: SourceRange): string =>
  `${shard} ${offset} ${offset + bytes - 1}`;

async function runSchedule(seed: number, slot: number): Promise<void> {
  const random = createRandom(seed);
  const source = sources[seed % sources.length]!;
  const models = path.join(root, `${seed}`);
  fs.mkdirSync(models);
  const rangeBytes = 8192 + random.below(60_000);
  const schedule: Schedule = {
    seed,
    random,
    source,
    hub: hubs[seed % sources.length]![slot]!,
    models,
    directory: path.join(models, "m.gturbo"),
    rangeBytes,
    ranges: planRanges(source.plan, rangeBytes),
    disk: new RecordingDisk(models),
    damaged: new Set(),
  };
  const { directory, disk, hub } = schedule;
  counts.schedules += 1;
  counts.ranges += schedule.ranges.length;
  for (let index = 0; !(await run(schedule, index)); index += 1);
  // The power fails once more: what is finished stays.
  const losses: readonly Loss[] = ["everything", "some"];
  disk.crash(losses[random.below(2)]!, random);
  hub.requests.length = 0;
  expect(await attempt(schedule, disk)).toBe(true);
  expect([seed, hub.requests]).toEqual([seed, []]);
  expect([seed, contentsOf(directory)]).toEqual([seed, { ...source.expected }]);
  expect(fs.readdirSync(models).toSorted()).toEqual(["m.gturbo", "m.gturbo.install.lock"]);
  fs.rmSync(models, { recursive: true });
}

test(`${SCHEDULES} schedules of faults all end with the same package`, async () => {
  const seeds = Array.from({ length: SCHEDULES }, (_, seed) => seed).values();
  let isFailed = false;
  const work = async (slot: number): Promise<void> => {
    for (const seed of seeds) {
      if (isFailed) return;
      await runSchedule(seed, slot).catch((error: unknown) => {
        isFailed = true;
        throw error;
      });
    }
  };
  const started = performance.now();
  const outcomes = await Promise.allSettled(
    Array.from({ length: PARALLEL }, (_, slot) => work(slot)),
  );
  for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
  const seconds = Math.round((performance.now() - started) / 1000);
  process.stderr.write(`fault matrix, ${seconds} s: ${JSON.stringify(counts, undefined, 1)}\n`);
  if (SCHEDULES < 200) return; // Too few for all of it to happen.
  for (const [name, count] of Object.entries(counts)) {
    const total = typeof count === "number" ? count : Object.keys(count).length;
    expect([name, total > 0]).toEqual([name, true]);
  }
}, 900_000);

test.skipIf(process.platform !== "linux")(
  "no child needs more than its memory (peak from /proc)",
  () => {
    // Elsewhere the peak of a running process cannot be read.
    const above = peakBytes - bareBytes;
    const [peak, bare] = [peakBytes, bareBytes].map((bytes) => `${Math.round(bytes / 1e6)} MB`);
    process.stderr.write(`peak of a child ${peak}, of Bun alone ${bare}\n`);
    expect(above).toBeGreaterThan(0);
    expect(above).toBeLessThan(CHILD_MEMORY_BYTES_MAX);
  },
);
