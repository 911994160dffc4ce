/**
 * Greedy decoding of a demo model's held-out dialogues on the CPU device and on the Metal device, both
 * in exact precision:
 *
 *   bun scripts/compare-devices.ts [--model demo] [--prompts 20] [--from 0] [--precision exact]
 *
 * Devices round differently, so tokens may differ where the margin between the two likeliest is within
 * the tolerance, and nowhere else. Prints the count of differences, and last "N passed, N failed".
 */
import { parseArgs } from "node:util";
import { deviceLibrary } from "../src/engine/libraries.ts";
import { loadModel } from "../src/engine/model.ts";
import { demoSource } from "../src/install/demo.ts";
import { findTextFiles, openText } from "../src/text/index.ts";
import { withPackage } from "../tests/golden/check.ts";
import { heldOut } from "../tests/golden/demo.ts";
import { dialoguesOf } from "../tests/golden/dialogues.ts";
import { compareSteps, decodeGreedy, type Step } from "../tests/golden/tokens.ts";

const { values } = parseArgs({
  options: {
    model: { type: "string", default: "demo" },
    prompts: { type: "string", default: "20" },
    from: { type: "string", default: "0" },
    precision: { type: "string", default: "exact" },
  },
});
const MAX_NEW = 256;

interface Dialogue {
  readonly prompt: string;
}

interface Run {
  readonly directory: string;
  readonly library: string;
  readonly precision: "exact" | "fast";
}

/** Every dialogue's steps on one device. */
async function decodeAll(run: Run, dialogues: readonly Dialogue[]): Promise<Step[][]> {
  const model = await loadModel({ ...run, slots: 32 });
  const files = findTextFiles(`${run.directory}/tokenizer`)!;
  const text = openText({ files, dialect: model.family.chat });
  const stopIds = new Set(text.stopIds.keys());
  const all: Step[][] = [];
  for (const { prompt } of dialogues) {
    const ids = Uint32Array.from(text.tokenizer.encode(prompt, { specials: true }));
    all.push(await decodeGreedy(model, ids, { stopIds, maxNew: MAX_NEW }));
  }
  text.close();
  model.close();
  return all;
}

async function compare(directory: string): Promise<boolean> {
  const first = Number(values.from);
  const all: readonly Dialogue[] = values.model === "demo" ? heldOut : dialoguesOf(values.model);
  const dialogues = all.slice(first, first + Number(values.prompts));
  const precision = values.precision === "fast" ? "fast" : "exact";
  const [cpu, metal] = [await deviceLibrary("cpu"), await deviceLibrary("metal")];
  const truth = await decodeAll({ directory, library: cpu, precision: "exact" }, dialogues);
  const started = performance.now();
  const found = await decodeAll({ directory, library: metal, precision }, dialogues);
  const seconds = (performance.now() - started) / 1000;
  let [tokens, partings, difference, failed] = [0, 0, 0, 0];
  for (const [i, steps] of truth.entries()) {
    const result = compareSteps(steps, found[i]!);
    tokens += result.tokens;
    difference = Math.max(difference, result.difference);
    if (result.parting !== undefined) {
      partings += 1;
      const { step, margin } = result.parting;
      console.log(
        `dialogue ${first + i} parts at token ${step}, margin ${margin.toExponential(1)}`,
      );
    }
    if (!result.isWithin) failed += 1;
  }
  console.log(
    `${tokens} tokens of ${dialogues.length} dialogues the same on both devices, ${partings} dialogues part; ` +
      `logits differ by ${difference.toExponential(1)} at most; Metal took ${seconds.toFixed(1)} s`,
  );
  console.log(`${truth.length - failed} passed, ${failed} failed`);
  return failed === 0 && truth.length > 0;
}

process.exit((await withPackage(demoSource(values.model), compare)) ? 0 : 1);
