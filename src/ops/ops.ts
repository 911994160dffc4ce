/**
 * Typed calls for every kernel: each records one dispatch (or one for each projection) and returns at
 * once. A call takes tensors and T, the rows in use; it knows neither buffers' sizes nor events.
 */
import {
  attentionF16,
  attentionF32,
  outputGate,
  qkEpilogueF16,
  qkEpilogueF32,
  qkvEpilogueF16,
  qkvEpilogueF32,
  ropeTable,
  splitGate,
} from "../kernels/attention.ts";
import { embedAffine } from "../kernels/embed.ts";
import { gatedMatmulAffine, matmulAffine } from "../kernels/matmul.ts";
import { gatedShared, routedReduce, routerTopk } from "../kernels/moe.ts";
import { residualNorm, rmsNorm, sandwichSetup, sandwichTail } from "../kernels/norm.ts";
import { type ActivationBits, ACTIVATION } from "../kernels/spec.ts";
import type { Binding } from "../native/commands.ts";
import type { SharedBuffer } from "../native/device.ts";
import type { Stream } from "./stream.ts";
import type { QuantTensor, Tensor, Vector } from "./tensor.ts";

export type Activation = keyof typeof ACTIVATION;

/** How exact a run is: what activations and the KV cache are rounded to. */
export interface Precision {
  readonly name: "exact" | "fast" | "quick";
  readonly activationBits: ActivationBits;
  readonly kvDtype: "f32" | "f16";
}

/**
 * `exact` reproduces float32 references; `fast` is the default; `quick` reads prompts sooner
 * (docs/performance.md has the effect of both).
 */
export const PRECISIONS: Readonly<Record<Precision["name"], Precision>> = {
  exact: { name: "exact", activationBits: 32, kvDtype: "f32" },
  fast: { name: "fast", activationBits: 16, kvDtype: "f16" },
  quick: { name: "quick", activationBits: 8, kvDtype: "f16" },
};

/** The rows of one layer's KV cache, as kernels bind them. */
export interface KvRows {
  readonly keys: Binding;
  readonly values: Binding;
  /** Row slots: position p lives at slot p mod rows. */
  readonly rows: number;
}

/** Shape of one attention layer. */
export interface Heads {
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/** Cosines and sines for the T positions of a step, `pairs` of them a position. */
export interface RopeRows {
  readonly table: Binding;
  readonly pairs: number;
}

/** The experts of each token in rank order, and their weights. */
export interface Routes {
  /** `[T, K]` u32 */
  readonly ids: SharedBuffer;
  /** `[T, K]` f32 */
  readonly weights: SharedBuffer;
  readonly perToken: number;
}

export class Ops {
  readonly stream: Stream;
  readonly precision: Precision;

  constructor(stream: Stream, precision: Precision) {
    this.stream = stream;
    this.precision = precision;
  }

  /** y[t] = row ids[t] of the table, times the multiplier. */
  embed(ids: Binding, table: QuantTensor, y: Tensor, { T, multiplier }: EmbedOptions): void {
    const { codes, scales, biases, rows: V, columns: D, bits } = table;
    this.stream.dispatch(
      embedAffine,
      { ids, codes, scales, biases, y },
      { T, D, V, bits, multiplier },
    );
  }

  rmsNorm(x: Tensor, weight: Vector, y: Tensor, { T, eps }: NormOptions): void {
    this.stream.dispatch(rmsNorm, { x, weight, y }, { T, D: x.columns, eps });
  }

  /** y = x W^T */
  matmul(x: Tensor, weight: QuantTensor, y: Tensor, T: number): void {
    const { codes, scales, biases, rows: O, columns: I, bits } = weight;
    const { activationBits } = this.precision;
    this.stream.dispatch(
      matmulAffine,
      { x, codes, scales, biases, y },
      { T, I, O, bits, activationBits },
    );
  }

  /** y = act(x G^T) * (x U^T) */
  gatedMatmul(x: Tensor, { gate, up }: GatedWeights, y: Tensor, options: GatedOptions): void {
    const { activationBits } = this.precision;
    this.stream.dispatch(
      gatedMatmulAffine,
      {
        x,
        gateCodes: gate.codes,
        gateScales: gate.scales,
        gateBiases: gate.biases,
        upCodes: up.codes,
        upScales: up.scales,
        upBiases: up.biases,
        y,
      },
      {
        T: options.T,
        I: gate.columns,
        F: gate.rows,
        bits: gate.bits,
        activation: ACTIVATION[options.activation],
        activationBits,
      },
    );
  }

  /** Fills the rotary table of the positions `position .. position + T - 1`. */
  ropeTable(frequencies: Binding, rope: RopeRows, { T, position }: StepRows): void {
    this.stream.dispatch(
      ropeTable,
      { frequencies, table: rope.table },
      { T, N: rope.pairs, position },
    );
  }

  /** Norms and rotates q in place, and writes the normed, rotated k and v into the cache. */
  qkvEpilogue({ q, k, v }: Projections, norms: QkNorms, cache: KvRows, step: AttentionStep): void {
    const { queryHeads: H, kvHeads: Hkv, headDim: Dh } = step.heads;
    const kernels = norms.values
      ? [qkvEpilogueF32, qkvEpilogueF16]
      : [qkEpilogueF32, qkEpilogueF16];
    const kernel = kernels[this.precision.kvDtype === "f32" ? 0 : 1]!;
    const { keys, values, rows: R } = cache;
    const { T, position, eps } = step;
    this.stream.dispatch(
      kernel,
      { q, k, v, qNorm: norms.q, kNorm: norms.k, table: step.rope.table, keys, values },
      { T, H, Hkv, Dh, N: step.rope.pairs, R, position, eps },
    );
  }

  attention(q: Tensor, cache: KvRows, y: Tensor, step: AttentionStep): void {
    const { queryHeads: H, kvHeads: Hkv, headDim: Dh } = step.heads;
    const kernel = this.precision.kvDtype === "f32" ? attentionF32 : attentionF16;
    const { keys, values, rows: R } = cache;
    const { T, position, window, scale } = step;
    this.stream.dispatch(
      kernel,
      { q, keys, values, y },
      { T, H, Hkv, Dh, R, position, window, scale },
    );
  }

  /** The queries out of projected heads, each of them followed by its gate. */
  splitGate(pairs: Tensor, q: Tensor, T: number, { queryHeads: H, headDim: Dh }: Heads): void {
    this.stream.dispatch(splitGate, { pairs, q }, { T, H, Dh });
  }

  /** y = y * sigmoid(the gates of the same heads), in place. */
  outputGate(pairs: Tensor, y: Tensor, T: number, { queryHeads: H, headDim: Dh }: Heads): void {
    this.stream.dispatch(outputGate, { pairs, y }, { T, H, Dh });
  }

  /** The middle of a pre-normed layer: x += branch, y = N(x). */
  residualNorm(x: Tensor, branch: Tensor, weight: Vector, out: ResidualOut): void {
    const { y, T, eps } = out;
    this.stream.dispatch(residualNorm, { x, branch, weight, y }, { T, D: x.columns, eps });
  }

  /** y = routed + sigmoid(gate) * shared; one gate a row. */
  gatedShared({ shared, routed }: Branches, gate: Tensor, y: Tensor, T: number): void {
    this.stream.dispatch(gatedShared, { routed, shared, gate, y }, { T, D: y.columns });
  }

  /** After attention of a sandwich-normed layer: the residual sum and its three normed copies. */
  sandwichSetup(x: Tensor, branch: Tensor, norms: SetupNorms, out: SetupOutputs): void {
    const { post: postNorm, shared: sharedNorm, routed: routedNorm, routerScale } = norms;
    const { shared, routed, router, T, eps, routerFactor } = out;
    this.stream.dispatch(
      sandwichSetup,
      { x, branch, postNorm, sharedNorm, routedNorm, routerScale, shared, routed, router },
      { T, D: x.columns, eps, routerFactor },
    );
  }

  /** The end of a sandwich-normed layer, in place on the residual stream. */
  sandwichTail(
    x: Tensor,
    { shared, routed }: Branches,
    norms: TailNorms,
    options: NormOptions,
  ): void {
    const { shared: sharedNorm, routed: routedNorm, sum: sumNorm, layerScalar } = norms;
    this.stream.dispatch(
      sandwichTail,
      { x, shared, routed, sharedNorm, routedNorm, sumNorm, layerScalar },
      { T: options.T, D: x.columns, eps: options.eps },
    );
  }

  /** The chosen experts of each row and their weights. */
  route(scores: Tensor, expertScale: Vector, routes: Routes, T: number): void {
    this.stream.dispatch(
      routerTopk,
      { scores, expertScale, ids: { buffer: routes.ids }, weights: { buffer: routes.weights } },
      { T, E: scores.columns, K: routes.perToken },
    );
  }

  /** y[t] = the weighted sum of the expert rows of token t, in rank order. */
  reduceRoutes(experts: Tensor, routes: Routes, y: Tensor, T: number): void {
    this.stream.dispatch(
      routedReduce,
      { experts, weights: { buffer: routes.weights }, y },
      { T, K: routes.perToken, D: y.columns },
    );
  }
}

export interface EmbedOptions {
  readonly T: number;
  readonly multiplier: number;
}
export interface NormOptions {
  readonly T: number;
  readonly eps: number;
}
export interface StepRows {
  readonly T: number;
  readonly position: number;
}
export interface GatedWeights {
  readonly gate: QuantTensor;
  readonly up: QuantTensor;
}
export interface GatedOptions {
  readonly T: number;
  readonly activation: Activation;
}
export interface Projections {
  readonly q: Tensor;
  readonly k: Tensor;
  /** May be `k` itself: values that come from the raw keys. */
  readonly v: Tensor;
}
export interface QkNorms {
  readonly q: Vector;
  readonly k: Vector;
  /** Whether values are normed, without a weight. */
  readonly values: boolean;
}
export interface AttentionStep extends StepRows {
  readonly heads: Heads;
  readonly rope: RopeRows;
  readonly eps: number;
  /** Keys a query sees, its own included; 0: all. */
  readonly window: number;
  readonly scale: number;
}
export interface SetupNorms {
  readonly post: Vector;
  readonly shared: Vector;
  readonly routed: Vector;
  readonly routerScale: Vector;
}
export interface SetupOutputs extends NormOptions {
  readonly shared: Tensor;
  readonly routed: Tensor;
  readonly router: Tensor;
  readonly routerFactor: number;
}
export interface ResidualOut extends NormOptions {
  readonly y: Tensor;
}
export interface Branches {
  readonly shared: Tensor;
  readonly routed: Tensor;
}
export interface TailNorms {
  readonly shared: Vector;
  readonly routed: Vector;
  readonly sum: Vector;
  readonly layerScalar: Vector;
}
