import { afterAll, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { complete } from "../../src/engine/generate.ts";
import { Trace, type TraceHeader, type TraceStep } from "../../src/engine/trace.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import { closeModels, completionOf, loadTiny, openSession, promptOf } from "../fixtures/models.ts";

afterAll(closeModels);

test("a trace has a line for the model and one for each chunk and token", async () => {
  const model = await loadTiny({ slots: 3, chunkRows: 4 });
  const session = openSession(model);
  const file = path.join(temporaryFolder(), "trace.jsonl");
  const trace = new Trace(file, model);
  const onEvent: Parameters<typeof completionOf>[1] = { onEvent: (event) => trace.show(event) };
  const { ids, stats } = await complete(session, completionOf(promptOf(10), onEvent));
  trace.close();
  const lines = fs.readFileSync(file, "utf8").trimEnd().split("\n");
  const [header, ...steps] = lines.map((line) => JSON.parse(line) as TraceHeader | TraceStep);
  expect(header).toEqual({
    type: "model",
    layers: 6,
    experts: 8,
    perToken: 2,
    slots: 3,
    strideBytes: model.package.strideBytes,
  });
  const all = steps as TraceStep[];
  expect(all.map(({ type }) => type)).toEqual([
    ...Array<"prefill">(3).fill("prefill"),
    ...Array<"token">(ids.length).fill("token"),
  ]);
  // The first token needs no layer that its prompt has not run.
  const layers = all.map(({ routes }) => routes.map(({ layer }) => layer));
  expect(layers.filter((list) => list.length === 0)).toHaveLength(1);
  expect(layers.filter((list) => list.join() === "0,1,2,3,4,5")).toHaveLength(all.length - 1);
  expect(all.at(-1)!.routes.every(({ experts }) => experts.length === 2)).toBe(true);
  const sum = (value: (step: TraceStep) => number): number =>
    all.reduce((total, step) => total + value(step), 0);
  expect(sum(({ bytesRead }) => bytesRead)).toBe(stats.bytesRead);
  const misses = sum(({ routes }) => routes.reduce((n, route) => n + route.misses, 0));
  expect(misses).toBe(stats.misses);
  expect(model.experts.observer).toBeUndefined();
});

test("a trace that cannot be written says so", async () => {
  const model = await loadTiny();
  const failure = await failureOf(() => new Trace("/nowhere/at/all.jsonl", model));
  expect(failure.code).toBe("engine.options");
  expect(failure.message).toContain("the trace cannot be written");
});
