import { describe, expect, test } from "bun:test";
import {
  applyPlan,
  createCache,
  type EvictionPolicy,
  type ExpertCache,
  type ExpertPlan,
  type ExpertReservation,
  failPlan,
  isReading,
  missingExperts,
  planExperts,
  publishPlan,
  replayHits,
  reserveExperts,
  settleReservation,
  slotCountFor,
} from "../../src/experts/plan.ts";
import { ReferenceCache } from "../reference/expert-cache.ts";
import { createRandom, type Random } from "../reference/random.ts";

/** Everything that decides later plans. */
function stateOf(cache: ExpertCache) {
  return {
    slotExpert: [...cache.slotExpert],
    slotReading: [...cache.slotReading],
    slotLastUse: [...cache.slotLastUse],
    useCount: [...cache.useCount],
    table: [...cache.table],
    useClock: cache.useClock,
  };
}

function stateOfReference(reference: ReferenceCache, expertCount: number): object {
  const experts = Array.from({ length: expertCount }, (_, expert) => expert);
  return {
    slotExpert: reference.slots.map((slot) => slot.expert ?? -1),
    slotReading: reference.slots.map((slot) => slot.reading ?? -1),
    slotLastUse: reference.slots.map((slot) => slot.lastUse),
    useCount: experts.map((expert) => reference.usesOf(expert)),
    table: experts.map((expert) => reference.slotOf(expert)?.index ?? -1),
    useClock: reference.clock,
  };
}

/** Requests experts and has their bytes arrive. */
function use(cache: ExpertCache, ids: readonly number[], avoid?: readonly number[]): ExpertPlan {
  const plan = planExperts(cache, ids, avoid)!;
  applyPlan(cache, plan);
  publishPlan(cache, plan);
  return plan;
}

describe("planning", () => {
  test("a first request misses in request order and takes the lowest empty slots", () => {
    const cache = createCache({ slotCount: 4, expertCount: 8 });
    expect(use(cache, [5, 2, 7])).toMatchObject({
      ids: [5, 2, 7],
      slots: [0, 1, 2],
      misses: [0, 1, 2],
      hits: 0,
    });
    expect(use(cache, [7, 5])).toMatchObject({ slots: [2, 0], misses: [], hits: 2 });
    expect(use(cache, [2, 6])).toMatchObject({ slots: [1, 3], misses: [1], hits: 1 });
  });

  test("planning changes nothing until the plan is applied, and a stale plan is refused", () => {
    const cache = createCache({ slotCount: 2, expertCount: 8 });
    use(cache, [1, 2]);
    const before = stateOf(cache);
    const plan = planExperts(cache, [1, 3])!;
    expect(stateOf(cache)).toEqual(before);
    use(cache, [4]);
    expect(() => applyPlan(cache, plan)).toThrow("state it was made for");
  });

  test("a missing expert stays out of the table until its bytes have arrived", () => {
    const cache = createCache({ slotCount: 1, expertCount: 4 });
    use(cache, [0]);
    const plan = planExperts(cache, [3])!;
    applyPlan(cache, plan);
    expect([...cache.table]).toEqual([-1, -1, -1, -1]);
    expect(isReading(cache, 3)).toBe(true);
    publishPlan(cache, plan);
    expect([...cache.table]).toEqual([-1, -1, -1, 0]);
    expect(isReading(cache, 3)).toBe(false);
  });

  test("the popular expert stays where the least recently used one would have gone", () => {
    const requests = [[1], [1], [1], [2], [3]];
    const lfu = createCache({ slotCount: 2, expertCount: 4 });
    const lru = createCache({ slotCount: 2, expertCount: 4, eviction: "lru" });
    for (const ids of requests) {
      use(lfu, ids);
      use(lru, ids);
    }
    expect([...lfu.slotExpert]).toEqual([1, 3]);
    expect([...lru.slotExpert]).toEqual([3, 2]);
  });

  test("among equal counts the older use leaves, and among equal uses the lowest slot", () => {
    const older = createCache({ slotCount: 2, expertCount: 4 });
    use(older, [1]);
    use(older, [2]);
    expect(use(older, [3]).slots).toEqual([0]);
    const equal = createCache({ slotCount: 3, expertCount: 8 });
    use(equal, [1, 2, 3]);
    expect(use(equal, [4, 5]).slots).toEqual([0, 1]);
  });

  test("an evicted expert keeps its count and comes back ranked", () => {
    const cache = createCache({ slotCount: 1, expertCount: 4 });
    for (const id of [1, 1, 2, 1]) use(cache, [id]);
    expect([...cache.useCount]).toEqual([0, 3, 1, 0]);
  });

  test("a hit in the avoid set stays a hit; a miss never lands there", () => {
    const cache = createCache({ slotCount: 3, expertCount: 8 });
    use(cache, [1, 2, 3]);
    expect(use(cache, [1, 4], [0, 1])).toMatchObject({ slots: [0, 2], hits: 1 });
  });

  test("an impossible request is refused without a change", () => {
    const cache = createCache({ slotCount: 3, expertCount: 8 });
    use(cache, [1, 2, 3]);
    const before = stateOf(cache);
    expect(planExperts(cache, [1, 4], [1, 2])).toBeUndefined();
    expect(stateOf(cache)).toEqual(before);
    expect(planExperts(cache, [1, 4], [1])).toBeDefined();
  });

  test("wrong requests are programmer errors", () => {
    const cache = createCache({ slotCount: 2, expertCount: 4 });
    expect(() => planExperts(cache, [1, 1])).toThrow("an expert once");
    expect(() => planExperts(cache, [4])).toThrow("an expert of the layer");
    expect(() => planExperts(cache, [-1])).toThrow("an expert of the layer");
    expect(() => planExperts(cache, [0, 1, 2])).toThrow("a slot for each");
    expect(() => planExperts(cache, [0], [2])).toThrow("lists slots");
    expect(() => createCache({ slotCount: 0, expertCount: 4 })).toThrow("one slot at least");
    expect(() => createCache({ slotCount: 5, expertCount: 4 })).toThrow("no more slots");
  });

  test("a device's own table is kept in step", () => {
    const table = new Int32Array(4);
    const cache = createCache({ slotCount: 2, expertCount: 4, table });
    expect([...table]).toEqual([-1, -1, -1, -1]);
    use(cache, [2, 0]);
    expect([...table]).toEqual([1, -1, 0, -1]);
    use(cache, [3]);
    expect([...table]).toEqual([1, -1, -1, 0]);
  });
});

describe("failed reads", () => {
  test("publish none: the slots are empty and the next plan reads again", () => {
    const cache = createCache({ slotCount: 2, expertCount: 4 });
    use(cache, [0, 1]);
    const plan = planExperts(cache, [0, 2])!;
    applyPlan(cache, plan);
    failPlan(cache, plan);
    expect([...cache.slotExpert]).toEqual([0, -1]);
    expect([...cache.table]).toEqual([0, -1, -1, -1]);
    expect([...cache.slotReading]).toEqual([-1, -1]);
    expect(cache.useCount[2]).toBe(1);
    expect(use(cache, [0, 2])).toMatchObject({ slots: [0, 1], misses: [1] });
  });

  test("may publish what did arrive", () => {
    const cache = createCache({ slotCount: 3, expertCount: 4 });
    const plan = planExperts(cache, [3, 1, 2])!;
    applyPlan(cache, plan);
    failPlan(cache, plan, [0, 2]);
    expect([...cache.slotExpert]).toEqual([3, -1, 2]);
    expect(() => publishPlan(cache, plan)).toThrow("ends once");
  });
});

describe("speculation", () => {
  test("a probe names each missing expert once and changes no decision", () => {
    const cache = createCache({ slotCount: 2, expertCount: 8 });
    use(cache, [1, 2]);
    const before = stateOf(cache);
    expect(missingExperts(cache, [5, 1, 5, 3, 2])).toEqual([5, 3]);
    expect(stateOf(cache)).toEqual(before);
    expect(use(cache, [1, 5]).slots).toEqual([0, 1]);
  });

  test("a confirmed guess is a hit, and only the plan that confirms it counts", () => {
    const cache = createCache({ slotCount: 3, expertCount: 8 });
    const reservation = reserveExperts(cache, [4], 2);
    expect(reservation).toEqual({ ids: [4], slots: [0] });
    expect([...cache.table]).toEqual(Array.from({ length: 8 }, () => -1));
    settleReservation(cache, reservation, [0]);
    expect([cache.useCount[4], cache.useClock, cache.slotLastUse[0]]).toEqual([0, 0, 0]);
    expect(use(cache, [4, 5])).toMatchObject({ slots: [0, 1], hits: 1 });
    expect(cache.useCount[4]).toBe(1);
  });

  test("a wrong guess leaves first", () => {
    const cache = createCache({ slotCount: 3, expertCount: 8 });
    use(cache, [1, 2]);
    settleReservation(cache, reserveExperts(cache, [7], 2), [0]);
    expect([...cache.slotExpert]).toEqual([1, 2, 7]);
    expect(use(cache, [3]).slots).toEqual([2]);
  });

  test("keepEvictable caps a reservation, down to none", () => {
    const cache = createCache({ slotCount: 4, expertCount: 8 });
    expect(reserveExperts(cache, [1, 2, 3], 4)).toEqual({ ids: [], slots: [] });
    expect(reserveExperts(cache, [1, 2, 3], 9)).toEqual({ ids: [], slots: [] });
    expect(reserveExperts(cache, [1, 2, 3], 2)).toEqual({ ids: [1, 2], slots: [0, 1] });
    expect(planExperts(cache, [4, 5])).toBeDefined();
  });

  test("slots of wanted experts are kept; slots being read into are neither victims nor hits", () => {
    const cache = createCache({ slotCount: 3, expertCount: 8 });
    use(cache, [1, 2, 3]);
    const reservation = reserveExperts(cache, [1, 6], 0);
    expect(reservation).toEqual({ ids: [6], slots: [1] });
    expect(reserveExperts(cache, [6], 0)).toEqual({ ids: [], slots: [] });
    expect(planExperts(cache, [6])).toMatchObject({ slots: [0], hits: 0 });
    expect(planExperts(cache, [4, 5, 6])).toBeUndefined();
    settleReservation(cache, reservation, []);
    expect([...cache.slotExpert]).toEqual([1, -1, 3]);
  });

  test("an expert read twice is listed once", () => {
    const cache = createCache({ slotCount: 2, expertCount: 4 });
    const reservation = reserveExperts(cache, [3], 1);
    const plan = planExperts(cache, [3])!;
    applyPlan(cache, plan);
    publishPlan(cache, plan);
    settleReservation(cache, reservation, [0]);
    expect([...cache.slotExpert]).toEqual([-1, 3]);
    expect(cache.table[3]).toBe(1);
  });
});

test("the bookkeeping of an all-hit layer equals its plan's", () => {
  const caches = [0, 1].map(() => createCache({ slotCount: 4, expertCount: 8 }));
  for (const cache of caches) use(cache, [1, 2, 3, 4]);
  use(caches[0]!, [4, 2]);
  replayHits(caches[1]!, [4, 2]);
  expect(stateOf(caches[1]!)).toEqual(stateOf(caches[0]!));
  expect(() => replayHits(caches[1]!, [5])).toThrow("all its experts");
});

test("any number of slots from 1 on is accepted, and more than the experts is clamped", () => {
  expect([1, 7, 128, 129, 10_000].map((slots) => slotCountFor(slots, 128))).toEqual([
    1, 7, 128, 128, 128,
  ]);
  for (const slots of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(() => slotCountFor(slots, 128)).toThrow("from 1 to 128");
  }
});

/** Reads under way in both caches. */
type Outstanding =
  { kind: "plan"; plan: ExpertPlan } | { kind: "reservation"; reservation: ExpertReservation };

/** One cache and its reference driven by the same random requests. */
class Twins {
  readonly random: Random;
  readonly cache: ExpertCache;
  readonly reference: ReferenceCache;
  readonly outstanding: Outstanding[] = [];
  readonly seen = { plans: 0, refusals: 0, reservations: 0, failures: 0, replays: 0, hits: 0 };

  constructor(seed: number, eviction: EvictionPolicy) {
    this.random = createRandom(seed);
    const expertCount = 1 + this.random.below(20);
    const slotCount = 1 + this.random.below(expertCount);
    this.cache = createCache({ slotCount, expertCount, eviction });
    this.reference = new ReferenceCache(slotCount, eviction);
  }

  /** Distinct experts, the low ids more often than the others. */
  ids(most: number): number[] {
    const { expertCount } = this.cache;
    const wanted = 1 + this.random.below(most);
    const ids = new Set<number>();
    while (ids.size < wanted) {
      ids.add(Math.floor(this.random.uniform(0, 1) * this.random.uniform(0, expertCount)));
      if (this.random.below(4) === 0) ids.add(this.random.below(expertCount));
    }
    return [...ids].slice(0, wanted);
  }

  step(): void {
    const choice = this.random.below(11);
    if (choice < 4) this.request();
    else if (choice < 5) this.reserve();
    else if (choice < 7) this.replay();
    else this.settle();
    this.compare();
  }

  request(): void {
    const ids = this.ids(this.cache.slotCount);
    const avoid = this.random.distinct(
      this.cache.slotCount,
      this.random.below(3) % this.cache.slotCount,
    );
    const before = stateOf(this.cache);
    const plan = planExperts(this.cache, ids, avoid);
    expect(stateOf(this.cache)).toEqual(before);
    const expected = this.reference.request(ids, avoid);
    if (plan === undefined || expected === undefined) {
      expect(plan).toBe(expected as undefined);
      this.seen.refusals += 1;
      return;
    }
    const { revision: _, ...decided } = plan;
    expect(decided).toEqual(expected);
    for (const miss of plan.misses) expect(avoid).not.toContain(plan.slots[miss]!);
    applyPlan(this.cache, plan);
    this.seen.plans += 1;
    this.seen.hits += plan.hits;
    this.outstanding.push({ kind: "plan", plan });
  }

  reserve(): void {
    const ids = this.ids(this.cache.expertCount);
    const keepEvictable = this.random.below(this.cache.slotCount + 1);
    const reservation = reserveExperts(this.cache, ids, keepEvictable);
    expect(reservation).toEqual(this.reference.reserve(ids, keepEvictable));
    this.seen.reservations += reservation.ids.length;
    this.outstanding.push({ kind: "reservation", reservation });
  }

  replay(): void {
    const resident = [...this.cache.slotExpert].filter((expert) => expert >= 0);
    if (resident.length === 0) return;
    const ids = this.random
      .distinct(resident.length, 1 + this.random.below(resident.length))
      .map((i) => resident[i]!);
    expect(missingExperts(this.cache, ids)).toEqual([]);
    replayHits(this.cache, ids);
    expect(this.reference.request(ids, [])?.misses).toEqual([]);
    this.seen.replays += 1;
  }

  /** Ends the reads of one request, some of them badly. */
  settle(): void {
    const at = this.random.below(this.outstanding.length + 1);
    const [ended] = this.outstanding.splice(at, 1);
    if (ended === undefined) return;
    const positions =
      ended.kind === "plan" ? ended.plan.misses : ended.reservation.ids.map((_, i) => i);
    const { slots } = ended.kind === "plan" ? ended.plan : ended.reservation;
    const isGood = this.random.below(3) > 0;
    const arrived = isGood ? positions : positions.filter(() => this.random.below(2) === 0);
    if (ended.kind === "reservation") settleReservation(this.cache, ended.reservation, arrived);
    else if (isGood) publishPlan(this.cache, ended.plan);
    else failPlan(this.cache, ended.plan, arrived);
    if (!isGood) this.seen.failures += 1;
    for (const i of positions) this.reference.finish(slots[i]!, arrived.includes(i));
  }

  compare(): void {
    const { cache } = this;
    expect(stateOf(cache) as object).toEqual(stateOfReference(this.reference, cache.expertCount));
    const resident = [...cache.slotExpert].filter((expert) => expert >= 0);
    expect(new Set(resident).size).toBe(resident.length);
    resident.forEach((expert) => expect(cache.slotExpert[cache.table[expert]!]).toBe(expert));
    for (let slot = 0; slot < cache.slotCount; slot += 1) {
      if (cache.slotReading[slot] !== -1) expect(cache.slotExpert[slot]).toBe(-1);
    }
  }
}

test.each(["lfu", "lru"] as const)("%s equals the naive cache on random requests", (eviction) => {
  const totals = { plans: 0, refusals: 0, reservations: 0, failures: 0, replays: 0, hits: 0 };
  for (let seed = 0; seed < 120; seed += 1) {
    const twins = new Twins(seed, eviction);
    for (let step = 0; step < 80; step += 1) twins.step();
    for (const key of Object.keys(totals) as (keyof typeof totals)[])
      totals[key] += twins.seen[key];
  }
  for (const count of Object.values(totals)) expect(count).toBeGreaterThan(100);
});
