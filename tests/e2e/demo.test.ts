/** The trained demo model says what it was trained to say. */
import { expect, test } from "bun:test";
import { withPackage } from "../golden/check.ts";
import { answer, heldOut } from "../golden/demo.ts";
import { DEMO, library } from "../golden/library.ts";

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
