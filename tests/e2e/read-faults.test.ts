/**
 * Reads that fail under load: a thousand faults at random places of prefill and decode on one process. Each
 * ends its request in a sentence, the next request is right, and nothing is left behind.
 */
import { afterAll, expect, test } from "bun:test";
import fs from "node:fs";
import { complete } from "../../src/engine/generate.ts";
import { type ReadAt, readAt } from "../../src/experts/reader.ts";
import { currentMemoryBytes } from "../../src/util/memory.ts";
import { isMetal } from "../fixtures/devices.ts";
import { failureOf } from "../fixtures/failures.ts";
import { closeModels, completionOf, loadTiny, openSession, promptOf } from "../fixtures/models.ts";
import { createRandom } from "../reference/random.ts";

afterAll(closeModels);

/** A GPU in software takes minutes for what a CPU does in seconds. */
const FAULTS = isMetal ? 50 : 1000;
const MAX_NEW = 10;
/** Faults after which memory may not grow any more. */
const SETTLED = FAULTS / 5;

const broken: ReadAt = () =>
  Promise.reject(Object.assign(new Error("EIO: i/o error"), { code: "EIO" }));
const ended: ReadAt = () => Promise.resolve(0);
/** A part arrives, and the rest with the next read: no fault. */
const short: ReadAt = (descriptor, target, position) =>
  readAt(descriptor, target.subarray(0, target.length - 1), position);

/** A part arrives, and then no more: experts are whole pages, the rest of a short read is not. */
const torn: ReadAt = (descriptor, target, position) =>
  target.length % 4096 === 0 ? short(descriptor, target, position) : Promise.resolve(0);
const openFiles = (): number =>
  fs.existsSync("/proc/self/fd") ? fs.readdirSync("/proc/self/fd").length : 0;

test(`${FAULTS} reads fail at random, and what follows each is right`, async () => {
  const random = createRandom(5);
  let [reads, faultAt] = [0, -1];
  let fault = broken;
  const read: ReadAt = (...request) => {
    reads += 1;
    const isRest = request[1].length % 4096 !== 0;
    if (reads === faultAt || (faultAt > 0 && fault === torn && isRest)) return fault(...request);
    return !isRest && random.uniform(0, 1) < 0.02 ? short(...request) : readAt(...request);
  };
  const model = await loadTiny({ slots: 2, contextRows: 32, read });
  const session = openSession(model);
  const answer = (seed: number) => {
    session.reset();
    reads = 0;
    return complete(session, completionOf(promptOf(9, seed), { maxNew: MAX_NEW }));
  };
  const wanted: (readonly number[])[] = [];
  let least = Infinity;
  for (let seed = 0; seed < 4; seed += 1) {
    wanted.push((await answer(seed)).ids);
    least = Math.min(least, reads);
  }
  let [tokens, failures, settledBytes] = [0, 0, 0];
  const before = [openFiles(), model.device.counters().bufferBytes];
  for (let i = 0; i < FAULTS; i += 1) {
    const seed = i % wanted.length;
    fault = [broken, ended, torn][i % 3]!;
    faultAt = 1 + Math.floor(random.uniform(0, 1) * (least / 2));
    const failure = await failureOf(() => answer(seed));
    faultAt = -1;
    expect(failure.code).toBe("expert.read");
    expect(failure.message).toMatch(/^expert \d of layer \d \(.*\): (EIO|the file ends after)/);
    failures += 1;
    const { ids } = await answer(seed);
    expect(ids).toEqual(wanted[seed]!);
    tokens += ids.length;
    if (i === SETTLED) settledBytes = currentMemoryBytes();
  }
  expect([failures, tokens]).toEqual([FAULTS, FAULTS * MAX_NEW]);
  expect([openFiles(), model.device.counters().bufferBytes]).toEqual(before);
  Bun.gc(true);
  expect(currentMemoryBytes() - settledBytes).toBeLessThan(24e6);
}, 240_000);
