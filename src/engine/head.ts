/**
 * Choosing the next token from one row of raw logits: the device reduces the vocabulary, the host draws.
 * Owns the buffers of those passes. Raw logits stay raw: cap and penalty work on a copy.
 */
import type { SharedBuffer } from "../native/device.ts";
import {
  argmaxOf,
  type CandidateBuffers,
  candidatesOf,
  capLogits,
  gumbelOf,
  penalizeLogits,
} from "../ops/sampling.ts";
import type { Stream } from "../ops/stream.ts";
import { integersOf, Scratch, type Tensor } from "../ops/tensor.ts";
import { MferenceError } from "../util/errors.ts";
import {
  checkFinite,
  drawCandidate,
  noiseKeyAt,
  planSampling,
  type SamplingOptions,
  type SamplingPlan,
  TOP_K_MAX,
  uniformAt,
} from "./sampler.ts";

export interface HeadOptions {
  readonly stream: Stream;
  readonly logits: Tensor;
  readonly finalSoftcap: number;
  /** Most ids that a repetition penalty may list. */
  readonly contextRows: number;
}

/** How one token is to be chosen. */
export interface Choice {
  readonly options: SamplingOptions & { readonly seed: bigint };
  /** Place among the new tokens; the first is 0. */
  readonly index: number;
  /** Distinct ids that a repetition penalty applies to. */
  readonly seen: Uint32Array;
}

export class Head {
  readonly #options: HeadOptions;
  readonly #scratch: Scratch;
  readonly #result: SharedBuffer;
  #sampling: SamplingBuffers | undefined;

  constructor(options: HeadOptions) {
    this.#options = options;
    this.#scratch = new Scratch(options.stream.device);
    this.#result = this.#scratch.integers(2);
  }

  get scratchBytes(): number {
    return this.#scratch.byteLength;
  }

  /**
   * Runs everything recorded, then chooses from row 0 of the logits.
   *
   * @throws MferenceError "engine.logits" when the row has no usable logits
   */
  choose(choice: Choice): number {
    const { logits } = this.#options;
    const plan = planSampling(choice.options, logits.columns);
    const row = this.#prepare(plan, choice);
    switch (plan.choice.kind) {
      case "greedy":
        return this.#greedy(row);
      case "gumbel":
        return this.#gumbel(row, plan.choice.temperature, choice);
      case "candidates":
        return this.#draw(row, plan.choice.count, choice);
    }
  }

  close(): void {
    this.#scratch.close();
  }

  /** Cap and penalty, on a copy; the raw row itself where neither is wanted. */
  #prepare(plan: SamplingPlan, { options, seen }: Choice): Tensor {
    const { stream, logits, finalSoftcap } = this.#options;
    const isCapped = plan.capped && finalSoftcap > 0;
    if (!isCapped && !plan.penalized) return logits;
    const { row, seenIds } = this.#buffers();
    // A cap of 0 copies: the penalty must not touch the raw row.
    capLogits(stream, logits, row, isCapped ? finalSoftcap : 0);
    if (plan.penalized && seen.length > 0) {
      integersOf(seenIds).set(seen);
      const penalty = options.repetitionPenalty;
      penalizeLogits(stream, row, seenIds, { count: seen.length, penalty });
    }
    return row;
  }

  #greedy(row: Tensor): number {
    argmaxOf(this.#options.stream, row, this.#result);
    return this.#take(row.columns);
  }

  #gumbel(row: Tensor, temperature: number, { options, index }: Choice): number {
    const { low: keyLow, high: keyHigh } = noiseKeyAt(options.seed, index);
    gumbelOf(this.#options.stream, row, this.#result, { temperature, keyLow, keyHigh });
    return this.#take(row.columns);
  }

  #draw(row: Tensor, count: number, { options, index }: Choice): number {
    const { stream } = this.#options;
    const buffers = this.#buffers();
    const { ids, values, mass } = buffers;
    candidatesOf(stream, row, buffers, count);
    stream.flush();
    const found = {
      ids: integersOf(ids, count),
      values: new Float32Array(values.bytes.buffer, 0, count),
      mass: new Float32Array(mass.bytes.buffer, 0, 3),
    };
    return drawCandidate(found, options, uniformAt(options.seed, index));
  }

  /** Waits for a chosen id and the count of logits that are not finite. */
  #take(V: number): number {
    this.#options.stream.flush();
    const [id = V, notFinite = 0] = integersOf(this.#result, 2);
    checkFinite(notFinite);
    if (id < V) return id;
    throw new MferenceError(
      "engine.logits",
      `the device chose token ${id} of a vocabulary of ${V}`,
    );
  }

  /** Sampling's buffers are made at its first use: a greedy session never pays for them. */
  #buffers(): SamplingBuffers {
    const { logits, contextRows } = this.#options;
    this.#sampling ??= {
      row: this.#scratch.tensor(1, logits.columns),
      seenIds: this.#scratch.integers(Math.min(contextRows, logits.columns)),
      ids: this.#scratch.integers(TOP_K_MAX),
      values: this.#scratch.integers(TOP_K_MAX),
      mass: this.#scratch.integers(3),
    };
    return this.#sampling;
  }
}

interface SamplingBuffers extends CandidateBuffers {
  readonly row: Tensor;
  readonly seenIds: SharedBuffer;
}
