/**
 * The layer graph of Gemma 4: sandwich-normed attention (sliding or full) and a feed-forward half of a
 * dense branch beside routed experts. Prefill and decode are the same code with T tokens.
 *
 * Source: transformers, models/gemma4/modular_gemma4.py @ 033b1a82.
 */
import { attend } from "../../kv/attend.ts";
import type { AttentionStep, Routes } from "../../ops/ops.ts";
import { floatsOf, integersOf, rowsOf, Scratch, type Tensor } from "../../ops/tensor.ts";
import type { Batch, ForwardParts, ForwardPass } from "../family.ts";
import { headsOf, type Gemma4Config, type LayerKind, ropeFrequencies } from "./config.ts";
import { type LayerWeights, modelWeights, type ModelWeights } from "./weights.ts";

const KINDS: readonly LayerKind[] = ["sliding", "full"];

/** Activations that layers of one kind share: projections of its widths and its rotary rows. */
function kindScratch(scratch: Scratch, config: Gemma4Config, kind: LayerKind, rows: number) {
  const heads = headsOf(config, kind);
  const { queryHeads, kvHeads, headDim } = heads;
  const inverse = ropeFrequencies(config, kind);
  const frequencies = scratch.tensor(1, inverse.length);
  floatsOf(frequencies).set(inverse);
  return {
    heads,
    window: kind === "sliding" ? config.slidingWindow : 0,
    frequencies,
    rope: { table: scratch.tensor(rows, 2 * inverse.length), pairs: inverse.length },
    q: scratch.tensor(rows, queryHeads * headDim),
    k: scratch.tensor(rows, kvHeads * headDim),
    v: scratch.tensor(rows, kvHeads * headDim),
    attended: scratch.tensor(rows, queryHeads * headDim),
  };
}

/** Activations of one step; every layer uses the same ones. */
function stepScratch(scratch: Scratch, config: Gemma4Config, rows: number) {
  const wide = (): Tensor => scratch.tensor(rows, config.hiddenSize);
  return {
    x: wide(),
    normed: wide(),
    projected: wide(),
    sharedIn: wide(),
    routedIn: wide(),
    routerIn: wide(),
    sharedHidden: scratch.tensor(rows, config.intermediateSize),
    sharedOut: wide(),
    routedOut: wide(),
    scores: scratch.tensor(rows, config.numExperts),
    routes: {
      ids: scratch.integers(rows * config.topKExperts),
      weights: scratch.integers(rows * config.topKExperts),
      perToken: config.topKExperts,
    } satisfies Routes,
  };
}

export class Gemma4Forward implements ForwardPass {
  readonly #parts: ForwardParts;
  readonly #config: Gemma4Config;
  readonly #weights: ModelWeights;
  readonly #scratch: Scratch;
  readonly #kinds: Readonly<Record<LayerKind, ReturnType<typeof kindScratch>>>;
  readonly #s: ReturnType<typeof stepScratch>;
  readonly #ids: Tensor["buffer"];
  readonly logits: Tensor;

  constructor(parts: ForwardParts, config: Gemma4Config) {
    const { chunkRows, logitRows } = parts.limits;
    this.#parts = parts;
    this.#config = config;
    this.#weights = modelWeights(parts.weights, config);
    this.#scratch = new Scratch(parts.ops.stream.device);
    this.#kinds = {
      sliding: kindScratch(this.#scratch, config, "sliding", chunkRows),
      full: kindScratch(this.#scratch, config, "full", chunkRows),
    };
    this.#s = stepScratch(this.#scratch, config, chunkRows);
    this.#ids = this.#scratch.integers(chunkRows);
    this.logits = this.#scratch.tensor(logitRows, config.vocabSize);
  }

  get scratchBytes(): number {
    return this.#scratch.byteLength;
  }

  async run(batch: Batch): Promise<void> {
    const { ops } = this.#parts;
    const { x } = this.#s;
    const T = batch.ids.length;
    const { position, tap } = batch;
    integersOf(this.#ids, T).set(batch.ids);
    // The multiplier stays float32: its BF16 rounding moves logits by 3e-4 (tests/fixtures/golden).
    const multiplier = Math.fround(Math.sqrt(this.#config.hiddenSize));
    ops.embed({ buffer: this.#ids }, this.#weights.embedding, x, { T, multiplier });
    tap?.tensor("embed", x, T);
    for (const kind of KINDS) {
      const { frequencies, rope } = this.#kinds[kind];
      ops.ropeTable(frequencies, rope, { T, position });
    }
    for (const [layer, weights] of this.#weights.layers.entries()) {
      this.#attention(layer, weights, batch);
      await this.#feedForward(layer, weights, batch);
      tap?.tensor(`layer${layer}.out`, x, T);
    }
    this.#head(batch);
  }

  #attention(layer: number, w: LayerWeights, { ids, position, tap }: Batch): void {
    const { ops, kv } = this.#parts;
    const { x, normed, projected } = this.#s;
    const T = ids.length;
    const eps = this.#config.rmsNormEps;
    const { heads, window, rope, q, k, v, attended } = this.#kinds[this.#config.layerKinds[layer]!];
    const step: AttentionStep = { T, position, heads, rope, eps, window, scale: 1 };
    const cache = kv.view(layer);

    ops.rmsNorm(x, w.inputNorm, normed, { T, eps });
    ops.matmul(normed, w.q, q, T);
    ops.matmul(normed, w.k, k, T);
    if (w.v) ops.matmul(normed, w.v, v, T);
    attend(ops, cache, { q, k, v: w.v ? v : k, y: attended, norms: w.qkNorms }, step);
    tap?.tensor(`layer${layer}.q`, q, T);
    tap?.cache(layer, { T, position });
    tap?.tensor(`layer${layer}.attn`, attended, T);
    ops.matmul(attended, w.o, projected, T);
    tap?.tensor(`layer${layer}.attn_proj`, projected, T);
  }

  async #feedForward(layer: number, w: LayerWeights, { ids, tap }: Batch): Promise<void> {
    const { ops, experts } = this.#parts;
    const s = this.#s;
    const T = ids.length;
    const eps = this.#config.rmsNormEps;
    const routerFactor = Math.fround(this.#config.hiddenSize ** -0.5);

    ops.sandwichSetup(s.x, s.projected, w.setup, {
      shared: s.sharedIn,
      routed: s.routedIn,
      router: s.routerIn,
      T,
      eps,
      routerFactor,
    });
    ops.matmul(s.routerIn, w.router, s.scores, T);
    ops.route(s.scores, w.expertScale, s.routes, T);
    const routed = experts.routed();
    tap?.tensor(`layer${layer}.router_logits`, s.scores, T);
    tap?.routes(layer, s.routes, T);

    // Runs while the host reads the routes, plans and fetches.
    ops.gatedMatmul(s.sharedIn, w, s.sharedHidden, { T, activation: "geluTanh" });
    ops.matmul(s.sharedHidden, w.down, s.sharedOut, T);
    tap?.tensor(`layer${layer}.dense_mlp`, s.sharedOut, T);

    await experts.forward(layer, { T, x: s.routedIn, routes: s.routes, routed, y: s.routedOut });
    if (tap) await experts.settle();
    tap?.tensor(`layer${layer}.experts_sum`, s.routedOut, T);
    ops.sandwichTail(s.x, { shared: s.sharedOut, routed: s.routedOut }, w.tail, { T, eps });
  }

  /** The tied head, without the embedding's multiplier. */
  #head({ ids, head, tap }: Batch): void {
    if (head === "none") return;
    const { ops } = this.#parts;
    const { x, normed } = this.#s;
    const eps = this.#config.rmsNormEps;
    const [first, T] = head === "all" ? [0, ids.length] : [ids.length - 1, 1];
    const rows = rowsOf(normed, first, T);
    ops.rmsNorm(rowsOf(x, first, T), this.#weights.finalNorm, rows, { T, eps });
    tap?.tensor("final", rows, T);
    ops.matmul(rows, this.#weights.embedding, this.logits, T);
  }

  close(): void {
    this.#scratch.close();
  }
}
