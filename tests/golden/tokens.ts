/**
 * Greedy decoding of one prompt on two devices, token by token, with what the choice of each token hung
 * on. Knows no device; what may differ is said by `marginLeast`.
 */
import type { Model } from "../../src/engine/model.ts";
import { Session } from "../../src/engine/session.ts";
import { floatsOf } from "../../src/ops/tensor.ts";

/** One chosen token. */
export interface Step {
  readonly id: number;
  /** From the largest logit to the next. */
  readonly margin: number;
  /** Raw logits `[V]`. */
  readonly logits: Float32Array;
}

export interface Comparison {
  /** Tokens chosen by both after the same tokens. */
  readonly tokens: number;
  /** Where the two part, if they do; what follows says nothing. */
  readonly parting?: { readonly step: number; readonly margin: number };
  /** Largest difference of a logit before the two part. */
  readonly difference: number;
  /** Whether every margin where they part is within what rounding may do. */
  readonly isWithin: boolean;
}

/** The likeliest tokens, until one of `stopIds` or so many. */
export async function decodeGreedy(
  model: Model,
  promptIds: Uint32Array,
  end: { readonly stopIds: ReadonlySet<number>; readonly maxNew: number },
): Promise<Step[]> {
  const session = new Session(model);
  const steps: Step[] = [];
  let ids = promptIds;
  while (steps.length < end.maxNew) {
    await session.extend(ids);
    model.stream.flush();
    const step = choose(floatsOf(model.forward.logits).slice(0, model.forward.logits.columns));
    steps.push(step);
    if (end.stopIds.has(step.id)) break;
    ids = Uint32Array.of(step.id);
  }
  session.reset();
  session.close();
  return steps;
}

/** The first of the largest, as the devices choose. */
function choose(logits: Float32Array): Step {
  let [id, second] = [0, Number.NEGATIVE_INFINITY];
  for (const [i, value] of logits.entries()) {
    if (i === 0) continue;
    if (value > logits[id]!) {
      second = logits[id]!;
      id = i;
    } else {
      second = Math.max(second, value);
    }
  }
  return { id, margin: logits[id]! - second, logits };
}

/** Twice what the golden tests allow a logit to be off: both of the two may be. */
export const marginLeast = ({ id, logits }: Step): number => 4e-4 + 2e-4 * Math.abs(logits[id]!);

/** Holds the second device's tokens against the first's. */
export function compareSteps(truth: readonly Step[], found: readonly Step[]): Comparison {
  let difference = 0;
  for (const [step, wanted] of truth.entries()) {
    const { logits, id } = found[step]!;
    for (const [i, value] of wanted.logits.entries()) {
      difference = Math.max(difference, Math.abs(value - logits[i]!));
    }
    if (id === wanted.id) continue;
    const parting = { step, margin: wanted.margin };
    const isWithin = wanted.margin <= marginLeast(wanted);
    return { tokens: step, parting, difference, isWithin };
  }
  // A NaN anywhere is not within.
  return { tokens: truth.length, difference, isWithin: difference >= 0 };
}
