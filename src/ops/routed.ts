/** Both phases of routed experts over slots of a slab, for lists of (expert, tokens). */
import { routedDown, routedGate, slotLookup } from "../kernels/moe.ts";
import { ACTIVATION } from "../kernels/spec.ts";
import type { Binding } from "../native/commands.ts";
import type { Buffer } from "../native/device.ts";
import type { Activation, Ops, Routes } from "./ops.ts";
import type { Tensor } from "./tensor.ts";

/** Where an affine-quantised matrix begins in an expert's slot. */
export interface ArrayOffsets {
  readonly codes: number;
  readonly scales: number;
  readonly biases: number;
}

/** Where the nine arrays of an expert begin in its slot, and their widths. */
export interface ExpertArrays {
  readonly gate: ArrayOffsets;
  readonly up: ArrayOffsets;
  readonly down: ArrayOffsets;
  /** Bits of gate and up, and of down. */
  readonly bits: { readonly gate: number; readonly down: number };
}

/** The experts of a layer in memory: `slots` of `slotBytes`. */
export interface Slab {
  readonly slab: Buffer;
  readonly slots: number;
  readonly slotBytes: number;
}

/** What is to be done with which experts. */
export interface RoutedLists {
  /** Rows of (slot, first pair, pairs, 0), as src/kernels/moe.ts describes them. */
  readonly groups: Binding;
  readonly groupCount: number;
  readonly pairs: Buffer;
  readonly pairCount: number;
}

export interface RoutedWork extends RoutedLists {
  readonly shape: {
    readonly hiddenSize: number;
    readonly expertWidth: number;
    readonly perToken: number;
    readonly activation: Activation;
  };
  readonly arrays: ExpertArrays;
  readonly T: number;
  /** `[T, D]` */
  readonly x: Tensor;
  /** `[T * K, F]` */
  readonly hidden: Tensor;
  /** `[T * K, D]`, one row for each routed (token, rank). */
  readonly y: Tensor;
}

/** Records the rows of one token's routes, whose slots the device finds in `table` (`[E]`). */
export function lookUpSlots(
  ops: Ops,
  routes: Routes,
  { table, slotCount }: { readonly table: Buffer; readonly slotCount: number },
  { groups }: RoutedLists,
): void {
  ops.stream.dispatch(
    slotLookup,
    { ids: { buffer: routes.ids }, table: { buffer: table }, groups },
    { P: routes.perToken, E: table.byteLength / 4, S: slotCount },
  );
}

/** Records gate, up and down of the listed experts for their tokens. */
export function routedExperts(
  ops: Ops,
  { slab: buffer, slots, slotBytes }: Slab,
  work: RoutedWork,
): void {
  const { arrays, hidden, shape, T, x, y } = work;
  const { gate, up, down, bits } = arrays;
  const lists = { groups: work.groups, pairs: { buffer: work.pairs } };
  const slab = { buffer };
  const common = {
    S: slots,
    slotBytes,
    T,
    K: shape.perToken,
    D: shape.hiddenSize,
    F: shape.expertWidth,
    A: work.groupCount,
    P: work.pairCount,
    activationBits: ops.precision.activationBits,
  };
  ops.stream.dispatch(
    routedGate,
    { slab, x, ...lists, hidden },
    {
      ...common,
      bits: bits.gate,
      gateCodes: gate.codes,
      gateScales: gate.scales,
      gateBiases: gate.biases,
      upCodes: up.codes,
      upScales: up.scales,
      upBiases: up.biases,
      activation: ACTIVATION[shape.activation],
    },
  );
  ops.stream.dispatch(
    routedDown,
    { slab, hidden, ...lists, y },
    { ...common, bits: bits.down, ...down },
  );
}
