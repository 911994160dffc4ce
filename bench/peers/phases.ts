/**
 * What a measured program is told and what it tells: a plan of phases, and a line of JSON for each. Both
 * sides of a comparison speak it, llama.c and ours.ts.
 */
import { z } from "zod";
import { idsOf } from "../forced.ts";

export interface Phase {
  /** Begins with "prefill", which forgets what was before, or with "decode", which goes on. */
  readonly name: string;
  readonly ids: Uint32Array;
}

const reportSchema = z.object({
  name: z.string(),
  tokens: z.number(),
  seconds: z.number(),
  /** From the disk, by this process. */
  readBytes: z.number(),
  majorFaults: z.number(),
  /** Memory now that is no file's. */
  privateBytes: z.number(),
  /** The largest resident memory so far, pages of files included. */
  peakBytes: z.number(),
  /** Weights that a decoded token reads; only in the report of loading. */
  bytesPerToken: z.number().optional(),
  /** Only where the program has a cache of experts. */
  hitRate: z.number().optional(),
  missedBytes: z.number().optional(),
  waitSeconds: z.number().optional(),
  readSeconds: z.number().optional(),
});
export type Report = z.infer<typeof reportSchema>;

export const parseReport = (line: string): Report => reportSchema.parse(JSON.parse(line));

/** A plan as text, a phase a line. */
export const encodePlan = (phases: readonly Phase[]): string =>
  phases.map(({ name, ids }) => `${name} ${ids.length} ${ids.join(" ")}\n`).join("");

export function parsePlan(text: string): Phase[] {
  return text
    .trim()
    .split("\n")
    .map((line) => {
      const [name = "", , ...ids] = line.split(" ");
      return { name, ids: Uint32Array.from(ids, Number) };
    });
}

export interface PlanSizes {
  readonly prompts: readonly number[];
  /** Decoded before the measured ones. */
  readonly warm: number;
  readonly tokens: number;
  readonly vocabSize: number;
}

/** Of a prompt that is not measured: it touches what the first one would find untouched. */
const WARM_ROWS = 32;

/** Prompts, the longest first so that decoding goes on after the shortest; then forced decoding. */
export function planPhases(sizes: PlanSizes, round: number): Phase[] {
  const { prompts, warm, tokens, vocabSize } = sizes;
  const warmRows = prompts.length === 0 ? 0 : WARM_ROWS;
  const total = prompts.reduce((a, b) => a + b, warmRows + warm + tokens);
  const ids = idsOf("scattered", total, { vocabSize, run: round });
  let at = 0;
  const take = (name: string, count: number): Phase => {
    at += count;
    return { name, ids: ids.subarray(at - count, at) };
  };
  return [
    take("prefill.warm", warmRows),
    ...prompts.toSorted((a, b) => b - a).map((length) => take(`prefill.${length}`, length)),
    take("decode.warm", warm),
    take("decode", tokens),
  ].filter((phase) => phase.ids.length > 0);
}
