/**
 * The power fails at every single call that changes the disk. What is left is a package, the beginning
 * of one, or nothing, and the same command makes it whole.
 */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { MferenceError } from "../../src/util/errors.ts";
import { packageRulesOf } from "../../src/families/index.ts";
import { openPackage } from "../../src/format/package.ts";
import { discardPartial } from "../../src/install/discard.ts";
import type { InstallIo } from "../../src/install/durable.ts";
import { installLocal } from "../../src/install/install.ts";
import { installRemote } from "../../src/install/remote.ts";
import { readSaved, resumePath } from "../../src/install/resume.ts";
import { verifyPackage } from "../../src/install/verify.ts";
import { contentsOf } from "../fixtures/contents.ts";
import { faultyIo, RecordingDisk, type Loss } from "../fixtures/disk.ts";
import { failureOf } from "../fixtures/failures.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { createRandom } from "../reference/random.ts";
import { REPOSITORY, startHub, type Hub } from "../support/hub.ts";

setDefaultTimeout(300_000);

const LOSSES: readonly Loss[] = ["everything", "some", "some", "nothing"];
const counts: Record<string, number> = {};

let root: string;
let source: string;
let hub: Hub;

beforeAll(async () => {
  const above = fs.existsSync("/dev/shm") ? "/dev/shm" : os.tmpdir();
  root = fs.realpathSync(fs.mkdtempSync(path.join(above, "mf-power-")));
  source = writeSnapshot(SNAPSHOTS.gemma4("tiny"));
  hub = await startHub(source);
});
afterAll(() => {
  hub.stop();
  fs.rmSync(root, { recursive: true, force: true });
  process.stderr.write(`losses of power, each at another call: ${JSON.stringify(counts)}\n`);
});

type Install = (models: string, io: InstallIo) => Promise<unknown>;

const remote: Install = async (models, io) =>
  await installRemote({
    source: { repository: REPOSITORY, revision: "main" },
    name: "m",
    base: hub.base,
    models,
    io,
    limits: { rangeBytes: 60_000, parallel: 2 },
  });
const local: Install = async (models, io) => await installLocal({ source, name: "m", models, io });

/** A folder to come that is not there yet, so that its own creation can be lost as well. */
function emptyDisk(name: string): { readonly disk: RecordingDisk; readonly models: string } {
  const above = path.join(root, name);
  fs.mkdirSync(above);
  return { disk: new RecordingDisk(above), models: path.join(above, "new", "models") };
}

/** Runs until the power fails or the work is done; true when it was done. */
async function until(disk: RecordingDisk, work: () => unknown): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    if (error instanceof MferenceError && disk.isOff) return false;
    throw error;
  }
}

/** A run that may find the package finished. */
async function finish(install: Install, models: string, disk: RecordingDisk): Promise<void> {
  try {
    await install(models, disk);
  } catch (error) {
    if ((error as MferenceError).code !== "install.exists") throw error;
  }
}

/** Whether a loss of power now could take both the record of a download and its package. */
const losesAll = (disk: RecordingDisk, directory: string): boolean =>
  disk.couldLoseBoth(resumePath(directory), directory, createRandom(disk.count));

describe.each([
  ["a download", remote],
  ["a local install", local],
])("%s", (name, install) => {
  test("survives a loss of power at each of its calls", async () => {
    const whole = emptyDisk(`${name} whole`);
    await install(whole.models, whole.disk);
    const expected = contentsOf(path.join(whole.models, "m.gturbo"));
    expect(whole.disk.differences()).toEqual([]);
    const callCount = whole.disk.count;
    expect(callCount).toBeGreaterThan(40);
    for (let call = 1; call <= callCount; call += 1) {
      const { disk, models } = emptyDisk(`${name} ${call}`);
      const directory = path.join(models, "m.gturbo");
      disk.failsAt = call;
      await until(disk, () => install(models, disk));
      expect([call, losesAll(disk, directory)]).toEqual([call, false]);
      if (disk.isOff) disk.crash(LOSSES[call % LOSSES.length]!, createRandom(call));
      disk.failsAt = Infinity;
      // A record is there only where it can be read and its files are beside it.
      if (fs.existsSync(models) && readSaved(directory) !== undefined) {
        const isFound = fs.existsSync(directory) || fs.existsSync(`${directory}.partial`);
        expect([call, isFound]).toEqual([call, true]);
      }
      await finish(install, models, disk);
      // What is finished stays, at once.
      disk.crash("everything", createRandom(call));
      expect([call, fs.existsSync(directory)]).toEqual([call, true]);
      expect([call, contentsOf(directory)]).toEqual([call, expected]);
      await finish(install, models, disk);
      const left = fs.readdirSync(models).toSorted();
      expect([call, left]).toEqual([call, ["m.gturbo", "m.gturbo.install.lock"]]);
      fs.rmSync(path.join(root, `${name} ${call}`), { recursive: true });
    }
    counts[name] = callCount;
  });
});

test("a package whose new name may be lost keeps its record until that is certain", async () => {
  for (let call = 1; call <= 4; call += 1) {
    const { disk, models } = emptyDisk(`promoted ${call}`);
    const directory = path.join(models, "m.gturbo");
    const isPromoted = (): boolean => fs.existsSync(directory);
    const io = faultyIo(disk, (operation) =>
      operation === "syncFolder" && isPromoted() ? "EIO" : undefined,
    );
    const failure = await failureOf(() => remote(models, io));
    expect([failure.code, isPromoted()]).toEqual(["install.io", true]);
    disk.failsAt = disk.count + call;
    await failureOf(() => remote(models, disk));
    expect([call, losesAll(disk, directory)]).toEqual([call, false]);
  }
});

test("files that are made again and could not be forced to the disk are not trusted", async () => {
  const whole = emptyDisk("forced whole");
  await remote(whole.models, whole.disk);
  const { disk, models } = emptyDisk("forced");
  const directory = path.join(models, "m.gturbo");
  disk.failsAt = 200;
  expect(await until(disk, () => remote(models, disk))).toBe(false);
  disk.crash("nothing", createRandom(0));
  expect(readSaved(directory)!.completedRanges.length).toBeGreaterThan(0);
  fs.truncateSync(path.join(`${directory}.partial`, "model_weights.bin"), 100);
  disk.reload();
  let isFailing = true;
  const io = faultyIo(
    disk,
    (operation) => {
      if (!isFailing || operation !== "syncLater") return undefined;
      isFailing = false;
      return "EIO";
    },
    (descriptor) => disk.loseUnsynced(descriptor, "everything", createRandom(0)),
  );
  expect((await failureOf(() => remote(models, io))).code).toBe("install.io");
  await remote(models, disk);
  disk.crash("everything", createRandom(0));
  expect(contentsOf(directory)).toEqual(contentsOf(path.join(whole.models, "m.gturbo")));
});

test("a verification survives a loss of power at each of its calls", async () => {
  const { disk, models } = emptyDisk("verified");
  await local(models, disk);
  const directory = path.join(models, "m.gturbo");
  const trusted = { policy: "trusted-receipt", rulesOf: packageRulesOf } as const;
  let call = 0;
  for (let isDone = false; !isDone;) {
    call += 1;
    disk.failsAt = disk.count + call;
    isDone = await until(disk, () => verifyPackage(directory, { full: true, io: disk }));
    if (!isDone) disk.crash(LOSSES[call % LOSSES.length]!, createRandom(call));
    await openPackage(directory, trusted);
  }
  counts["a verification"] = call - 1;
  expect(call).toBeGreaterThan(4);
});

test("a discard survives a loss of power at each of its calls", async () => {
  let call = 0;
  for (let isDone = false; !isDone;) {
    call += 1;
    const { disk, models } = emptyDisk(`discard ${call}`);
    disk.failsAt = 30;
    expect(await until(disk, () => remote(models, disk))).toBe(false);
    disk.crash("nothing", createRandom(0));
    disk.failsAt = disk.count + call;
    isDone = await until(disk, () => discardPartial("m", models, disk));
    if (!isDone) disk.crash(LOSSES[call % LOSSES.length]!, createRandom(call));
    disk.failsAt = Infinity;
    await finish(remote, models, disk);
    expect(fs.readdirSync(models).toSorted()).toEqual(["m.gturbo", "m.gturbo.install.lock"]);
  }
  counts["a discard"] = call - 1;
  expect(call).toBeGreaterThan(2);
});
