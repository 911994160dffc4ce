import { expect, test } from "bun:test";
import { bundledText, columns, modelTable } from "../../src/cli/models.ts";

test("columns are as wide as what is in them, in cells of the terminal", () => {
  expect(
    columns([
      ["a", "b"],
      ["\u65e5\u672c", ""],
      ["ccc", "d"],
    ]),
  ).toBe("a     b\n\u65e5\u672c\nccc   d\n");
});

test("a partial model says why", () => {
  const table = modelTable([
    { name: "demo", directory: "/m/demo.gturbo", status: "installed", bytes: 29e6, family: "f" },
    { name: "x", directory: "/m/x", status: "partial", reason: "it did not finish", bytes: 10 },
  ]);
  const [head, demo, partial] = table.split("\n");
  expect(head).toMatch(/^NAME +STATE/);
  expect(demo).toMatch(/^demo +installed +29\.0 MB +f +never used +\/m\/demo\.gturbo$/);
  expect(partial).toMatch(/^x +partial +10 B .*it did not finish$/);
});

test("what comes with the program is named until it is installed", () => {
  expect(bundledText(["demo", "demo-x"])).toContain("demo, demo-x\n");
  expect(bundledText([])).toBe("");
});
