/** The forward pass against Hugging Face's logits and stages, on this device, in exact precision. */
import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { loadModel } from "../../src/engine/model.ts";
import { complete } from "../../src/engine/generate.ts";
import { Session } from "../../src/engine/session.ts";
import { checkFixture, printReport, withPackage } from "../golden/check.ts";
import { FIXTURES, library } from "../golden/library.ts";
import { readFixture } from "../golden/fixture.ts";

const fixtures = readdirSync(FIXTURES, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map((entry) => entry.name);

test("the repository has golden fixtures", () => {
  expect(fixtures.length).toBeGreaterThanOrEqual(3);
});

test.each(fixtures)(
  "%s: every stage, whole, token by token and in split chunks",
  async (name) => {
    const report = await checkFixture(`${FIXTURES}/${name}`, { library });
    expect(report.stages.length).toBeGreaterThan(50);
    expect(report.passed ? "passed" : printReport(report)).toBe("passed");
  },
  60_000,
);

const SLOTS = [1, 4, 8, 16, 32, "resident"] as const;

test.each(["exact", "fast"] as const)(
  "%s: the same continuation at any number of slots, byte for byte",
  async (precision) => {
    const { inputs } = readFixture(`${FIXTURES}/gemma4-a-e16`);
    const promptIds = inputs.ids.slice(0, inputs.prompt);
    await withPackage(`${FIXTURES}/gemma4-a-e16`, async (directory) => {
      const runs: { ids: string; logits: string }[] = [];
      for (const slots of SLOTS) {
        const model = await loadModel({ directory, library, precision, slots, contextRows: 200 });
        const session = new Session(model);
        const result = await complete(session, {
          promptIds,
          sampling: { temperature: 0 },
          maxNew: 40,
          stop: [],
          stopReason: () => undefined,
          onEvent: () => {},
          isCancelled: () => false,
        });
        const { bytes } = model.forward.logits.buffer;
        runs.push({ ids: result.ids.join(" "), logits: Bun.hash(bytes).toString(16) });
        session.close();
        model.close();
      }
      expect(new Set(runs.map(({ ids }) => ids)).size).toBe(1);
      expect(new Set(runs.map(({ logits }) => logits)).size).toBe(1);
    });
  },
  60_000,
);

test("the greedy continuation is Hugging Face's", async () => {
  for (const name of fixtures) {
    const { inputs } = readFixture(`${FIXTURES}/${name}`);
    if (!inputs.greedy) continue;
    await withPackage(`${FIXTURES}/${name}`, async (directory) => {
      const model = await loadModel({ directory, library, precision: "exact", contextRows: 200 });
      const session = new Session(model);
      const wanted = inputs.ids.slice(inputs.prompt);
      const result = await complete(session, {
        promptIds: inputs.ids.slice(0, inputs.prompt),
        sampling: { temperature: 0 },
        maxNew: wanted.length,
        stop: [],
        stopReason: () => undefined,
        onEvent: () => {},
        isCancelled: () => false,
      });
      expect(result.ids).toEqual(wanted);
      session.close();
      model.close();
    });
  }
}, 60_000);
