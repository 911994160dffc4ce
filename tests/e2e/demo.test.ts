/** The trained demo models say what they were trained to say. */
import { expect, test } from "bun:test";
import { withPackage } from "../golden/check.ts";
import { answer, heldOut } from "../golden/demo.ts";
import { answersOf, dialoguesOf } from "../golden/dialogues.ts";
import { DEMO, library } from "../golden/library.ts";
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
