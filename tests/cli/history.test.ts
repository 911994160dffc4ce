import { afterEach, beforeEach, expect, test } from "bun:test";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { History } from "../../src/cli/history.ts";

let folder = "";
beforeEach(() => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "mference-history-"));
});
afterEach(() => fs.rmSync(folder, { recursive: true }));

test("lines come back newest first, from a file for its owner alone", () => {
  const file = path.join(folder, "new", "history");
  const history = new History(file);
  expect(history.load()).toEqual([]);
  for (const text of ["one", "", "  ", "two\u20ac"]) history.add(text);
  expect(new History(file).load()).toEqual(["two\u20ac", "one"]);
  expect(fs.statSync(file).mode & 0o777).toBe(0o600);
});

test("two chats lose nothing of each other", () => {
  const file = path.join(folder, "history");
  const [left, right] = [new History(file), new History(file)];
  left.add("a");
  right.add("b");
  left.add("c");
  expect(right.load()).toEqual(["c", "b", "a"]);
});

test("a long file is shortened to its newest lines", () => {
  const file = path.join(folder, "history");
  fs.writeFileSync(file, Array.from({ length: 2500 }, (_, i) => `line ${i}\n`).join(""));
  const lines = new History(file).load();
  expect([lines.length, lines[0], lines.at(-1)]).toEqual([1000, "line 2499", "line 1500"]);
  expect(fs.readFileSync(file, "utf8").split("\n")).toHaveLength(1001);
});

test("without a file nothing is kept, and one that cannot be written stops nothing", () => {
  const none = new History();
  none.add("x");
  expect(none.load()).toEqual([]);
  const impossible = new History(path.join(folder, "a", "..", "."));
  impossible.add("x");
  expect(impossible.load()).toEqual([]);
});
