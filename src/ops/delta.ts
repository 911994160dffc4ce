/** Typed calls for linear attention by the gated delta rule. Each records dispatches and returns at once. */
import { causalConv, deltaPrepare, gatedDelta, gatedNorm } from "../kernels/delta.ts";
import type { Binding } from "../native/commands.ts";
import type { Ops } from "./ops.ts";
import type { Tensor, Vector } from "./tensor.ts";

/** Heads of one layer: value heads share key heads in order. */
export interface DeltaHeads {
  readonly keyHeads: number;
  readonly valueHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
}

/** Rows `queries | keys | values` of T tokens and their two gates. */
export interface DeltaRows {
  /** `[T, C]` */
  readonly mixed: Tensor;
  /** `[T, Hv]`: raw before `prepareDelta`, then the logarithm of the decay. */
  readonly alpha: Tensor;
  /** `[T, Hv]`: raw before `prepareDelta`, then the step. */
  readonly beta: Tensor;
}

export interface ConvWeights {
  /** `[C, K]` */
  readonly taps: Vector;
  readonly tapCount: number;
}

/** y = silu(causal convolution of x), and the tail moves on. */
export function convolve(
  ops: Ops,
  x: Tensor,
  { taps, tapCount: K }: ConvWeights,
  { tail, y, T }: { readonly tail: Binding; readonly y: Tensor; readonly T: number },
): void {
  const C = x.columns;
  ops.stream.dispatch(causalConv, { x, weight: taps, tail, y }, { T, C, K, J: K - 1 });
}

/** Queries and keys of length 1, and the gates, in place. */
export function prepareDelta(
  ops: Ops,
  { mixed, alpha, beta }: DeltaRows,
  heads: DeltaHeads,
  given: {
    readonly aLog: Vector;
    readonly dtBias: Vector;
    readonly T: number;
    readonly eps: number;
  },
): void {
  const { aLog, dtBias, T, eps } = given;
  const { keyHeads: Hk, valueHeads: Hv, keyDim: Dk } = heads;
  ops.stream.dispatch(
    deltaPrepare,
    { mixed, alpha, beta, aLog, dtBias },
    { T, C: mixed.columns, Hk, Hv, Dk, eps },
  );
}

/** y = the rule's outputs, and the state moves on. */
export function applyDelta(
  ops: Ops,
  { mixed, alpha, beta }: DeltaRows,
  heads: DeltaHeads,
  { state, y, T }: { readonly state: Binding; readonly y: Tensor; readonly T: number },
): void {
  const { keyHeads: Hk, valueHeads: Hv, keyDim: Dk, valueDim: Dv } = heads;
  ops.stream.dispatch(
    gatedDelta,
    { mixed, alpha, beta, state, y },
    { T, C: mixed.columns, Hk, Hv, Dk, Dv },
  );
}

/** y = N(x; weight) * silu(gate), head by head. */
export function normGated(
  ops: Ops,
  { x, gate, y }: { readonly x: Tensor; readonly gate: Tensor; readonly y: Tensor },
  weight: Vector,
  { T, heads: H, eps }: { readonly T: number; readonly heads: number; readonly eps: number },
): void {
  ops.stream.dispatch(gatedNorm, { x, gate, weight, y }, { T, H, D: x.columns / H, eps });
}
