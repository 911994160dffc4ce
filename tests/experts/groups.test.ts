import { describe, expect, test } from "bun:test";
import {
  type ExpertGroups,
  type ExpertTile,
  GROUP_ROW_FIELDS,
  groupRoutes,
  planTiles,
  type RouteShape,
  writeGroupRows,
  writePairs,
} from "../../src/experts/groups.ts";
import { applyPlan, createCache, planExperts, publishPlan } from "../../src/experts/plan.ts";
import { MferenceError } from "../../src/util/errors.ts";
import { createRandom, type Random } from "../reference/random.ts";

/** Routes of T tokens to K distinct experts each. */
function randomRoutes(random: Random, { T, K, E }: RouteShape): Uint32Array {
  return Uint32Array.from(Array.from({ length: T }, () => random.distinct(E, K)).flat());
}

/** The same grouping by sorting (expert, token, rank). */
function naiveGroups(ids: Uint32Array, K: number) {
  const sorted = [...ids]
    .map((expert, pair) => ({ expert, pair, token: Math.floor(pair / K), rank: pair % K }))
    .toSorted((a, b) => a.expert - b.expert || a.token - b.token || a.rank - b.rank);
  const experts = [...new Set(sorted.map(({ expert }) => expert))];
  return {
    tokens: ids.length / K,
    experts,
    starts: experts.map((expert) => sorted.findIndex((route) => route.expert === expert)),
    counts: experts.map((expert) => sorted.filter((route) => route.expert === expert).length),
    pairs: Uint32Array.from(sorted.map(({ pair }) => pair)),
  };
}

const expertsOf = (tiles: readonly ExpertTile[]) => tiles.map((tile) => [...tile.experts]);

describe("grouping", () => {
  test("sorts by expert, token and rank", () => {
    const ids = Uint32Array.of(5, 1, 1, 3, 3, 5);
    expect(groupRoutes(ids, { T: 3, K: 2, E: 6 })).toEqual({
      tokens: 3,
      experts: [1, 3, 5],
      starts: [0, 2, 4],
      counts: [2, 2, 2],
      pairs: Uint32Array.of(1, 2, 3, 4, 0, 5),
    });
  });

  test("keeps the order of the ranks of a single token", () => {
    expect(groupRoutes(Uint32Array.of(5, 1, 3), { T: 1, K: 3, E: 6 })).toEqual({
      tokens: 1,
      experts: [5, 1, 3],
      starts: [0, 1, 2],
      counts: [1, 1, 1],
      pairs: Uint32Array.of(0, 1, 2),
    });
  });

  test("equals a naive sort, every route in one group", () => {
    const random = createRandom(7);
    for (let round = 0; round < 60; round += 1) {
      const E = 1 + random.below(40);
      const shape = { T: 2 + random.below(32), K: 1 + random.below(Math.min(E, 8)), E };
      const ids = randomRoutes(random, shape);
      const groups = groupRoutes(ids, shape);
      expect(groups as object).toEqual(naiveGroups(ids, shape.K));
      expect([...groups.pairs].toSorted((a, b) => a - b)).toEqual([...ids.keys()]);
    }
  });

  test("does not depend on what was grouped before", () => {
    const shape = { T: 1, K: 2, E: 4 };
    const first = groupRoutes(Uint32Array.of(3, 0), shape);
    groupRoutes(Uint32Array.of(1, 2), shape);
    expect(first.experts).toEqual([3, 0]);
  });

  test("takes a chunk without tokens", () => {
    const groups = groupRoutes(new Uint32Array(0), { T: 0, K: 2, E: 4 });
    expect(groups.experts).toEqual([]);
    expect(planTiles(groups, 4)).toEqual([]);
  });

  test.each([
    ["too few routes", [0, 1, 2], { T: 2, K: 2, E: 4 }, "give 4 routes, found 3"],
    [
      "an id beyond the experts",
      [0, 1, 2, 4],
      { T: 2, K: 2, E: 4 },
      "token 1 is routed to expert 4",
    ],
    ["an expert twice", [0, 1, 2, 2], { T: 2, K: 2, E: 4 }, "token 1 is routed to expert 2 twice"],
    ["a single token's id", [4, 1], { T: 1, K: 2, E: 4 }, "expert 4, expected 0 to 3"],
    ["a single token's expert twice", [1, 1], { T: 1, K: 2, E: 4 }, "expert 1 twice"],
  ] as const)("refuses %s", (_, ids, shape, sentence) => {
    let caught: unknown;
    try {
      groupRoutes(Uint32Array.from(ids), shape);
    } catch (error) {
      caught = error;
    }
    expect(caught).toBeInstanceOf(MferenceError);
    expect((caught as MferenceError).code).toBe("engine.state");
    expect((caught as MferenceError).message).toContain(sentence);
  });
});

describe("tiles", () => {
  const chunk = groupRoutes(Uint32Array.of(0, 1, 2, 3, 4, 5, 6, 0), { T: 4, K: 2, E: 8 });

  test("are consecutive and at most as large as asked", () => {
    expect(expertsOf(planTiles(chunk, 3))).toEqual([[0, 1, 2], [3, 4, 5], [6]]);
    expect(expertsOf(planTiles(chunk, 100))).toEqual([[0, 1, 2, 3, 4, 5, 6]]);
    expect(planTiles(chunk, 1)).toHaveLength(7);
    expect(() => planTiles(chunk, 0)).toThrow("one expert at least");
  });

  test("take cached experts first, so that misses do not evict them unused", () => {
    const cached = new Set([2, 5, 6]);
    expect(expertsOf(planTiles(chunk, 3, (expert) => cached.has(expert)))).toEqual([
      [2, 5, 6],
      [0, 1, 3],
      [4],
    ]);
  });

  test("of one token follow its ranks, cached experts first where they are several", () => {
    const token = groupRoutes(Uint32Array.of(7, 2, 5), { T: 1, K: 3, E: 8 });
    const isCached = (expert: number): boolean => expert === 5;
    expect(expertsOf(planTiles(token, 2, isCached))).toEqual([[5, 7], [2]]);
    expect(expertsOf(planTiles(token, 3, isCached))).toEqual([[7, 2, 5]]);
  });
});

describe("rows", () => {
  const groups = groupRoutes(Uint32Array.of(4, 1, 1, 3), { T: 2, K: 2, E: 6 });

  test("put hits before misses and point into the chunk's pairs", () => {
    const rows = new Uint32Array(4 * GROUP_ROW_FIELDS).fill(99);
    const [tile] = planTiles(groups, 8);
    const hits = writeGroupRows(rows, groups, tile!, { slots: [7, 5, 6], misses: [0, 2] });
    expect(hits).toBe(1);
    expect([...rows]).toEqual([5, 2, 1, 0, 7, 0, 2, 0, 6, 3, 1, 0, 99, 99, 99, 99]);
  });

  test("refuse a plan of another tile and buffers that are too small", () => {
    const [tile] = planTiles(groups, 8);
    const write = (length: number, slots: number[], misses: number[]) => () =>
      writeGroupRows(new Uint32Array(length), groups, tile!, { slots, misses });
    expect(write(12, [0, 1], [])).toThrow("a slot for each expert");
    expect(write(11, [0, 1, 2], [])).toThrow("fit their buffer");
    expect(write(12, [0, 1, 2], [2, 0])).toThrow("ascending order");
    expect(() => writePairs(new Uint32Array(3), groups)).toThrow("fit their buffer");
  });
});

/** The routes that a kernel would run, read back from rows and pairs: pair -> slot. */
function routesOf(rows: Uint32Array, pairs: Uint32Array): Map<number, number> {
  const routes = new Map<number, number>();
  for (let at = 0; at < rows.length; at += GROUP_ROW_FIELDS) {
    const [slot, first, count] = [rows[at]!, rows[at + 1]!, rows[at + 2]!];
    for (const pair of pairs.subarray(first, first + count)) {
      expect(routes.has(pair)).toBe(false);
      routes.set(pair, slot);
    }
  }
  return routes;
}

/** Runs a chunk on a cache tile by tile and says which expert each pair was computed with. */
function runChunk(
  groups: ExpertGroups,
  cache: ReturnType<typeof createCache>,
): Map<number, number> {
  const pairs = new Uint32Array(groups.pairs.length);
  writePairs(pairs, groups);
  const expertOfPair = new Map<number, number>();
  const tiles = planTiles(groups, cache.slotCount, (expert) => cache.table[expert]! >= 0);
  for (const tile of tiles) {
    const plan = planExperts(cache, tile.experts)!;
    applyPlan(cache, plan);
    const rows = new Uint32Array(tile.experts.length * GROUP_ROW_FIELDS);
    const hits = writeGroupRows(rows, groups, tile, plan);
    expect(hits).toBe(plan.hits);
    for (const slot of routesOf(rows.subarray(0, hits * GROUP_ROW_FIELDS), pairs).values()) {
      expect(cache.slotReading[slot]).toBe(-1);
    }
    publishPlan(cache, plan);
    for (const [pair, slot] of routesOf(rows, pairs)) {
      expect(expertOfPair.has(pair)).toBe(false);
      expertOfPair.set(pair, cache.slotExpert[slot]!);
    }
  }
  return expertOfPair;
}

test("every route runs once with its own expert, whatever the number of slots", () => {
  const random = createRandom(11);
  const E = 12;
  for (let slotCount = 1; slotCount <= E; slotCount += 1) {
    const cache = createCache({ slotCount, expertCount: E });
    for (const T of [1, 2, 9, 32, 1]) {
      const shape = { T, K: 4, E };
      const ids = randomRoutes(random, shape);
      const expertOfPair = runChunk(groupRoutes(ids, shape), cache);
      expect(expertOfPair).toEqual(new Map(ids.entries()));
    }
  }
});

test("cached experts first saves their reads", () => {
  const ids = Uint32Array.from({ length: 16 }, (_, expert) => expert);
  const groups = groupRoutes(ids, { T: 2, K: 8, E: 16 });
  const missesWith = (resident?: (expert: number) => boolean) => {
    const cache = createCache({ slotCount: 4, expertCount: 16 });
    let misses = 0;
    for (const experts of [[12, 13, 14, 15], ...expertsOf(planTiles(groups, 4, resident))]) {
      const plan = planExperts(cache, experts)!;
      applyPlan(cache, plan);
      publishPlan(cache, plan);
      misses += plan.misses.length;
    }
    return misses;
  };
  expect(missesWith()).toBe(20);
  expect(missesWith((expert) => expert >= 12)).toBe(16);
});
