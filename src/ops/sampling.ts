/**
 * The device's part of choosing a token: each pass reduces one row of logits `[V]` to a few numbers. It
 * refuses to know what is done with them.
 */
import { argmax, candidates, gumbel, penalize, softcap } from "../kernels/sampling.ts";
import type { SharedBuffer } from "../native/device.ts";
import type { Stream } from "./stream.ts";
import type { Tensor } from "./tensor.ts";

/** What the draw of a token needs from the device. */
export interface CandidateBuffers {
  /** `[C]` u32, the largest logits first. */
  readonly ids: SharedBuffer;
  /** `[C]` f32 */
  readonly values: SharedBuffer;
  /** f32: the maximum, the sum of the exponentials, how many logits are not finite. */
  readonly mass: SharedBuffer;
}

/** y = cap tanh(x / cap); with a cap of 0 a copy. */
export function capLogits(stream: Stream, x: Tensor, y: Tensor, cap: number): void {
  stream.dispatch(softcap, { x, y }, { N: x.columns, cap });
}

/** Penalizes, in place, each of the `count` listed ids once. */
export function penalizeLogits(
  stream: Stream,
  logits: Tensor,
  ids: SharedBuffer,
  { count, penalty }: { readonly count: number; readonly penalty: number },
): void {
  const params = { V: logits.columns, N: count, penalty };
  stream.dispatch(penalize, { logits, ids: { buffer: ids } }, params);
}

/** Leaves (id of the largest logit, how many are not finite) in `result`. */
export function argmaxOf(stream: Stream, logits: Tensor, result: SharedBuffer): void {
  stream.dispatch(argmax, { logits, result: { buffer: result } }, { T: 1, V: logits.columns });
}

/** Leaves (id drawn with the noise of a key, how many logits are not finite) in `result`. */
export function gumbelOf(
  stream: Stream,
  logits: Tensor,
  result: SharedBuffer,
  noise: { readonly temperature: number; readonly keyLow: number; readonly keyHigh: number },
): void {
  stream.dispatch(gumbel, { logits, result: { buffer: result } }, { V: logits.columns, ...noise });
}

/** Leaves the `count` largest logits and the mass of the whole row in `found`. */
export function candidatesOf(
  stream: Stream,
  logits: Tensor,
  found: CandidateBuffers,
  count: number,
): void {
  const { ids, values, mass } = found;
  const bound = { ids: { buffer: ids }, values: { buffer: values }, mass: { buffer: mass } };
  stream.dispatch(candidates, { logits, ...bound }, { V: logits.columns, C: count });
}
