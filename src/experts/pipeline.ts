/**
 * The single copy of: plan, run the hits, read the misses, open the gate, run the misses. It takes the
 * routed tokens of one layer and leaves their weighted expert sums on the device, the last work still
 * uncommitted so that the next operations join its command list.
 *
 * Two rules keep it right. A slot is overwritten only when no committed work reads it. And a committed
 * list may wait for a read, but this thread never waits for the device before its reads have arrived.
 */
import type { SharedBuffer } from "../native/device.ts";
import type { Activation, Ops, Routes } from "../ops/ops.ts";
import { type ExpertArrays, routedExperts } from "../ops/routed.ts";
import type { Ticket } from "../ops/stream.ts";
import { integersOf, Scratch, type Tensor } from "../ops/tensor.ts";
import { assert } from "../util/errors.ts";
import {
  type ExpertGroups,
  type ExpertTile,
  GROUP_ROW_FIELDS,
  groupRoutes,
  planTiles,
  writeGroupRows,
  writePairs,
} from "./groups.ts";
import {
  applyPlan,
  type ExpertCache,
  type ExpertPlan,
  failPlan,
  planExperts,
  publishPlan,
} from "./plan.ts";
import { readEach } from "./reader.ts";
import type { ExpertStore, OpenLayer } from "./store.ts";

export interface ExpertShape {
  readonly hiddenSize: number;
  readonly expertWidth: number;
  readonly expertCount: number;
  readonly perToken: number;
  readonly activation: Activation;
  /** By layer. */
  readonly arrays: ReadonlyMap<number, ExpertArrays>;
}

export interface PipelineOptions {
  readonly ops: Ops;
  readonly store: ExpertStore;
  readonly shape: ExpertShape;
  readonly chunkRows: number;
}

/** The routed half of one layer's step. */
export interface RoutedStep {
  readonly T: number;
  readonly x: Tensor;
  readonly routes: Routes;
  /** The point at which the routes are known: `routed()`, right after the router was recorded. */
  readonly routed: Ticket;
  readonly y: Tensor;
}

export interface ExpertCounters {
  readonly hits: number;
  readonly misses: number;
  /** Layers of a step whose experts were all cached. */
  readonly allHitLayers: number;
  readonly layers: number;
  /** Seconds that the host awaited reads, whatever the device did meanwhile. */
  readonly readSeconds: number;
  readonly bytesRead: number;
}

/** What one routed step decided: for traces. */
export type RoutingObserver = (layer: number, experts: readonly number[], misses: number) => void;

/** Slots whose committed work may still be running. */
interface Pending {
  readonly slots: readonly number[];
  readonly ticket: Ticket;
}

export class ExpertPipeline {
  readonly #options: PipelineOptions;
  readonly #scratch: Scratch;
  readonly #hidden: Tensor;
  readonly #outputs: Tensor;
  readonly #groups: SharedBuffer;
  readonly #pairs: SharedBuffer;
  #groupRows = 0;
  #hits = 0;
  #misses = 0;
  #allHitLayers = 0;
  #layers = 0;
  #readSeconds = 0;
  observer: RoutingObserver | undefined;

  constructor(options: PipelineOptions) {
    const { ops, shape, chunkRows } = options;
    const pairsMax = chunkRows * shape.perToken;
    this.#options = options;
    this.#scratch = new Scratch(ops.stream.device);
    this.#hidden = this.#scratch.tensor(pairsMax, shape.expertWidth);
    this.#outputs = this.#scratch.tensor(pairsMax, shape.hiddenSize);
    this.#groups = this.#scratch.integers(4 * Math.min(pairsMax, shape.expertCount));
    this.#pairs = this.#scratch.integers(pairsMax);
  }

  get counters(): ExpertCounters {
    return {
      hits: this.#hits,
      misses: this.#misses,
      allHitLayers: this.#allHitLayers,
      layers: this.#layers,
      readSeconds: this.#readSeconds,
      bytesRead: this.#options.store.bytesRead,
    };
  }

  get scratchBytes(): number {
    return this.#scratch.byteLength;
  }

  /** Marks where the routes are known; record it right after the router. */
  routed(): Ticket {
    return this.#options.ops.stream.signal();
  }

  /**
   * Runs the chosen experts of `step.T` tokens and records their weighted sums into `step.y`.
   *
   * @throws MferenceError "expert.read" when an expert did not arrive whole; nothing was computed on it
   *   that anybody will see, and the session must be reset
   */
  async forward(layer: number, step: RoutedStep): Promise<void> {
    const { ops, store, shape } = this.#options;
    const { stream } = ops;
    const { T, routes } = step;
    stream.commit();
    const opened = await store.open(layer);
    stream.wait(step.routed);
    // This wait also says that everything before it has run: lists and slots may be rewritten.
    const ids = integersOf(routes.ids, T * routes.perToken);
    const groups = groupRoutes(ids, { T, K: routes.perToken, E: shape.expertCount });
    writePairs(integersOf(this.#pairs), groups);
    this.#groupRows = 0;
    const missesBefore = this.#misses;
    await this.#runTiles(layer, opened, { step, groups });
    this.#layers += 1;
    if (this.#misses === missesBefore) this.#allHitLayers += 1;
    this.observer?.(layer, groups.experts, this.#misses - missesBefore);
    ops.reduceRoutes(this.#outputs, routes, step.y, T);
  }

  close(): void {
    this.#scratch.close();
  }

  async #runTiles(layer: number, opened: OpenLayer, work: Work): Promise<void> {
    const { groups } = work;
    const { cache, slotCount } = opened;
    if (cache === undefined) {
      // Resident: an expert's slot is its place in the file.
      const [tile] = planTiles(groups, groups.experts.length);
      this.#hits += groups.experts.length;
      const first = this.#groupRows;
      const count = this.#writeRows(work, tile!, residentPlan(tile!));
      this.#record(layer, opened, work, { first, count });
      return;
    }
    const size = tileSize(cache, groups, slotCount);
    const { stream } = this.#options.ops;
    let older: Pending | undefined;
    let pending: Pending | undefined;
    for (const tile of planTiles(groups, size, (expert) => cache.table[expert]! >= 0)) {
      // Planning keeps away from the slots of one unfinished tile; the one before it must be done.
      if (older !== undefined) {
        stream.commit();
        stream.wait(older.ticket);
      }
      const next = await this.#runTile(layer, opened, { ...work, tile, pending });
      older = pending;
      pending = next;
    }
  }

  /** One tile: at most as many experts as there are slots. */
  async #runTile(layer: number, opened: OpenLayer, work: TileWork): Promise<Pending> {
    const { stream } = this.#options.ops;
    const { tile, pending } = work;
    const cache = opened.cache!;
    let plan = planExperts(cache, tile.experts, pending?.slots);
    if (plan === undefined && pending !== undefined) {
      // The slots that this tile needs still feed the one before it.
      stream.commit();
      stream.wait(pending.ticket);
      plan = planExperts(cache, tile.experts);
    }
    assert(plan !== undefined, `${tile.experts.length} experts fit ${opened.slotCount} slots`);
    applyPlan(cache, plan);
    this.#hits += plan.hits;
    this.#misses += plan.misses.length;
    const first = this.#groupRows;
    const hits = this.#writeRows(work, tile, plan);
    this.#record(layer, opened, work, { first, count: hits });
    // A gate for each missing expert: the device works on those that have arrived while others are read.
    const gates = plan.misses.map((_, miss) => {
      const gate = stream.gate();
      this.#record(layer, opened, work, { first: first + hits + miss, count: 1 });
      return gate;
    });
    const ticket = stream.signal();
    // Many tokens: let the device begin while the next tile is planned and read.
    if (gates.length > 0 || work.groups.tokens > 1) stream.commit();
    if (gates.length > 0) await this.#fetch(opened, plan, gates);
    return { slots: plan.slots, ticket };
  }

  /** Reads every missing expert and opens its gate; ends when no read is under way any more. */
  async #fetch(opened: OpenLayer, plan: ExpertPlan, gates: readonly number[]): Promise<void> {
    const { stream } = this.#options.ops;
    const begin = performance.now();
    const fetch = (miss: number): Promise<void> => {
      const position = plan.misses[miss]!;
      return opened.fetch(plan.ids[position]!, plan.slots[position]!);
    };
    try {
      await readEach(gates.length, fetch, (miss) => stream.openGate(gates[miss]!));
    } catch (error) {
      failPlan(opened.cache!, plan);
      throw error;
    } finally {
      this.#readSeconds += (performance.now() - begin) / 1000;
    }
    publishPlan(opened.cache!, plan);
  }

  /** Appends a tile's rows, hits first, and returns how many are hits. */
  #writeRows(work: Work, tile: ExpertTile, plan: Pick<ExpertPlan, "slots" | "misses">): number {
    const rows = integersOf(this.#groups).subarray(GROUP_ROW_FIELDS * this.#groupRows);
    this.#groupRows += tile.experts.length;
    return writeGroupRows(rows, work.groups, tile, plan);
  }

  /** Records both phases for `count` group rows from `first` on. */
  #record(layer: number, opened: OpenLayer, work: Work, { first, count }: RowRange): void {
    if (count === 0) return;
    const { ops, shape } = this.#options;
    const { groups, step } = work;
    routedExperts(
      ops,
      { slab: opened.slab, slots: opened.slotCount, slotBytes: opened.slotBytes },
      {
        shape,
        arrays: shape.arrays.get(layer)!,
        T: step.T,
        x: step.x,
        hidden: this.#hidden,
        y: this.#outputs,
        groups: { buffer: this.#groups, offset: 4 * GROUP_ROW_FIELDS * first },
        groupCount: count,
        pairs: this.#pairs,
        pairCount: groups.pairs.length,
      },
    );
  }
}

interface Work {
  readonly step: RoutedStep;
  readonly groups: ExpertGroups;
}
interface TileWork extends Work {
  readonly tile: ExpertTile;
  readonly pending: Pending | undefined;
}
interface RowRange {
  readonly first: number;
  readonly count: number;
}

/** Most experts of a tile of a chunk: two tiles fit the slots, so that one is read while one computes. */
const TILE_EXPERTS_MAX = 8;

function tileSize(cache: ExpertCache, groups: ExpertGroups, slotCount: number): number {
  const isResident = groups.experts.every((expert) => cache.table[expert]! >= 0);
  if (groups.tokens === 1 || isResident) return slotCount;
  return Math.max(1, Math.min(TILE_EXPERTS_MAX, Math.floor(slotCount / 2)));
}

/** A mapped layer needs no plan: every expert is a hit in the slot of its id. */
const residentPlan = ({ experts }: ExpertTile): Pick<ExpertPlan, "slots" | "misses"> => ({
  slots: experts,
  misses: [],
});
