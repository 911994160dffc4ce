/**
 * Attention of a chunk over rows that it writes itself: what is new enters the cache, then every token
 * attends. Where the chunk is longer than a ring can take at once, that happens block after block. It
 * refuses to know projections, families and where a cursor is.
 */
import type { AttentionStep, KvRows, Ops, Projections, QkNorms } from "../ops/ops.ts";
import { rowsOf, type Tensor } from "../ops/tensor.ts";
import { kvBlocks } from "./plan.ts";

export interface AttendWork extends Projections {
  /** `[T, H, Dh]`: what each token attended. */
  readonly y: Tensor;
  readonly norms: QkNorms;
}

/** Norms, rotates and stores the rows of a chunk, and attends for each of them. */
export function attend(ops: Ops, cache: KvRows, work: AttendWork, step: AttentionStep): void {
  const { q, k, v, y, norms } = work;
  const { T, position, rope, window } = step;
  for (const { first, count } of kvBlocks({ position, count: T, rows: cache.rows, window })) {
    const block = (tensor: Tensor): Tensor => rowsOf(tensor, first, count);
    // A row of the table is a cosine and a sine for each pair.
    const at = (rope.table.offset ?? 0) + 8 * rope.pairs * first;
    const blockStep = {
      ...step,
      T: count,
      position: position + first,
      rope: { ...rope, table: { ...rope.table, offset: at } },
    };
    const queries = block(q);
    ops.qkvEpilogue({ q: queries, k: block(k), v: block(v) }, norms, cache, blockStep);
    ops.attention(queries, cache, block(y), blockStep);
  }
}
