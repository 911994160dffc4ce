import { expect, test } from "bun:test";
import { portion, Progress } from "../../src/cli/progress.ts";
import { fakeTerminal } from "./fake.ts";

function start(isTerminal: boolean, isQuiet = false) {
  const terminal = fakeTerminal(isTerminal);
  const clock = { ms: 5000 };
  const progress = new Progress({ output: terminal.err, isQuiet, now: () => clock.ms });
  const at = (ms: number, text: string): void => {
    clock.ms = 5000 + ms;
    progress.update(text);
  };
  return { progress, at, stderr: terminal.stderr };
}

test("what is done within a second shows nothing", () => {
  const { progress, at, stderr } = start(true);
  at(0, "a");
  at(999, "b");
  progress.done();
  expect(stderr()).toBe("");
});

test("a terminal gets one line, four times a second, erased in the end", () => {
  const { progress, at, stderr } = start(true);
  at(0, "a");
  at(1000, "b");
  at(1100, "c");
  at(1250, "d");
  progress.done();
  expect(stderr()).toBe("\r\u001b[Kb (1.00 s)\r\u001b[Kd (1.25 s)\r\u001b[K");
});

test("a terminal's line is no longer than the terminal is wide", () => {
  for (const [columns, shown] of [
    [20, "0123456789 (1.00 s)"],
    [0, "0123456789abcdef (1.00 s)"],
    [3, " (1.00 s)"],
  ] as const) {
    let said = "";
    const output = { isTerminal: true, columns, write: (text: string) => void (said += text) };
    let now = 0;
    const progress = new Progress({ output, isQuiet: false, now: () => now });
    progress.update("0123456789abcdef");
    now = 1000;
    progress.tick();
    progress.done();
    expect(said).toBe(`\r\u001b[K${shown}\r\u001b[K`);
  }
});

test("elsewhere there is a line a second while something changes, else a rare sign of life", () => {
  const { progress, at, stderr } = start(false);
  at(0, "a");
  for (let ms = 1000; ms <= 3000; ms += 250) at(ms, `${Math.floor(ms / 500)}`);
  for (let ms = 4000; ms <= 14000; ms += 1000) at(ms, "same");
  progress.done();
  expect(stderr()).toBe("2\n4\n6\nsame\nsame\n");
});

test("quiet is quiet, and work can begin again after its end", () => {
  const quiet = start(true, true);
  quiet.at(0, "a");
  quiet.at(5000, "b");
  quiet.progress.done();
  expect(quiet.stderr()).toBe("");
  const { progress, at, stderr } = start(false);
  at(0, "a");
  progress.done();
  at(2000, "b");
  at(2500, "c");
  progress.done();
  expect(stderr()).toBe("");
});

test("a line that stays does not join the one that is refreshed", () => {
  const { progress, at, stderr } = start(true);
  progress.say("first");
  at(0, "a");
  at(1000, "a");
  progress.say("said");
  at(1050, "a");
  progress.done();
  const refreshed = [
    "\r\u001b[Ka (1.00 s)",
    "\r\u001b[K",
    "said\n",
    "\r\u001b[Ka (1.05 s)",
    "\r\u001b[K",
  ];
  expect(stderr()).toBe(`first\n${refreshed.join("")}`);
  const elsewhere = start(false);
  elsewhere.at(0, "a");
  elsewhere.at(1000, "a");
  elsewhere.progress.say("said");
  elsewhere.at(2500, "a");
  expect(elsewhere.stderr()).toBe("a\nsaid\n");
  const quiet = start(true, true);
  quiet.progress.say("said");
  expect(quiet.stderr()).toBe("");
});

test("portion", () => {
  expect(portion(1, 3, String)).toBe("33% of 3");
  expect(portion(0, 0, String)).toBe("100% of 0");
});
