import { expect, test } from "bun:test";
import path from "node:path";
import { readRequest } from "../../src/cli/install.ts";

test("the demo by its name, a checkpoint by its folder", () => {
  expect(readRequest({ model: "demo" })).toEqual({ kind: "demo" });
  const source = path.resolve("some/model-x");
  expect(readRequest({ source: "some/model-x/" })).toEqual({
    kind: "folder",
    source,
    name: "model-x",
  });
  expect(readRequest({ source: "some/model-x", name: "y" })).toMatchObject({ name: "y" });
});

test.each([
  [{}, "say what to install"],
  [{ model: "other" }, '"other" cannot be installed by name'],
  [{ model: "demo", source: "x" }, "not both"],
  [{ model: "demo", name: "x" }, "--name goes with --source"],
])("%j is refused", (values, sentence) => {
  expect(() => readRequest(values)).toThrow(sentence);
});
