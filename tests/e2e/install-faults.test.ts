/**
 * Downloads under seeded schedules of faults of the server, of the disk and of the process: whatever
 * happens, the next runs finish the package, bit for bit, and fetch nothing again that was durable.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { MferenceError } from "../../src/util/errors.ts";
import { sha256 } from "../../src/format/digest.ts";
import { systemIo, type InstallIo } from "../../src/install/durable.ts";
import { installRemote } from "../../src/install/remote.ts";
import { readSaved } from "../../src/install/resume.ts";
import { planInstall, type InstallPlan } from "../../src/install/plan.ts";
import { planRanges } from "../../src/install/ranges.ts";
import type { Clock } from "../../src/install/retry.ts";
import { openCheckpoint } from "../../src/install/source.ts";
import { REPOSITORY, startHub, type Fault, type Hub } from "../fixtures/hub.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { createRandom, type Random } from "../reference/random.ts";

/** A few each time; FAULT_SCHEDULES=200 takes a minute or two. */
const SCHEDULES = Number(process.env["FAULT_SCHEDULES"] ?? 40);
/** Every so many schedules the process is killed instead of its work being cancelled. */
const KILL_EVERY = 20;
const RUNS_MAX = 40;
const FAMILIES = ["gemma4", "maple", "inklingSmall"] as const;

const clock: Clock = { now: Date.now, random: () => 0, sleep: () => Promise.resolve() };
const FAULTS: readonly Fault[] = [
  { kind: "short" },
  { kind: "reset" },
  { kind: "whole" },
  { kind: "stall" },
  { kind: "shortToTheEnd" },
  { kind: "status", status: 500 },
  { kind: "status", status: 403 },
  { kind: "status", status: 404 },
  { kind: "status", status: 429, headers: { "Retry-After": "5" } },
  { kind: "headers", headers: { "Content-Range": "bytes 0-1/2" } },
  { kind: "headers", headers: { "Content-Encoding": "gzip" } },
  { kind: "headers", headers: { ETag: '"changed"' } },
  { kind: "redirect", to: "http://example.com/" },
  { kind: "redirect", to: "/loop" },
];

interface Source {
  readonly hub: Hub;
  readonly indexSha256: string;
  readonly expected: Readonly<Record<string, string>>;
  readonly plan: InstallPlan;
}

let root: string;
const sources: Source[] = [];
const counts = { runs: 0, serverFaults: 0, diskFaults: 0, cancelled: 0, killed: 0, resumed: 0 };

beforeAll(async () => {
  // Thousands of forced writes: what is in memory forgets them at once.
  root = fs.mkdtempSync(
    path.join(fs.existsSync("/dev/shm") ? "/dev/shm" : os.tmpdir(), "mf-faults-"),
  );
  for (const family of FAMILIES) {
    const folder = writeSnapshot(SNAPSHOTS[family]("tiny"));
    const hub = await startHub(folder);
    const index = fs.readFileSync(path.join(folder, "model.safetensors.index.json"));
    const place = { hub, indexSha256: sha256(index) };
    const { directory } = await installRemote(optionsOf(place, `fresh-${family}`, 30_000));
    const checkpoint = await openCheckpoint(folder);
    sources.push({ ...place, expected: digests(directory), plan: planInstall(checkpoint) });
    checkpoint.close();
  }
});
afterAll(() => {
  for (const { hub } of sources) hub.stop();
  fs.rmSync(root, { recursive: true, force: true });
});

function optionsOf(place: Pick<Source, "hub" | "indexSha256">, name: string, rangeBytes: number) {
  return {
    source: { repository: REPOSITORY, revision: "main", indexSha256: place.indexSha256 },
    name,
    base: place.hub.base,
    models: root,
    limits: { rangeBytes, parallel: 2, idleMs: 100, retry: { attempts: 3, baseMs: 1, clock } },
  };
}

/** Digest of every file but the receipt, which holds a path and a time. */
function digests(directory: string): Record<string, string> {
  const files = (fs.readdirSync(directory, { recursive: true }) as string[]).toSorted();
  return Object.fromEntries(
    files
      .filter((file) => fs.statSync(path.join(directory, file)).isFile())
      .filter((file) => file !== "verified-install.json")
      .map((file) => [file, sha256(fs.readFileSync(path.join(directory, file)))]),
  );
}

/** A disk that fails once, at the given write. */
function faultyDisk(random: Random): InstallIo {
  let left = random.below(60);
  return {
    ...systemIo,
    write(descriptor, bytes, offset) {
      left -= 1;
      if (left !== 0) return systemIo.write(descriptor, bytes, offset);
      counts.diskFaults += 1;
      throw Object.assign(new Error("failed"), { code: random.below(2) === 0 ? "ENOSPC" : "EIO" });
    },
  };
}

/** Makes the server misbehave at some of the next requests. */
function faultyServer(hub: Hub, random: Random): void {
  hub.fault = () => {
    if (random.below(12) !== 0) return undefined;
    counts.serverFaults += 1;
    return FAULTS[random.below(FAULTS.length)];
  };
}

/** One run that may fail in any way but an unforeseen one; true when it finished the package. */
async function attempt(
  place: Source,
  schedule: { name: string; rangeBytes: number; random: Random },
) {
  const { name, rangeBytes, random } = schedule;
  const controller = new AbortController();
  let events = random.below(3) === 0 ? random.below(40) : Infinity;
  try {
    await installRemote({
      ...optionsOf(place, name, rangeBytes),
      io: random.below(3) === 0 ? faultyDisk(random) : systemIo,
      signal: controller.signal,
      onProgress() {
        events -= 1;
        if (events <= 0) controller.abort();
      },
    });
    return true;
  } catch (error) {
    if (!(error instanceof MferenceError)) throw error;
    expect(error.code).toMatch(/^install\.(network|remote|auth|space|io|cancelled)$/);
    if (error.code === "install.cancelled") counts.cancelled += 1;
    return false;
  }
}

/** The same in a process of its own, which is killed after some requests. */
async function attemptKilled(
  { hub, indexSha256 }: Source,
  schedule: { name: string; rangeBytes: number; random: Random },
) {
  const child = Bun.spawn([
    process.execPath,
    path.join(import.meta.dir, "../fixtures/install-child.ts"),
    hub.base.href,
    root,
    indexSha256,
    String(schedule.rangeBytes),
    schedule.name,
  ]);
  const first = hub.requests.length;
  const requestCount = 8 + schedule.random.below(30);
  while (child.exitCode === null && hub.requests.length - first < requestCount) await Bun.sleep(1);
  child.kill("SIGKILL");
  await child.exited;
  if (child.signalCode === "SIGKILL") counts.killed += 1;
  return child.exitCode === 0;
}

async function runSchedule(seed: number): Promise<void> {
  const random = createRandom(seed);
  const place = sources[seed % sources.length]!;
  const { hub } = place;
  const schedule = { name: `m${seed}`, rangeBytes: 4096 + random.below(40_000), random };
  const directory = path.join(root, `${schedule.name}.gturbo`);
  const isKilled = seed % KILL_EVERY === 0;
  const ranges = new Map(
    planRanges(place.plan, schedule.rangeBytes).map(({ id, shard, offset, bytes }) => [
      id,
      `${shard} ${offset} ${offset + bytes - 1}`,
    ]),
  );
  let isDone = false;
  for (let run = 0; !isDone; run += 1) {
    const kept = readSaved(directory)?.completedRanges ?? [];
    const durable = kept.length;
    hub.requests.length = 0;
    if (durable > 0) counts.resumed += 1;
    if (run < RUNS_MAX && !isKilled) faultyServer(hub, random);
    else hub.fault = () => undefined;
    counts.runs += 1;
    isDone = await (isKilled && run < 3 ? attemptKilled : attempt)(place, schedule);
    const after = readSaved(directory)?.completedRanges.length ?? durable;
    const asked = new Set(
      hub.requests.map(({ file, range }) => `${file} ${range?.[0]} ${range?.[1]}`),
    );
    // What is durable stays durable, and is not fetched again.
    expect([seed, kept.filter(({ id }) => asked.has(ranges.get(id)!))]).toEqual([seed, []]);
    expect([seed, after >= durable]).toEqual([seed, true]);
  }
  expect([seed, digests(directory)]).toEqual([seed, { ...place.expected }]);
  const left = fs.readdirSync(root).filter((name) => name.startsWith(`${schedule.name}.`));
  expect(left.toSorted()).toEqual([
    `${schedule.name}.gturbo`,
    `${schedule.name}.gturbo.install.lock`,
  ]);
  fs.rmSync(directory, { recursive: true });
}

test(`${SCHEDULES} schedules of faults all end with the same package`, async () => {
  for (let seed = 0; seed < SCHEDULES; seed += 1) await runSchedule(seed);
  process.stderr.write(`${SCHEDULES} schedules: ${JSON.stringify(counts)}\n`);
  for (const [name, count] of Object.entries(counts))
    expect([name, count > 0]).toEqual([name, true]);
}, 300_000);
