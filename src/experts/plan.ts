/**
 * The slot cache of one layer as data, and every decision about it: which requested experts are in a
 * slot, which slots the others take, who leaves, what speculation may use. It refuses to know bytes,
 * files, devices and other layers.
 *
 *   slotExpert[slot]  -> expert whose bytes are complete, or -1          table[expert] -> slot, or -1
 *   slotReading[slot] -> expert being read into the slot, or -1          (a slot being read is never in
 *                                                                         the table, a victim or a hit)
 *   empty --apply/reserve--> reading --publish--> resident --evicted by apply/reserve--> reading
 *     ^------------------------fail-----'
 *
 * Invariants: an expert is in at most one slot; `slotExpert` and `table` change together in `place`; a
 * table entry of 0 or more means complete bytes, because a slot is cleared before its bytes change.
 */
import { assert, MferenceError } from "../util/errors.ts";

/** Who leaves first: the least often used expert, or the slot unused for longest (for comparison). */
export type EvictionPolicy = "lfu" | "lru";

/** The state of one layer's cache. Only the functions of this file write to it. */
export interface ExpertCache {
  /** Number of experts of the layer. */
  readonly expertCount: number;
  /** Number of slots, from 1 to `expertCount`. */
  readonly slotCount: number;
  readonly eviction: EvictionPolicy;
  /** `[slots]` the resident expert, or -1. */
  readonly slotExpert: Int32Array;
  /** `[slots]` the expert being read into the slot, or -1. */
  readonly slotReading: Int32Array;
  /** `[slots]` the clock of the last hit or assignment. */
  readonly slotLastUse: Float64Array;
  /** `[experts]` uses in all plans so far; never aged, never reset. */
  readonly useCount: Float64Array;
  /** `[experts]` the slot of a resident expert, or -1. May lie in memory that a device reads as u32. */
  readonly table: Int32Array;
  /** Number of resident experts. */
  residentCount: number;
  /** Number of plans so far. */
  useClock: number;
  /** Changes with every change of the state, so that a stale plan is recognised. */
  revision: number;
  readonly scratch: PlanScratch;
}

/** Working memory of the planner, kept because a token plans once for each layer. */
interface PlanScratch {
  /** `[slots]` 1 where the plan being made may not evict. */
  readonly taken: Uint8Array;
  /** `[slots]` the victims chosen, first to leave first. */
  readonly victims: Int32Array;
  /** `[experts]` the request in which an id was seen last. */
  readonly seen: Float64Array;
  requests: number;
}

/** Where the experts of one request lie. Slots are known before the missing bytes have been read. */
export interface ExpertPlan {
  /** The requested experts, in request order. */
  readonly ids: readonly number[];
  /** The slot of each id. */
  readonly slots: readonly number[];
  /** Positions in `ids` whose bytes have to be read, ascending. */
  readonly misses: readonly number[];
  /** Number of ids whose bytes are in their slot already. */
  readonly hits: number;
  /** The revision of the cache that the plan was made for. */
  readonly revision: number;
}

/** Slots set aside for speculative reads: expert `ids[i]` goes to `slots[i]`. */
export interface ExpertReservation {
  readonly ids: readonly number[];
  readonly slots: readonly number[];
}

const NO_POSITIONS: readonly number[] = [];

/**
 * Number of slots for a request of `requested` on layers of `experts` experts: more is clamped.
 *
 * @throws MferenceError "engine.options" unless `requested` is a whole number of at least 1.
 */
export function slotCountFor(requested: number, experts: number): number {
  if (!Number.isInteger(requested) || requested < 1) {
    throw new MferenceError(
      "engine.options",
      `the number of expert slots must be a whole number from 1 to ${experts} (more is clamped), not ${requested}`,
    );
  }
  return Math.min(requested, experts);
}

/**
 * An empty cache. `table` (`[experts]` Int32) may be given so that it lies in memory shared with a
 * device; it is overwritten with -1.
 */
export function createCache(options: {
  slotCount: number;
  expertCount: number;
  eviction?: EvictionPolicy;
  table?: Int32Array;
}): ExpertCache {
  const { slotCount, expertCount, eviction = "lfu" } = options;
  const table = options.table ?? new Int32Array(expertCount);
  assert(Number.isInteger(slotCount) && slotCount >= 1, "a cache has one slot at least");
  assert(slotCount <= expertCount, "a cache has no more slots than experts");
  assert(table.length === expertCount, "a table has an entry for each expert");
  return {
    expertCount,
    slotCount,
    eviction,
    slotExpert: new Int32Array(slotCount).fill(-1),
    slotReading: new Int32Array(slotCount).fill(-1),
    slotLastUse: new Float64Array(slotCount),
    useCount: new Float64Array(expertCount),
    table: table.fill(-1),
    residentCount: 0,
    useClock: 0,
    revision: 0,
    scratch: {
      taken: new Uint8Array(slotCount),
      victims: new Int32Array(slotCount),
      seen: new Float64Array(expertCount),
      requests: 0,
    },
  };
}

/**
 * Places distinct experts without changing the cache: a resident expert keeps its slot, in the avoid set
 * or not; the i-th missing one gets the i-th slot in eviction order among those that no hit uses, that
 * `avoid` does not list and that nothing is being read into. Undefined if these are too few: the caller
 * lets running work finish and asks again.
 *
 * The caller passes at most as many ids as there are slots, each once.
 */
export function planExperts(
  cache: ExpertCache,
  ids: ArrayLike<number>,
  avoid: readonly number[] = NO_POSITIONS,
): ExpertPlan | undefined {
  assert(ids.length <= cache.slotCount, "a plan needs a slot for each of its experts");
  checkDistinct(cache, ids);
  const { taken, victims } = cache.scratch;
  const wanted: number[] = [];
  const slots: number[] = [];
  const misses: number[] = [];
  protectReading(cache);
  for (let i = 0; i < ids.length; i += 1) {
    const slot = cache.table[ids[i]!]!;
    wanted.push(ids[i]!);
    slots.push(slot);
    if (slot < 0) misses.push(i);
    else taken[slot] = 1;
  }
  for (const slot of avoid) {
    assert(slot >= 0 && slot < cache.slotCount, "the avoid set lists slots");
    taken[slot] = 1;
  }
  if (chooseVictims(cache, misses.length) < misses.length) return undefined;
  for (let i = 0; i < misses.length; i += 1) slots[misses[i]!] = victims[i]!;
  return {
    ids: wanted,
    slots,
    misses,
    hits: wanted.length - misses.length,
    revision: cache.revision,
  };
}

/**
 * Takes a plan into force: the clock advances, each expert's count goes up by one, its slot is stamped,
 * and the slots of the misses are cleared and marked as being read. The table says -1 for a missing
 * expert until `publishPlan`.
 */
export function applyPlan(cache: ExpertCache, plan: ExpertPlan): void {
  assert(plan.revision === cache.revision, "a plan is applied to the state it was made for");
  cache.revision += 1;
  cache.useClock += 1;
  for (let i = 0; i < plan.ids.length; i += 1) {
    cache.useCount[plan.ids[i]!]! += 1;
    cache.slotLastUse[plan.slots[i]!] = cache.useClock;
  }
  for (const miss of plan.misses) beginRead(cache, plan.ids[miss]!, plan.slots[miss]!);
}

/** Every missing byte of an applied plan has arrived: its experts enter the table together. */
export function publishPlan(cache: ExpertCache, plan: ExpertPlan): void {
  cache.revision += 1;
  for (const miss of plan.misses) endRead(cache, plan.ids[miss]!, plan.slots[miss]!, true);
}

/**
 * A read of an applied plan failed: its slots stay empty, so that the next request reads again. With
 * `arrived` (positions in `plan.ids`) the experts whose own bytes are complete are published all the
 * same. Counts and clock keep what `applyPlan` did.
 */
export function failPlan(
  cache: ExpertCache,
  plan: ExpertPlan,
  arrived: readonly number[] = NO_POSITIONS,
): void {
  cache.revision += 1;
  for (const miss of plan.misses) {
    endRead(cache, plan.ids[miss]!, plan.slots[miss]!, arrived.includes(miss));
  }
}

/**
 * The bookkeeping of a layer whose experts were all resident and that a device ran by itself. Leaves
 * the state that a plan of these ids would have left.
 */
export function replayHits(cache: ExpertCache, ids: ArrayLike<number>): void {
  checkDistinct(cache, ids);
  for (let i = 0; i < ids.length; i += 1) {
    assert(cache.table[ids[i]!]! >= 0, "a replayed layer has all its experts in slots");
  }
  cache.revision += 1;
  cache.useClock += 1;
  for (let i = 0; i < ids.length; i += 1) {
    cache.useCount[ids[i]!]! += 1;
    cache.slotLastUse[cache.table[ids[i]!]!] = cache.useClock;
  }
}

/** The ids without a slot, each once, in request order. Changes nothing. */
export function missingExperts(cache: ExpertCache, ids: ArrayLike<number>): number[] {
  const request = nextRequest(cache);
  const missing: number[] = [];
  for (let i = 0; i < ids.length; i += 1) {
    const id = ids[i]!;
    if (cache.scratch.seen[id] === request) continue;
    cache.scratch.seen[id] = request;
    if (cache.table[id]! < 0) missing.push(id);
  }
  return missing;
}

/** Whether a read of this expert is under way: who needs it may wait instead of reading it again. */
export function isReading(cache: ExpertCache, expert: number): boolean {
  return cache.slotReading.includes(expert);
}

/**
 * Sets slots aside for speculative reads, in the order of `ids`, for those neither resident nor being
 * read. Slots that hold one of the ids or are being read into are kept, and so are `keepEvictable` of
 * the others: with the router's K there, a reservation can never make the next plan impossible.
 * Neither counts nor clock change, so an expert guessed wrongly is among the first to leave.
 */
export function reserveExperts(
  cache: ExpertCache,
  ids: ArrayLike<number>,
  keepEvictable: number,
): ExpertReservation {
  const wanted = missingExperts(cache, ids).filter((id) => !isReading(cache, id));
  const { taken, victims } = cache.scratch;
  protectReading(cache);
  for (let i = 0; i < ids.length; i += 1) {
    const slot = cache.table[ids[i]!]!;
    if (slot >= 0) taken[slot] = 1;
  }
  let candidates = 0;
  for (let slot = 0; slot < cache.slotCount; slot += 1) candidates += 1 - taken[slot]!;
  const budget = Math.max(0, Math.min(wanted.length, candidates - keepEvictable));
  if (budget === 0) return { ids: [], slots: [] };
  chooseVictims(cache, budget);
  const reservation = { ids: wanted.slice(0, budget), slots: [...victims.subarray(0, budget)] };
  cache.revision += 1;
  for (let i = 0; i < budget; i += 1) {
    beginRead(cache, reservation.ids[i]!, reservation.slots[i]!);
  }
  return reservation;
}

/**
 * The speculative reads have ended: the experts at the positions `arrived` enter the table, the other
 * slots stay empty, none is being read any more.
 */
export function settleReservation(
  cache: ExpertCache,
  reservation: ExpertReservation,
  arrived: readonly number[],
): void {
  cache.revision += 1;
  for (let i = 0; i < reservation.ids.length; i += 1) {
    endRead(cache, reservation.ids[i]!, reservation.slots[i]!, arrived.includes(i));
  }
}

/**
 * A cache of another size with the same counts, and with the experts that would leave last. Expert and
 * bytes of slot `from` go to slot `to`. Nothing may be being read. The new cache takes over the table, so
 * the old one is done with.
 */
export function resizeCache(
  cache: ExpertCache,
  slotCount: number,
): {
  readonly resized: ExpertCache;
  readonly moves: readonly { readonly from: number; readonly to: number }[];
} {
  assert(
    cache.slotReading.every((expert) => expert < 0),
    "a cache is resized between reads",
  );
  const { expertCount, eviction, useClock, table } = cache;
  const resized = createCache({ slotCount, expertCount, eviction, table });
  resized.useCount.set(cache.useCount);
  resized.useClock = useClock;
  const stays = [...cache.slotExpert.keys()]
    .filter((slot) => cache.slotExpert[slot]! >= 0)
    .toSorted((a, b) => (leavesBefore(cache, a, b) ? -1 : leavesBefore(cache, b, a) ? 1 : a - b))
    .slice(-slotCount);
  const moves = stays.map((from, to) => ({ from, to }));
  for (const { from, to } of moves) {
    place(resized, to, cache.slotExpert[from]!);
    resized.slotLastUse[to] = cache.slotLastUse[from]!;
  }
  return { resized, moves };
}

/** The only writer of `slotExpert`, `table` and `residentCount`. */
function place(cache: ExpertCache, slot: number, expert: number): void {
  const previous = cache.slotExpert[slot]!;
  if (previous >= 0) cache.table[previous] = -1;
  cache.slotExpert[slot] = expert;
  if (expert >= 0) cache.table[expert] = slot;
  cache.residentCount += Number(expert >= 0) - Number(previous >= 0);
}

function beginRead(cache: ExpertCache, expert: number, slot: number): void {
  assert(cache.slotReading[slot] === -1, "a slot is read into by one read at a time");
  place(cache, slot, -1);
  cache.slotReading[slot] = expert;
}

function endRead(cache: ExpertCache, expert: number, slot: number, arrived: boolean): void {
  assert(cache.slotReading[slot] === expert, "a read ends once, in the slot it began in");
  cache.slotReading[slot] = -1;
  // A plan and a speculation may have read the same expert; the second copy is not listed, because an
  // expert in two slots would lose its table entry when either of them is evicted.
  if (arrived && cache.table[expert]! < 0) place(cache, slot, expert);
}

/** Starts the set of slots that may not be evicted with those being read into. */
function protectReading(cache: ExpertCache): void {
  const { taken } = cache.scratch;
  for (let slot = 0; slot < cache.slotCount; slot += 1) {
    taken[slot] = cache.slotReading[slot] === -1 ? 0 : 1;
  }
}

/**
 * Fills `scratch.victims` with the first `count` slots in eviction order that are not taken and returns
 * how many there are. An insertion into a short list: a token misses a handful of experts at most.
 */
function chooseVictims(cache: ExpertCache, count: number): number {
  const { taken, victims } = cache.scratch;
  if (count === 0) return 0;
  let found = 0;
  for (let slot = 0; slot < cache.slotCount; slot += 1) {
    if (taken[slot] === 1) continue;
    if (found === count && !leavesBefore(cache, slot, victims[count - 1]!)) continue;
    let at = Math.min(found, count - 1);
    found = at + 1;
    while (at > 0 && leavesBefore(cache, slot, victims[at - 1]!)) {
      victims[at] = victims[at - 1]!;
      at -= 1;
    }
    victims[at] = slot;
  }
  return found;
}

/**
 * Whether slot `a` is evicted before slot `b`. Equal slots keep their order, and slots are visited in
 * ascending order, so the lowest of equal slots leaves first.
 */
function leavesBefore(cache: ExpertCache, a: number, b: number): boolean {
  if (cache.eviction === "lfu") {
    const usesA = usesOf(cache, a);
    const usesB = usesOf(cache, b);
    if (usesA !== usesB) return usesA < usesB;
  }
  return cache.slotLastUse[a]! < cache.slotLastUse[b]!;
}

/** The count of a slot's occupant; an empty slot ranks below every occupied one. */
function usesOf(cache: ExpertCache, slot: number): number {
  const expert = cache.slotExpert[slot]!;
  return expert < 0 ? -1 : cache.useCount[expert]!;
}

function nextRequest(cache: ExpertCache): number {
  cache.scratch.requests += 1;
  return cache.scratch.requests;
}

function checkDistinct(cache: ExpertCache, ids: ArrayLike<number>): void {
  const { seen } = cache.scratch;
  const request = nextRequest(cache);
  for (let i = 0; i < ids.length; i += 1) {
    const id = ids[i]!;
    assert(id >= 0 && id < cache.expertCount, "an id is an expert of the layer");
    assert(seen[id] !== request, "a request names an expert once");
    seen[id] = request;
  }
}
