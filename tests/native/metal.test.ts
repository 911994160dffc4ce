/**
 * What Metal may refuse, and what becomes of it: every failure is a sentence, and the device goes on where
 * it can. The software Metal injects the failures, each in a process of its own.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { existsSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { softcap } from "../../src/kernels/sampling.ts";
import { metalHindrance } from "../../src/native/build-metal.ts";
import { Commands } from "../../src/native/commands.ts";
import { Device } from "../../src/native/device.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { isMetal, isOnMac, library } from "../fixtures/devices.ts";

/** Places of a dispatch command. */
const GROUPS_OFFSET = 16;
const THREADS_OFFSET = 28;
const STEPS = join(import.meta.dir, "../fixtures/metal-steps.ts");

const reason =
  metalHindrance() ?? "MFERENCE_TEST_DEVICE=metal runs it, and scripts/check-metal.ts does";
if (!isMetal) test.skip(`the Metal device (${reason})`, () => {});

/** What each step of the process said. */
async function stepsWith(variables: Record<string, string>): Promise<string[]> {
  const child = Bun.spawn([process.execPath, STEPS, library], {
    env: { ...process.env, ...variables },
    stdout: "pipe",
    stderr: "inherit",
  });
  const output = await new Response(child.stdout).text();
  expect(await child.exited).toBe(0);
  return JSON.parse(output) as string[];
}

const ALL_WELL = [...Array.from({ length: 9 }, () => "ok"), "result 7, event 3", "ok"];

/** All well but for some steps. */
const except = (wrong: Record<number, RegExp>): string[] =>
  ALL_WELL.map((text, i) => {
    const pattern = wrong[i];
    return pattern === undefined ? text : expect.stringMatching(pattern);
  });

describe.skipIf(!isMetal)("what only a GPU refuses", () => {
  const device = isMetal ? new Device({ library }) : undefined;
  afterAll(() => device?.close());

  test("an instruction set", () => {
    expect(() => new Device({ library, simd: "avx2" })).toThrow(/no instruction sets/);
  });

  test("groups of no threads or of too many", () => {
    const commands = new Commands();
    const [x, y] = [device!.createBuffer(32), device!.createBuffer(32)];
    commands.dispatch(softcap, { x: { buffer: x }, y: { buffer: y } }, { N: 8, cap: 0 });
    const bytes = commands.bytes.slice();
    const set = (offset: number, value: number): void =>
      new DataView(bytes.buffer).setUint32(offset, value, true);
    for (const threads of [0, 1025, 2 ** 32 - 1]) {
      set(THREADS_OFFSET, threads);
      expect(() => device!.submit(bytes)).toThrow(
        /softcap has groups of \d+ threads; 1 to \d+ were/,
      );
    }
    // No group is nothing to do.
    set(GROUPS_OFFSET, 0);
    device!.submit(bytes);
    device!.finish(60);
  });

  test("more command buffers than the queue has places for, as a list with very many waits needs", () => {
    const [gate, done] = [device!.createEvent(), device!.createEvent()];
    const waiting = (count: number): Uint8Array<ArrayBuffer> => {
      const commands = new Commands();
      for (let i = 0; i < count; i += 1) commands.wait(gate, 1);
      commands.signal(done, 1);
      return commands.bytes.slice();
    };
    expect(() => device!.submit(waiting(1024))).toThrow(
      /0 command buffers run and a list needs 1025 more, of at most 1024/,
    );
    device!.submit(waiting(700));
    expect(() => device!.submit(waiting(400))).toThrow(/700 command buffers run/);
    device!.signal(gate, 1);
    device!.wait(done, 1, 60);
    device!.finish(60);
    device!.submit(waiting(400));
    device!.finish(60);
    device!.destroyEvent(gate);
    device!.destroyEvent(done);
  });

  test("a buffer that is larger than the device's largest", () => {
    const path = join(temporaryFolder(), "huge");
    writeFileSync(path, "");
    truncateSync(path, device!.info.bufferBytesMax + 1);
    const memory = device!.mapFile(path);
    expect(() => device!.bindMemory(memory)).toThrow(/exceeds the device's largest of \d+/);
    device!.destroyBuffer(device!.bindMemory(memory, device!.info.bufferBytesMax, 1));
    device!.release(memory);
  });
});

const unmappable = "/sys/kernel/uevent_seqnum";
const isThere = existsSync(unmappable);
const title = isThere ? "a mapping" : `a mapping (there is no ${unmappable} here)`;
describe.skipIf(!isMetal || !isThere)(title, () => {
  test("of a file that opens and has no pages", () => {
    const device = new Device({ library });
    expect(() => device.mapFile(unmappable)).toThrow(`${unmappable} could not be mapped: `);
    device.close();
  });
});

// What is injected exists in the software Metal only.
describe.skipIf(!isMetal || isOnMac)("when Metal fails", () => {
  test("nothing fails by itself", async () => {
    expect(await stepsWith({})).toEqual(ALL_WELL);
  });

  test.each([
    ["device", /no Metal device; use the CPU device/],
    ["family", /is no Apple silicon GPU/],
    ["queue", /Metal made no command queue/],
    ["library", /the shaders do not compile: .*injected/],
  ])("no %s: the device does not open", async (place, sentence) => {
    expect(await stepsWith({ SOFTMETAL_FAIL: place })).toEqual([expect.stringMatching(sentence)]);
  });

  test.each([
    ["buffer", { 1: /Metal made no buffer of 16384 bytes/ }],
    ["event", { 2: /Metal made no shared event/ }],
  ] as const)("no %s", async (place, wrong) => {
    const steps = await stepsWith({ SOFTMETAL_FAIL: place });
    const ends = ALL_WELL.slice(0, 3).map((text, i) => {
      const pattern = (wrong as Record<number, RegExp>)[i];
      return pattern === undefined ? text : expect.stringMatching(pattern);
    });
    expect(steps).toEqual([...ends, "ok"]);
  });

  test.each([
    ["function", /kernel softcap with constants \[\]: .*injected/],
    ["pipeline", /kernel softcap with constants \[\]: .*injected/],
    ["width", /kernel softcap with constants \[\]: SIMD-groups of 16 lanes; 32 were expected/],
    ["command-buffer", /Metal made no command buffer/],
    ["encoder", /Metal made no compute encoder/],
  ])("no %s: the list is refused, the next one runs", async (place, sentence) => {
    const steps = await stepsWith({ SOFTMETAL_FAIL: `${place}:1` });
    expect(steps).toEqual(except({ 3: sentence }));
  });

  test("a failed command buffer makes every wait say why, until resumed", async () => {
    const sentence = /a command list failed: .*injected/;
    const wrong = { 4: sentence, 5: sentence, 6: sentence };
    expect(await stepsWith({ SOFTMETAL_FAIL: "commands:1" })).toEqual(except(wrong));
  });
});
