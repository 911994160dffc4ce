/** The trained demo models say what they were trained to say. */
import { expect, test } from "bun:test";
import { withPackage } from "../golden/check.ts";
import { answer, heldOut } from "../golden/demo.ts";
import { answersOf, dialoguesOf } from "../golden/dialogues.ts";
import { DEMO, library } from "../golden/library.ts";
import { compareSteps, decodeGreedy, type Step } from "../golden/tokens.ts";
import { loadModel } from "../../src/engine/model.ts";
import { findTextFiles, openText } from "../../src/text/index.ts";
import { demoSource } from "../../src/install/demo.ts";

test.each(["exact", "fast"] as const)(
  "%s: at least 181 of the 200 held-out answers are exact",
  async (precision) => {
    expect(heldOut).toHaveLength(200);
    await withPackage(DEMO, async (directory) => {
      const answers = await answer({ directory, library, precision, slots: 32 }, heldOut);
      const exact = answers.filter((text, i) => text === heldOut[i]!.want).length;
      expect(exact).toBeGreaterThanOrEqual(181);
    });
  },
  300_000,
);

test.each(["exact", "fast"] as const)(
  "%s: Qwen's demo renders its prompts, thinks, answers and calls tools as it was trained to",
  async (precision) => {
    const dialogues = dialoguesOf("demo-qwen36");
    await withPackage(demoSource("demo-qwen36"), async (directory) => {
      const options = { directory, library, precision, slots: 16, contextRows: 1024 } as const;
      const answers = await answersOf(options, dialogues);
      const wanted = (i: number): string => dialogues[i]!.want;
      const exact = answers.filter(({ written }, i) => written === wanted(i));
      expect(exact.length).toBeGreaterThanOrEqual(224);
      // Every call that was wanted and written is one, by name and arguments.
      const called = exact.filter(({ written }) => written.includes("<tool_call>"));
      expect(called.length).toBeGreaterThanOrEqual(30);
      for (const { written, calls, content, reasoning } of exact) {
        const names = [...written.matchAll(/<function=(\w+)>/g)].map((match) => match[1]!);
        expect(calls.map((call) => call.slice(0, call.indexOf("(")))).toEqual(names);
        const values = [...written.matchAll(/<parameter=\w+>\n(.*)\n<\/parameter>/g)];
        // A text, or the value itself where the tool wants no text.
        for (const [, value = ""] of values) {
          expect(
            [`:${value}`, JSON.stringify(value)].some((part) => calls.join().includes(part)),
          ).toBe(true);
        }
        for (const text of [content, reasoning]) expect(text).not.toMatch(/<|>|^\s|\s$/);
      }
      const thought = answers.filter((_, i) => dialogues[i]!.think === true);
      expect(thought.every(({ reasoning }) => reasoning !== "")).toBe(true);
    });
  },
  300_000,
);

/** What follows each prompt, fed in chunks of so many ids. */
async function stepsAfter(directory: string, chunkRows: number): Promise<Step[][]> {
  const options = { directory, library, precision: "exact", slots: 16, contextRows: 2304 } as const;
  const model = await loadModel({ ...options, chunkRows });
  const files = findTextFiles(`${directory}/tokenizer`)!;
  const text = openText({ files, dialect: model.family.chat });
  const prompts = dialoguesOf("demo-qwen36").map(({ prompt }) =>
    text.tokenizer.encode(prompt, { specials: true }),
  );
  const long = prompts.flatMap((ids) => [...ids]).slice(0, 2100);
  expect(long).toHaveLength(2100);
  const end = { stopIds: new Set(text.stopIds.keys()), maxNew: 32 };
  const all: Step[][] = [];
  for (const ids of [long, ...prompts.slice(0, 8)]) {
    all.push(await decodeGreedy(model, Uint32Array.from(ids), end));
  }
  text.close();
  model.close();
  return all;
}

test("Qwen's demo goes on alike after prompts fed whole and one by one, one of 2,100 ids", async () => {
  await withPackage(demoSource("demo-qwen36"), async (directory) => {
    const whole = await stepsAfter(directory, 128);
    const singles = await stepsAfter(directory, 1);
    for (const [i, steps] of whole.entries()) {
      const { isWithin, difference } = compareSteps(steps, singles[i]!);
      expect(isWithin).toBe(true);
      const largest = Math.max(...steps[0]!.logits.map(Math.abs));
      expect(difference).toBeLessThanOrEqual(5e-5 * largest);
    }
  });
}, 300_000);
