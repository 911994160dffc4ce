/**
 * The single copy of: plan, run the hits, read the misses, open their gates, run them. It takes the routed
 * tokens of one layer and leaves their weighted expert sums recorded behind the reads, which may still be
 * under way: so the next layer is recorded meanwhile.
 *
 * A token in a layer whose experts are all in slots needs no plan: the device looks its slots up, and the
 * host records on without knowing the routes. Nothing can leave such a layer, so its uses are not counted.
 *
 * Two rules keep it right. A slot is overwritten only when no committed work reads it. And a committed
 * list may wait for a read, but this thread never waits for a list before the reads in front of it.
 */
import type { SharedBuffer } from "../native/device.ts";
import type { Activation, Ops, Routes } from "../ops/ops.ts";
import { type ExpertArrays, lookUpSlots, type RoutedLists, routedExperts } from "../ops/routed.ts";
import type { Ticket } from "../ops/stream.ts";
import { integersOf, Scratch, type Tensor } from "../ops/tensor.ts";
import { assert } from "../util/errors.ts";
import {
  type ExpertGroups,
  type ExpertTile,
  GROUP_ROW_FIELDS,
  groupRoutes,
  planTiles,
  ranksOf,
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
import { ReadQueue } from "./reader.ts";
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

/** What one routed step decided: for traces. While there is an observer, the host plans every layer. */
export type RoutingObserver = (layer: number, experts: readonly number[], misses: number) => void;

/** A tile whose reads and committed work may still be under way. */
interface Running {
  readonly slots: readonly number[];
  readonly ticket: Ticket;
  /** Ends when none of its slots is being read into. */
  readonly arrived: Promise<void>;
}

export class ExpertPipeline {
  readonly #options: PipelineOptions;
  readonly #scratch: Scratch;
  readonly #hidden: Tensor;
  readonly #outputs: Tensor;
  readonly #groups: SharedBuffer;
  readonly #pairs: SharedBuffer;
  /** Of a single token without a plan: the device writes its rows, and its pairs never change. */
  readonly #token: RoutedLists;
  readonly #reads = new ReadQueue();
  /** Of the layer that was recorded last, oldest first. */
  #running: Running[] = [];
  /** Ends with whether every gate so far was opened. */
  #opening: Promise<boolean> = Promise.resolve(true);
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
    const K = shape.perToken;
    const pairs = this.#scratch.integers(K);
    writePairs(integersOf(pairs), ranksOf(K));
    const groups = { buffer: this.#scratch.integers(GROUP_ROW_FIELDS * K) };
    this.#token = { groups, groupCount: K, pairs, pairCount: K };
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
   * Runs the chosen experts of `step.T` tokens and records their weighted sums into `step.y`. Their reads
   * may be under way when it returns; `settle` awaits them, and so does the next layer.
   *
   * @throws MferenceError "expert.read" when an expert did not arrive whole, of this layer or the one
   *   before; nothing was computed on it that anybody will see, and the session must be reset
   */
  async forward(layer: number, step: RoutedStep): Promise<void> {
    const { ops, store, shape } = this.#options;
    const known = store.opened(layer);
    if (step.T === 1 && known !== undefined && isWhole(known) && this.observer === undefined) {
      this.#forwardWhole(layer, known, step);
      return;
    }
    const { stream } = ops;
    const { T, routes } = step;
    stream.commit();
    const opened = await store.open(layer);
    await this.settle();
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

  /** One token, every expert in a slot: nothing waits for its routes. */
  #forwardWhole(layer: number, opened: OpenLayer, step: RoutedStep): void {
    const { ops } = this.#options;
    const { routes } = step;
    lookUpSlots(ops, routes, opened, this.#token);
    this.#record(layer, opened, step, this.#token);
    this.#hits += routes.perToken;
    this.#layers += 1;
    this.#allHitLayers += 1;
    ops.reduceRoutes(this.#outputs, routes, step.y, 1);
  }

  /**
   * Awaits the reads that are under way; then this thread may wait for the device.
   *
   * @throws MferenceError "expert.read"
   */
  async settle(): Promise<void> {
    if (this.#running.length === 0) return;
    const running = this.#running.splice(0);
    const ends = await this.#timed(Promise.allSettled(running.map(({ arrived }) => arrived)));
    this.#opening = Promise.resolve(true);
    const failed = ends.find((end) => end.status === "rejected");
    if (failed !== undefined) throw failed.reason;
  }

  close(): void {
    this.#scratch.close();
  }

  async #timed<T>(reads: Promise<T>): Promise<T> {
    const begin = performance.now();
    try {
      return await reads;
    } finally {
      this.#readSeconds += (performance.now() - begin) / 1000;
    }
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
      this.#recordRows(layer, opened, work, { first, count });
      return;
    }
    const size = tileSize(cache, groups, slotCount);
    // Planning keeps away from the slots of unfinished tiles: so many leave room for one more.
    const most = Math.floor(slotCount / size) - 1;
    for (const tile of planTiles(groups, size, (expert) => cache.table[expert]! >= 0)) {
      while (this.#running.length > most) await this.#retire();
      this.#startTile(layer, opened, { ...work, tile });
    }
  }

  /** Waits until the oldest tile is done; the reads of the others go on. */
  async #retire(): Promise<void> {
    const { stream } = this.#options.ops;
    const [oldest] = this.#running;
    await this.#timed(oldest!.arrived);
    stream.wait(oldest!.ticket);
    this.#running.shift();
  }

  /** One tile: begins its reads and hands over its work, what is missing behind gates. */
  #startTile(layer: number, opened: OpenLayer, work: TileWork): void {
    const { stream } = this.#options.ops;
    const { tile } = work;
    const cache = opened.cache!;
    const busy = this.#running.flatMap(({ slots }) => slots);
    const plan = planExperts(cache, tile.experts, busy);
    assert(plan !== undefined, `${tile.experts.length} experts fit ${opened.slotCount} slots`);
    applyPlan(cache, plan);
    this.#hits += plan.hits;
    this.#misses += plan.misses.length;
    const first = this.#groupRows;
    const hits = this.#writeRows(work, tile, plan);
    this.#recordRows(layer, opened, work, { first, count: hits });
    // A gate for each missing expert: the device works on those that have arrived while others are read.
    const gates = plan.misses.map((_, miss) => {
      const gate = stream.gate();
      this.#recordRows(layer, opened, work, { first: first + hits + miss, count: 1 });
      return gate;
    });
    const ticket = stream.signal();
    const arrived = this.#fetch(opened, plan, gates);
    this.#running.push({ slots: plan.slots, ticket, arrived });
    // What is not the last of its layer runs while the next tile is planned and read.
    if (gates.length > 0 || tile.experts.length < work.groups.experts.length) stream.commit();
  }

  /** Reads every missing expert and opens its gate; ends when no read is under way any more. */
  #fetch(opened: OpenLayer, plan: ExpertPlan, gates: readonly number[]): Promise<void> {
    if (gates.length === 0) return Promise.resolve();
    const { stream } = this.#options.ops;
    let failure: { readonly cause: unknown } | undefined;
    const ends = plan.misses.map((position) =>
      this.#reads
        .run(async () => {
          // Nobody will use what is read after a failure.
          if (failure === undefined) await opened.fetch(plan.ids[position]!, plan.slots[position]!);
        })
        .catch((cause: unknown) => (failure ??= { cause })),
    );
    const openGates = async (before: Promise<boolean>): Promise<boolean> => {
      let isOpen = await before;
      for (const [miss, end] of ends.entries()) {
        await end;
        isOpen &&= failure === undefined;
        if (isOpen) stream.openGate(gates[miss]!);
      }
      if (failure === undefined) publishPlan(opened.cache!, plan);
      else failPlan(opened.cache!, plan);
      return isOpen;
    };
    this.#opening = openGates(this.#opening);
    const arrived = this.#opening.then(() => {
      if (failure !== undefined) throw failure.cause;
    });
    // It is awaited when its slots are needed; until then nobody listens.
    arrived.catch(() => {});
    return arrived;
  }

  /** Appends a tile's rows, hits first, and returns how many are hits. */
  #writeRows(work: Work, tile: ExpertTile, plan: Pick<ExpertPlan, "slots" | "misses">): number {
    const rows = integersOf(this.#groups).subarray(GROUP_ROW_FIELDS * this.#groupRows);
    this.#groupRows += tile.experts.length;
    return writeGroupRows(rows, work.groups, tile, plan);
  }

  /** Records both phases for `count` group rows from `first` on. */
  #recordRows(layer: number, opened: OpenLayer, work: Work, { first, count }: RowRange): void {
    if (count === 0) return;
    this.#record(layer, opened, work.step, {
      groups: { buffer: this.#groups, offset: 4 * GROUP_ROW_FIELDS * first },
      groupCount: count,
      pairs: this.#pairs,
      pairCount: work.groups.pairs.length,
    });
  }

  #record(layer: number, opened: OpenLayer, step: RoutedStep, lists: RoutedLists): void {
    const { ops, shape } = this.#options;
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
        ...lists,
      },
    );
  }
}

/** Whether every expert of a layer is in a slot: then none has to leave, and its table stays as it is. */
const isWhole = ({ cache }: OpenLayer): boolean =>
  cache === undefined || cache.residentCount === cache.expertCount;

interface Work {
  readonly step: RoutedStep;
  readonly groups: ExpertGroups;
}
interface TileWork extends Work {
  readonly tile: ExpertTile;
}
interface RowRange {
  readonly first: number;
  readonly count: number;
}

/** Most experts of a tile of a chunk: two tiles fit the slots, so that one is read while one computes. */
const TILE_EXPERTS_MAX = 8;

function tileSize(
  cache: ExpertCache,
  { experts, tokens }: ExpertGroups,
  slotCount: number,
): number {
  const isResident = experts.every((expert) => cache.table[expert]! >= 0);
  if (isResident || (tokens === 1 && experts.length <= slotCount)) return slotCount;
  // A token with more experts than slots takes them one by one, each as soon as a slot is done with.
  if (tokens === 1) return 1;
  return Math.max(1, Math.min(TILE_EXPERTS_MAX, Math.floor(slotCount / 2)));
}

/** A mapped layer needs no plan: every expert is a hit in the slot of its id. */
const residentPlan = ({ experts }: ExpertTile): Pick<ExpertPlan, "slots" | "misses"> => ({
  slots: experts,
  misses: [],
});
