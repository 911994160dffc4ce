/**
 * How many rows of keys and values a layer keeps, what they weigh, where a chunk's rows go, and whether a
 * cache may go back. Pure arithmetic: no buffers, no cursor.
 *
 * A sliding layer with a window of W sees W positions, its own included, so the first token of a block of
 * B rows still needs the W - 1 rows before it when all B have been written: W + B - 1 rows. A longer chunk
 * goes block after block, so that rings do not grow with it. Keys carry their rotation, so the order of a
 * ring does not matter; masks use absolute positions.
 */
import { assert } from "../util/errors.ts";

/** The keys and values of one attention layer. */
export interface KvShape {
  readonly kvHeads: number;
  readonly headDim: number;
  /** Positions a token sees, its own included; 0 or absent where it sees all. */
  readonly window?: number | undefined;
}

/** What the caller wants to hold and to write at once. */
export interface KvExtent {
  /** Positions a session may reach. */
  readonly contextRows: number;
  /** Most rows of one step. */
  readonly chunkRows: number;
}

/** Most rows written into a ring before the first of them is attended. */
export const BLOCK_ROWS = 128;

/** Rows of a layer: a ring for a sliding layer, never more than the context. */
export function kvRows(
  shape: Pick<KvShape, "window">,
  { contextRows, chunkRows }: KvExtent,
): number {
  assert(Number.isInteger(contextRows) && contextRows >= 1, "a context has one row at least");
  assert(Number.isInteger(chunkRows) && chunkRows >= 1, "a chunk has one row at least");
  const { window = 0 } = shape;
  assert(Number.isInteger(window) && window >= 0, "a window is a number of rows");
  const blockRows = Math.min(chunkRows, BLOCK_ROWS);
  return window === 0 ? contextRows : Math.min(contextRows, window + blockRows - 1);
}

/** Rows of a chunk that are written and attended together. */
export interface KvBlock {
  /** Within the chunk. */
  readonly first: number;
  readonly count: number;
}

/** Cuts `count` rows from `position` on so that a cache of `rows` rows never loses one that is still seen. */
export function kvBlocks(step: {
  readonly position: number;
  readonly count: number;
  readonly rows: number;
  readonly window: number;
}): KvBlock[] {
  const { position, count, rows, window } = step;
  if (position + count <= rows) return [{ first: 0, count }];
  const most = rows - window + 1;
  assert(window > 0 && most >= 1, "a ring holds its window, and what has none the whole context");
  const blocks: KvBlock[] = [];
  for (let first = 0; first < count; first += most) {
    blocks.push({ first, count: Math.min(most, count - first) });
  }
  return blocks;
}

/** Bytes of the keys and values of one layer. */
export function kvLayerBytes(shape: KvShape, extent: KvExtent, elementBytes: number): number {
  return 2 * kvRows(shape, extent) * shape.kvHeads * shape.headDim * elementBytes;
}

/** Bytes of the keys and values of all layers. */
export function kvBytes(
  layers: readonly (KvShape | undefined)[],
  extent: KvExtent,
  elementBytes: number,
): number {
  const kept = layers.filter((shape) => shape !== undefined);
  return kept.reduce((sum, shape) => sum + kvLayerBytes(shape, extent, elementBytes), 0);
}

/** Rows of a cache that are contiguous: `count` rows from row `row` on, for positions from `position` on. */
export interface KvSpan {
  readonly row: number;
  readonly position: number;
  readonly count: number;
}

/** The row of each position of a chunk is `position mod rows`: one span, or two where the ring wraps. */
export function kvSpans(position: number, count: number, rows: number): KvSpan[] {
  assert(count <= rows, "a chunk writes each row once");
  if (count === 0) return [];
  const row = position % rows;
  const first = Math.min(count, rows - row);
  const spans: KvSpan[] = [{ row, position, count: first }];
  if (first < count) spans.push({ row: 0, position: position + first, count: count - first });
  return spans;
}

/**
 * Whether a layer with `rows` rows still holds what the token at `position` sees, after positions
 * `0 .. written` (exclusive) have been written at some time since the cache was empty. Position 0 sees
 * nothing older, so it is always possible.
 */
export function canRewind(cache: {
  readonly position: number;
  readonly written: number;
  readonly rows: number;
  readonly shape: Pick<KvShape, "window">;
}): boolean {
  const { position, written, rows, shape } = cache;
  if (position < 0 || position > written) return false;
  const oldestKept = Math.max(0, written - rows);
  const { window = 0 } = shape;
  const oldestSeen = window === 0 ? 0 : Math.max(0, position - window + 1);
  return oldestSeen >= oldestKept || oldestSeen >= position;
}
