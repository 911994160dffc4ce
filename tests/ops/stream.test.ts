import { afterAll, beforeEach, describe, expect, test } from "bun:test";
import { softcap } from "../../src/kernels/sampling.ts";
import { printCommands } from "../../src/native/commands.ts";
import { Device } from "../../src/native/device.ts";
import { Stream } from "../../src/ops/stream.ts";
import { floatsOf, Scratch, type Tensor } from "../../src/ops/tensor.ts";
import { isMetal, library } from "../fixtures/devices.ts";

const device = new Device({ library, threads: 2 });
const scratch = new Scratch(device);
const [x, y, z] = [scratch.tensor(1, 8), scratch.tensor(1, 8), scratch.tensor(1, 8)];
const stream = new Stream(device);
afterAll(() => {
  stream.close();
  scratch.close();
  device.close();
});

beforeEach(() => {
  floatsOf(x).fill(7);
  floatsOf(y).fill(0);
  floatsOf(z).fill(0);
});

/** Records target = source. */
const copy = (source: Tensor, target: Tensor): void =>
  stream.dispatch(softcap, { x: source, y: target }, { N: 8, cap: 0 });

const first = (tensor: Tensor): number => floatsOf(tensor)[0]!;

/** Lets the device come so far while this thread's event loop runs. */
async function untilCopied(target: Tensor): Promise<void> {
  while (first(target) === 0) await Bun.sleep(1);
}

describe("a stream", () => {
  test("runs nothing before it is committed, and lists in order", () => {
    copy(x, y);
    expect(first(y)).toBe(0);
    stream.commit();
    copy(y, z);
    const ticket = stream.signal();
    stream.commit();
    stream.wait(ticket);
    expect(first(z)).toBe(7);
  });

  test("submits nothing when nothing was recorded", () => {
    const { lists } = device.counters();
    stream.commit();
    device.finish();
    expect(device.counters().lists).toBe(lists);
  });

  test("shows its lists", () => {
    const seen: string[] = [];
    stream.observe((commands) => seen.push(printCommands(commands)));
    copy(x, y);
    stream.flush();
    stream.observe(undefined);
    expect(seen).toHaveLength(1);
    expect(seen[0]).toMatch(/^softcap x=\d+\+0\[32\] y=\d+\+0\[32\] N=8 cap=0\nsignal event /);
  });

  test("runs what is before a gate at once and the rest when it opens", async () => {
    copy(x, y);
    const before = stream.signal();
    const gate = stream.gate();
    copy(y, z);
    stream.commit();
    await untilCopied(y);
    expect([first(y), first(z)]).toEqual([7, 0]);
    // The device has long passed this point; a GPU may say so only at the end of its list.
    expect(() => stream.wait(before)).toThrow("would never end");
    expect(() => stream.flush()).toThrow("would never end");
    expect([first(y), first(z)]).toEqual([7, 0]);
    stream.openGate(gate);
    stream.flush();
    expect(first(z)).toBe(7);
  });

  test("opens gates in order", () => {
    const [one, two] = [stream.gate(), stream.gate()];
    stream.commit();
    expect(() => stream.openGate(two)).toThrow(`gate ${two} opens after`);
    stream.openGate(one);
    const behind = stream.signal();
    stream.commit();
    expect(() => stream.wait(behind)).toThrow("would never end");
    stream.openGate(two);
    stream.wait(behind);
  });

  test("may be awaited up to the first list that a closed gate holds up", () => {
    const one = stream.gate();
    copy(x, y);
    const first = stream.signal();
    stream.commit();
    const two = stream.gate();
    copy(y, z);
    const second = stream.signal();
    stream.commit();
    const third = stream.signal();
    stream.commit();
    expect(() => stream.wait(first)).toThrow("would never end");
    stream.openGate(one);
    stream.wait(first);
    expect([floatsOf(y)[0], floatsOf(z)[0]]).toEqual([7, 0]);
    for (const ticket of [second, third]) {
      expect(() => stream.wait(ticket)).toThrow("would never end");
    }
    stream.openGate(two);
    stream.wait(third);
    expect(floatsOf(z)[0]).toBe(7);
  });

  test("counts the seconds that its host waits", () => {
    const before = stream.waitSeconds;
    stream.flush();
    expect(stream.waitSeconds).toBeGreaterThan(before);
  });
});

describe("abandoning", () => {
  test("lets lists behind a closed gate end, and forgets what was not committed", () => {
    stream.gate();
    copy(x, y);
    stream.commit();
    copy(x, z);
    const lost = stream.signal();
    stream.abandon();
    // Nothing runs any more: what was behind the gate has.
    expect([first(y), first(z)]).toEqual([7, 0]);
    stream.wait(lost);
    copy(y, z);
    stream.flush();
    expect(first(z)).toBe(7);
  });

  test("goes on after a cancellation, whatever was recorded meanwhile", () => {
    stream.gate();
    copy(x, y);
    const ticket = stream.signal();
    stream.commit();
    device.cancel();
    copy(x, z);
    expect(() => stream.commit()).toThrow(expect.objectContaining({ code: "native.cancelled" }));
    stream.abandon();
    // Metal takes no committed list back; it has run and means nothing.
    expect([first(y), first(z)]).toEqual([isMetal ? 7 : 0, 0]);
    stream.wait(ticket);
    copy(x, z);
    stream.flush();
    expect(first(z)).toBe(7);
  });

  test("is harmless when nothing is wrong", () => {
    stream.abandon();
    stream.abandon();
    stream.flush();
  });
});
