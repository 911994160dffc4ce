// Replays traces (mference generate --trace FILE) against cache policies:
//   bun bench/replay.ts FILE... [--slots 8,16,32,64] [--json]
// "lfu" and "lru" are the program's own planner. "aged lfu" halves all counts every 64 requests of a layer.
// "belady" evicts what is needed latest: no policy can do better, and none can know that. Hit rates in percent;
// tokens of prompts count once for each chunk, as they are read.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import type { TraceHeader, TraceStep } from "../src/engine/trace.ts";
import { applyPlan, createCache, planExperts, publishPlan } from "../src/experts/plan.ts";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    slots: { type: "string", default: "8,16,32,64" },
    json: { type: "boolean", default: false },
  },
});
if (positionals.length === 0) throw new Error("usage: bun bench/replay.ts FILE... [--slots LIST]");

/** The requests of one layer, in order; each lists distinct experts. */
type Requests = readonly (readonly number[])[];
/** Hits of one layer with so many slots. */
type Policy = (requests: Requests, slots: number, experts: number) => number;

/** Requests that fit the slots: what is longer runs in parts, as the program's tiles do. */
function* fitting(requests: Requests, slots: number): Generator<readonly number[]> {
  for (const request of requests) {
    for (let at = 0; at < request.length; at += slots) yield request.slice(at, at + slots);
  }
}

const planned =
  (eviction: "lfu" | "lru"): Policy =>
  (requests, slotCount, expertCount) => {
    const cache = createCache({ slotCount, expertCount, eviction });
    let hits = 0;
    for (const ids of fitting(requests, slotCount)) {
      const plan = planExperts(cache, ids)!;
      applyPlan(cache, plan);
      publishPlan(cache, plan);
      hits += plan.hits;
    }
    return hits;
  };

/** Evicts the expert of the lowest score that the request does not need. */
function simulate(
  requests: Requests,
  slots: number,
  score: (expert: number, at: number) => number,
  used: (expert: number, at: number) => void,
): number {
  const held = new Set<number>();
  let [hits, at] = [0, 0];
  for (const ids of fitting(requests, slots)) {
    for (const id of ids) if (held.has(id)) hits += 1;
    for (const id of ids) used(id, at);
    for (const id of ids) {
      if (held.has(id)) continue;
      if (held.size === slots) held.delete(worst(held, ids, (expert) => score(expert, at)));
      held.add(id);
    }
    at += 1;
  }
  return hits;
}

function worst(
  held: ReadonlySet<number>,
  kept: readonly number[],
  score: (expert: number) => number,
): number {
  let [found, least] = [-1, Infinity];
  for (const expert of held) {
    if (kept.includes(expert)) continue;
    const value = score(expert);
    if (value < least) [found, least] = [expert, value];
  }
  return found;
}

const AGE_REQUESTS = 64;

const agedLfu: Policy = (requests, slots, experts) => {
  const counts = new Float64Array(experts);
  const last = new Float64Array(experts);
  let aged = 0;
  return simulate(
    requests,
    slots,
    // Ties go to who was used last.
    (expert) => counts[expert]! + last[expert]! / 1e9,
    (expert, at) => {
      if (at - aged >= AGE_REQUESTS) {
        aged = at;
        for (let i = 0; i < experts; i += 1) counts[i]! /= 2;
      }
      counts[expert]! += 1;
      last[expert] = at;
    },
  );
};

const belady: Policy = (requests, slots, experts) => {
  const uses = Array.from({ length: experts }, (): number[] => []);
  let at = 0;
  for (const ids of fitting(requests, slots)) {
    for (const id of ids) uses[id]!.push(at);
    at += 1;
  }
  const next = (expert: number, now: number): number => {
    const list = uses[expert]!;
    while (list[0] !== undefined && list[0] <= now) list.shift();
    return list[0] ?? Infinity;
  };
  return simulate(
    requests,
    slots,
    (expert, now) => -Math.min(next(expert, now), 1e15),
    () => {},
  );
};

const POLICIES: Readonly<Record<string, Policy>> = {
  lfu: planned("lfu"),
  "aged lfu": agedLfu,
  lru: planned("lru"),
  belady,
};

function readTrace(file: string): { experts: number; layers: Map<number, number[][]> } {
  const [first, ...rest] = readFileSync(file, "utf8").trimEnd().split("\n");
  const header = JSON.parse(first ?? "null") as TraceHeader | null;
  if (header?.type !== "model") throw new Error(`${file} is no trace`);
  const layers = new Map<number, number[][]>();
  for (const line of rest) {
    for (const { layer, experts } of (JSON.parse(line) as TraceStep).routes) {
      const list = layers.get(layer) ?? [];
      layers.set(layer, list);
      list.push([...experts]);
    }
  }
  return { experts: header.experts, layers };
}

interface Row {
  readonly trace: string;
  readonly slots: number;
  readonly requests: number;
  readonly hitRates: Readonly<Record<string, number>>;
}

function replay(file: string, slots: number): Row {
  const { experts, layers } = readTrace(file);
  const all = [...layers.values()];
  const requests = all.flat().reduce((sum, ids) => sum + ids.length, 0);
  const rate = (policy: Policy): number =>
    all.reduce((sum, list) => sum + policy(list, Math.min(slots, experts), experts), 0) / requests;
  const hitRates = Object.fromEntries(
    Object.entries(POLICIES).map(([name, policy]) => [name, rate(policy)]),
  );
  return { trace: file, slots, requests, hitRates };
}

const slotCounts = flags.slots.split(",").map(Number);
const rows = positionals.flatMap((file) => slotCounts.map((slots) => replay(file, slots)));
if (flags.json) console.log(JSON.stringify(rows));
else {
  const percent = (rates: Row["hitRates"]): Record<string, string> =>
    Object.fromEntries(
      Object.entries(rates).map(([name, rate]) => [name, (100 * rate).toFixed(1)]),
    );
  console.table(
    rows.map(({ trace, slots, requests, hitRates }) =>
      Object.assign({ trace, slots, requests }, percent(hitRates)),
    ),
  );
}
