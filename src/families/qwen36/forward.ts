/**
 * The layer graph of Qwen 3.6: pre-normed layers whose mixer is the gated delta rule or attention with a
 * gated output, each followed by routed experts beside one gated shared expert. Prefill and decode are the
 * same code with T tokens.
 *
 * Source: transformers, models/qwen3_5_moe/modeling_qwen3_5_moe.py @ 009e78d6.
 */
import { attend } from "../../kv/attend.ts";
import { applyDelta, convolve, type DeltaHeads, normGated, prepareDelta } from "../../ops/delta.ts";
import type { AttentionStep, Heads, Routes } from "../../ops/ops.ts";
import {
  floatsOf,
  integersOf,
  rowsOf,
  Scratch,
  type Tensor,
  type Vector,
} from "../../ops/tensor.ts";
import type { Batch, ForwardParts, ForwardPass } from "../family.ts";
import { channels, type Qwen36Config, ropeFrequencies, valueWidth } from "./config.ts";
import {
  type FullWeights,
  type LayerWeights,
  type LinearWeights,
  modelWeights,
  type ModelWeights,
} from "./weights.ts";

/** Added to the sum of squares of queries and keys, as Hugging Face does. */
const UNIT_EPS = 1e-6;
/** Two BF16 ones. */
const ONES = 0x3f80_3f80;

const headsOf = (config: Qwen36Config): Heads => ({
  queryHeads: config.numAttentionHeads,
  kvHeads: config.numKeyValueHeads,
  headDim: config.headDim,
});

const deltaHeads = (config: Qwen36Config): DeltaHeads => ({
  keyHeads: config.linearKeyHeads,
  valueHeads: config.linearValueHeads,
  keyDim: config.linearKeyHeadDim,
  valueDim: config.linearValueHeadDim,
});

/** Activations of attention layers. */
function fullScratch(scratch: Scratch, config: Qwen36Config, rows: number) {
  const { queryHeads, kvHeads, headDim } = headsOf(config);
  const inverse = ropeFrequencies(config);
  const frequencies = scratch.tensor(1, inverse.length);
  floatsOf(frequencies).set(inverse);
  return {
    frequencies,
    rope: { table: scratch.tensor(rows, 2 * inverse.length), pairs: inverse.length },
    pairs: scratch.tensor(rows, 2 * queryHeads * headDim),
    q: scratch.tensor(rows, queryHeads * headDim),
    k: scratch.tensor(rows, kvHeads * headDim),
    v: scratch.tensor(rows, kvHeads * headDim),
    attended: scratch.tensor(rows, queryHeads * headDim),
  };
}

/** Activations of layers of the delta rule. */
function linearScratch(scratch: Scratch, config: Qwen36Config, rows: number) {
  return {
    raw: scratch.tensor(rows, channels(config)),
    mixed: scratch.tensor(rows, channels(config)),
    z: scratch.tensor(rows, valueWidth(config)),
    alpha: scratch.tensor(rows, config.linearValueHeads),
    beta: scratch.tensor(rows, config.linearValueHeads),
    y: scratch.tensor(rows, valueWidth(config)),
    gated: scratch.tensor(rows, valueWidth(config)),
  };
}

/** Activations of one step; every layer uses the same ones. */
function stepScratch(scratch: Scratch, config: Qwen36Config, rows: number) {
  const wide = (): Tensor => scratch.tensor(rows, config.hiddenSize);
  const ones = scratch.integers(Math.ceil(config.numExperts / 2));
  integersOf(ones).fill(ONES);
  return {
    x: wide(),
    normed: wide(),
    mixerOut: wide(),
    sharedHidden: scratch.tensor(rows, config.sharedIntermediateSize),
    sharedOut: wide(),
    sharedGate: scratch.tensor(rows, 1),
    routedOut: wide(),
    mlpOut: wide(),
    scores: scratch.tensor(rows, config.numExperts),
    /** Experts have no scales of their own. */
    expertScale: { buffer: ones, length: config.numExperts } satisfies Vector,
    routes: {
      ids: scratch.integers(rows * config.topKExperts),
      weights: scratch.integers(rows * config.topKExperts),
      perToken: config.topKExperts,
    } satisfies Routes,
  };
}

export class Qwen36Forward implements ForwardPass {
  readonly #parts: ForwardParts;
  readonly #config: Qwen36Config;
  readonly #weights: ModelWeights;
  readonly #scratch: Scratch;
  readonly #full: ReturnType<typeof fullScratch>;
  readonly #linear: ReturnType<typeof linearScratch>;
  readonly #s: ReturnType<typeof stepScratch>;
  readonly #ids: Tensor["buffer"];
  readonly logits: Tensor;

  constructor(parts: ForwardParts, config: Qwen36Config) {
    const { chunkRows, logitRows } = parts.limits;
    this.#parts = parts;
    this.#config = config;
    this.#weights = modelWeights(parts.weights, config);
    this.#scratch = new Scratch(parts.ops.stream.device);
    this.#full = fullScratch(this.#scratch, config, chunkRows);
    this.#linear = linearScratch(this.#scratch, config, chunkRows);
    this.#s = stepScratch(this.#scratch, config, chunkRows);
    this.#ids = this.#scratch.integers(chunkRows);
    this.logits = this.#scratch.tensor(logitRows, config.vocabSize);
  }

  get scratchBytes(): number {
    return this.#scratch.byteLength;
  }

  async run(batch: Batch): Promise<void> {
    const { ops } = this.#parts;
    const { x, normed, mlpOut } = this.#s;
    const T = batch.ids.length;
    const eps = this.#config.rmsNormEps;
    const { position, tap } = batch;
    integersOf(this.#ids, T).set(batch.ids);
    ops.embed({ buffer: this.#ids }, this.#weights.embedding, x, { T, multiplier: 1 });
    tap?.tensor("embed", x, T);
    ops.ropeTable(this.#full.frequencies, this.#full.rope, { T, position });
    for (const [layer, weights] of this.#weights.layers.entries()) {
      // The branch of a layer joins the residual stream where the next one norms it.
      if (layer === 0) ops.rmsNorm(x, weights.inputNorm, normed, { T, eps });
      else ops.residualNorm(x, mlpOut, weights.inputNorm, { y: normed, T, eps });
      if (layer > 0) tap?.tensor(`layer${layer - 1}.out`, x, T);
      if (weights.mixer.kind === "full") this.#attention(layer, weights.mixer, batch);
      else this.#delta(layer, weights.mixer, batch);
      await this.#feedForward(layer, weights, batch);
    }
    this.#head(batch);
  }

  #attention(layer: number, w: FullWeights, { ids, position, tap }: Batch): void {
    const { ops, kv } = this.#parts;
    const { normed, mixerOut } = this.#s;
    const { rope, pairs, q, k, v, attended } = this.#full;
    const T = ids.length;
    const heads = headsOf(this.#config);
    const scale = 1 / Math.sqrt(heads.headDim);
    const eps = this.#config.rmsNormEps;
    const step: AttentionStep = { T, position, heads, rope, eps, window: 0, scale };
    const cache = kv.view(layer);

    ops.matmul(normed, w.q, pairs, T);
    ops.matmul(normed, w.k, k, T);
    ops.matmul(normed, w.v, v, T);
    ops.splitGate(pairs, q, T, heads);
    attend(ops, cache, { q, k, v, y: attended, norms: w.qkNorms }, step);
    tap?.tensor(`layer${layer}.q`, q, T);
    tap?.cache(layer, { T, position });
    tap?.tensor(`layer${layer}.attn`, attended, T);
    ops.outputGate(pairs, attended, T, heads);
    ops.matmul(attended, w.o, mixerOut, T);
    tap?.tensor(`layer${layer}.mixer`, mixerOut, T);
  }

  #delta(layer: number, w: LinearWeights, { ids, tap }: Batch): void {
    const { ops, kv } = this.#parts;
    const { normed, mixerOut } = this.#s;
    const { raw, z, y, gated, ...rows } = this.#linear;
    const { mixed, alpha, beta } = rows;
    const T = ids.length;
    const heads = deltaHeads(this.#config);
    const { tail, state } = kv.recurrent(layer);

    ops.matmul(normed, w.qkv, raw, T);
    ops.matmul(normed, w.z, z, T);
    ops.matmul(normed, w.a, alpha, T);
    ops.matmul(normed, w.b, beta, T);
    convolve(ops, raw, w.conv, { tail, y: mixed, T });
    tap?.tensor(`layer${layer}.conv`, mixed, T);
    prepareDelta(ops, rows, heads, { aLog: w.aLog, dtBias: w.dtBias, T, eps: UNIT_EPS });
    tap?.tensor(`layer${layer}.prepared`, mixed, T);
    tap?.tensor(`layer${layer}.log_decay`, alpha, T);
    tap?.tensor(`layer${layer}.beta`, beta, T);
    applyDelta(ops, rows, heads, { state, y, T });
    tap?.tensor(`layer${layer}.delta_out`, y, T);
    const eps = this.#config.rmsNormEps;
    normGated(ops, { x: y, gate: z, y: gated }, w.norm, { T, heads: heads.valueHeads, eps });
    ops.matmul(gated, w.o, mixerOut, T);
    tap?.tensor(`layer${layer}.mixer`, mixerOut, T);
  }

  async #feedForward(layer: number, w: LayerWeights, { ids, tap }: Batch): Promise<void> {
    const { ops, experts } = this.#parts;
    const s = this.#s;
    const T = ids.length;
    const eps = this.#config.rmsNormEps;

    ops.residualNorm(s.x, s.mixerOut, w.postNorm, { y: s.normed, T, eps });
    ops.matmul(s.normed, w.router, s.scores, T);
    ops.route(s.scores, s.expertScale, s.routes, T);
    const routed = experts.routed();
    tap?.tensor(`layer${layer}.router_logits`, s.scores, T);
    tap?.routes(layer, s.routes, T);

    // Runs while the host reads the routes, plans and fetches.
    ops.matmul(s.normed, w.sharedGate, s.sharedGate, T);
    ops.gatedMatmul(s.normed, w, s.sharedHidden, { T, activation: "silu" });
    ops.matmul(s.sharedHidden, w.down, s.sharedOut, T);

    await experts.forward(layer, { T, x: s.normed, routes: s.routes, routed, y: s.routedOut });
    if (tap) await experts.settle();
    const branches = { shared: s.sharedOut, routed: s.routedOut };
    ops.gatedShared(branches, s.sharedGate, s.mlpOut, T);
    tap?.tensor(`layer${layer}.mlp`, s.mlpOut, T);
  }

  #head({ ids, head, tap }: Batch): void {
    if (head === "none") return;
    const { ops } = this.#parts;
    const { x, normed, mlpOut } = this.#s;
    const eps = this.#config.rmsNormEps;
    const [first, T] = head === "all" ? [0, ids.length] : [ids.length - 1, 1];
    const stream = rowsOf(x, first, T);
    const rows = rowsOf(normed, first, T);
    ops.residualNorm(stream, rowsOf(mlpOut, first, T), this.#weights.finalNorm, {
      y: rows,
      T,
      eps,
    });
    tap?.tensor(`layer${this.#weights.layers.length - 1}.out`, stream, T);
    tap?.tensor("final", rows, T);
    ops.matmul(rows, this.#weights.head, this.logits, T);
  }

  close(): void {
    this.#scratch.close();
  }
}
