/**
 * From routes to work lists: the routed (token, rank) pairs of a chunk sorted by expert, the experts cut
 * into tiles that fit the slots, and the rows that the routed kernels read. It refuses to know weights,
 * slots' contents and the device.
 *
 * A pair is the flat index `token * K + rank`, and kernels write their output by it; so no result depends
 * on how experts are grouped, ordered or cut, and no inverse mapping is needed to add the ranks up.
 */
import { assert, MferenceError } from "../util/errors.ts";

/** T tokens, K experts for each token, E experts of the layer. */
export interface RouteShape {
  readonly T: number;
  readonly K: number;
  readonly E: number;
}

/**
 * The distinct experts of a chunk and their pairs. Expert `experts[g]` owns
 * `pairs[starts[g] .. starts[g] + counts[g]]`.
 */
export interface ExpertGroups {
  /** Number of tokens. */
  readonly tokens: number;
  /** Distinct experts: ascending, which is the order of the layer file; for one token by rank. */
  readonly experts: readonly number[];
  readonly starts: readonly number[];
  readonly counts: readonly number[];
  /** `[T * K]` flat indices `token * K + rank`, ascending within a group. */
  readonly pairs: Uint32Array;
}

/** A part of the groups that one plan serves. */
export interface ExpertTile {
  /** Indices into `ExpertGroups.experts`, in the order in which the experts are requested. */
  readonly groups: readonly number[];
  /** The experts of these groups: what the plan asks for. */
  readonly experts: readonly number[];
}

/** u32 fields of a row that the routed kernels read: slot, first pair, number of pairs, 0. */
export const GROUP_ROW_FIELDS = 4;

/**
 * Groups the routes `ids` (`[T, K]`) by expert. The order is fixed by the ids alone: groups by expert id,
 * pairs by token, then rank; the groups of a single token keep the order of its ranks.
 *
 * @throws MferenceError "engine.state" for a wrong number of ids, an id beyond E or an expert that one
 * token names twice.
 */
export function groupRoutes(ids: Uint32Array, shape: RouteShape): ExpertGroups {
  const { T, K, E } = shape;
  if (ids.length !== T * K) {
    throw routeError(
      `${T} tokens with ${K} experts each give ${T * K} routes, found ${ids.length}`,
    );
  }
  return T === 1 ? groupToken(ids, E) : groupTokens(ids, shape);
}

/** One token: each rank is a group of one pair. Decoding comes here once for each layer. */
function groupToken(ids: Uint32Array, E: number): ExpertGroups {
  const experts: number[] = [];
  for (let rank = 0; rank < ids.length; rank += 1) {
    const id = ids[rank]!;
    checkExpert(id, E, 0);
    if (experts.includes(id)) throw duplicateError(id, 0);
    experts.push(id);
  }
  return { tokens: 1, experts, ...ranksOf(ids.length) };
}

export type Ranks = Pick<ExpertGroups, "starts" | "counts" | "pairs">;
const ranksByCount = new Map<number, Ranks>();

/** The lists of a single token depend on K alone and are shared by all tokens. */
export function ranksOf(K: number): Ranks {
  let ranks = ranksByCount.get(K);
  if (ranks === undefined) {
    const starts = Array.from({ length: K }, (_, rank) => rank);
    ranks = { starts, counts: starts.map(() => 1), pairs: Uint32Array.from(starts) };
    ranksByCount.set(K, ranks);
  }
  return ranks;
}

/** Many tokens: a counting sort by expert, stable in (token, rank). */
function groupTokens(ids: Uint32Array, { K, E }: RouteShape): ExpertGroups {
  const counts = countUses(ids, K, E);
  const tokens = K === 0 ? 0 : ids.length / K;
  const groups = {
    tokens,
    experts: [] as number[],
    starts: [] as number[],
    counts: [] as number[],
    pairs: new Uint32Array(ids.length),
  };
  const next = new Uint32Array(E);
  let start = 0;
  for (let expert = 0; expert < E; expert += 1) {
    const count = counts[expert]!;
    if (count === 0) continue;
    groups.experts.push(expert);
    groups.starts.push(start);
    groups.counts.push(count);
    next[expert] = start;
    start += count;
  }
  for (let pair = 0; pair < ids.length; pair += 1) {
    const expert = ids[pair]!;
    groups.pairs[next[expert]!] = pair;
    next[expert]! += 1;
  }
  return groups;
}

/** How many tokens use each expert, having checked every id. */
function countUses(ids: Uint32Array, K: number, E: number): Uint32Array {
  const counts = new Uint32Array(E);
  const lastToken = new Int32Array(E).fill(-1);
  for (let pair = 0; pair < ids.length; pair += 1) {
    const expert = ids[pair]!;
    const token = Math.floor(pair / K);
    checkExpert(expert, E, token);
    if (lastToken[expert] === token) throw duplicateError(expert, token);
    lastToken[expert] = token;
    counts[expert]! += 1;
  }
  return counts;
}

/**
 * Cuts the groups into consecutive tiles of at most `tileSize` experts (at most the slots that a plan may
 * fill). With `resident`, the experts already in a slot come first, then the missing ones, both in group
 * order: so tokens with more experts than slots use what is cached before their own misses evict it. The
 * order costs or saves reads and never changes a result.
 */
export function planTiles(
  groups: ExpertGroups,
  tileSize: number,
  resident?: (expert: number) => boolean,
): ExpertTile[] {
  assert(Number.isInteger(tileSize) && tileSize >= 1, "a tile holds one expert at least");
  const order = tileOrder(groups, tileSize, resident);
  const tiles: ExpertTile[] = [];
  for (let first = 0; first < order.length; first += tileSize) {
    const tile = order.slice(first, first + tileSize);
    tiles.push({ groups: tile, experts: tile.map((group) => groups.experts[group]!) });
  }
  return tiles;
}

function tileOrder(
  groups: ExpertGroups,
  tileSize: number,
  resident: ((expert: number) => boolean) | undefined,
): number[] {
  const order = groups.experts.map((_, group) => group);
  if (resident === undefined || order.length <= tileSize) return order;
  const cached = groups.experts.map((expert) => resident(expert));
  return [...order.filter((group) => cached[group]), ...order.filter((group) => !cached[group])];
}

/**
 * Writes the rows of one tile to `rows` (`[A, 4]` u32, A = experts of the tile), those of the hits first,
 * and returns the number of hits: rows `0 .. hits` can run at once, rows `hits .. A` once the reads have
 * arrived. `first pair` is an index into the chunk's `pairs`, which is written once for all tiles.
 *
 * @param plan the slot of each expert of the tile and the positions that are missing, ascending.
 */
export function writeGroupRows(
  rows: Uint32Array,
  groups: ExpertGroups,
  tile: ExpertTile,
  plan: { readonly slots: readonly number[]; readonly misses: readonly number[] },
): number {
  const A = tile.groups.length;
  assert(plan.slots.length === A, "a plan has a slot for each expert of its tile");
  assert(rows.length >= A * GROUP_ROW_FIELDS, "the rows of a tile fit their buffer");
  const hits = A - plan.misses.length;
  let nextHit = 0;
  let nextMiss = 0;
  for (let i = 0; i < A; i += 1) {
    const missing = plan.misses[nextMiss] === i;
    const row = missing ? hits + nextMiss : nextHit;
    if (missing) nextMiss += 1;
    else nextHit += 1;
    const group = tile.groups[i]!;
    const at = row * GROUP_ROW_FIELDS;
    rows[at] = plan.slots[i]!;
    rows[at + 1] = groups.starts[group]!;
    rows[at + 2] = groups.counts[group]!;
    rows[at + 3] = 0;
  }
  assert(nextMiss === plan.misses.length, "the misses of a plan are positions in ascending order");
  return hits;
}

/** Writes the pairs of a chunk to the buffer that the rows of all its tiles point into. */
export function writePairs(pairs: Uint32Array, groups: Pick<ExpertGroups, "pairs">): void {
  assert(pairs.length >= groups.pairs.length, "the pairs of a chunk fit their buffer");
  pairs.set(groups.pairs);
}

function checkExpert(expert: number, E: number, token: number): void {
  if (expert < E) return;
  throw routeError(`token ${token} is routed to expert ${expert}, expected 0 to ${E - 1}`);
}

function duplicateError(expert: number, token: number): MferenceError {
  return routeError(
    `token ${token} is routed to expert ${expert} twice, expected distinct experts`,
  );
}

/** The router's output is not what it can be: the state behind it cannot be trusted. */
function routeError(found: string): MferenceError {
  return new MferenceError("engine.state", `${found}; reset the session`);
}
