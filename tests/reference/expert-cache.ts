/**
 * The expert cache of one layer in the plainest words: a list of slots, sorted anew for each request.
 * Written from the rules, not from src/experts/plan.ts.
 */

export interface ReferenceSlot {
  readonly index: number;
  /** The expert whose bytes are complete. */
  expert: number | undefined;
  /** The expert whose bytes are being read. */
  reading: number | undefined;
  lastUse: number;
}

export interface ReferencePlan {
  readonly ids: number[];
  readonly slots: number[];
  readonly misses: number[];
  readonly hits: number;
}

export class ReferenceCache {
  readonly slots: ReferenceSlot[];
  readonly uses = new Map<number, number>();
  readonly eviction: "lfu" | "lru";
  clock = 0;

  constructor(slotCount: number, eviction: "lfu" | "lru") {
    this.slots = Array.from({ length: slotCount }, (_, index) => ({
      index,
      expert: undefined,
      reading: undefined,
      lastUse: 0,
    }));
    this.eviction = eviction;
  }

  usesOf(expert: number): number {
    return this.uses.get(expert) ?? 0;
  }

  slotOf(expert: number): ReferenceSlot | undefined {
    return this.slots.find((slot) => slot.expert === expert);
  }

  /** Plans and takes into force at once; undefined, and nothing changed, where it cannot be placed. */
  request(ids: readonly number[], avoid: readonly number[]): ReferencePlan | undefined {
    const held = ids.map((id) => this.slotOf(id));
    const victims = this.#inEvictionOrder().filter(
      (slot) => !held.includes(slot) && !avoid.includes(slot.index) && slot.reading === undefined,
    );
    const misses = ids.map((_, i) => i).filter((i) => held[i] === undefined);
    if (misses.length > victims.length) return undefined;
    this.clock += 1;
    const chosen = held.map((slot) => slot ?? victims.shift()!);
    ids.forEach((id, i) => {
      this.uses.set(id, this.usesOf(id) + 1);
      chosen[i]!.lastUse = this.clock;
      if (held[i] === undefined) {
        chosen[i]!.expert = undefined;
        chosen[i]!.reading = id;
      }
    });
    const slots = chosen.map((slot) => slot.index);
    return { ids: [...ids], slots, misses, hits: ids.length - misses.length };
  }

  /** A read into a slot ended. */
  finish(index: number, arrived: boolean): void {
    const slot = this.slots[index]!;
    const expert = slot.reading!;
    slot.reading = undefined;
    if (arrived && this.slotOf(expert) === undefined) slot.expert = expert;
  }

  reserve(ids: readonly number[], keepEvictable: number): { ids: number[]; slots: number[] } {
    const candidates = this.#inEvictionOrder().filter(
      (slot) =>
        slot.reading === undefined && (slot.expert === undefined || !ids.includes(slot.expert)),
    );
    const wanted = [...new Set(ids)].filter(
      (id) => this.slotOf(id) === undefined && !this.slots.some((slot) => slot.reading === id),
    );
    const budget = Math.max(0, Math.min(wanted.length, candidates.length - keepEvictable));
    const chosen = candidates.slice(0, budget);
    chosen.forEach((slot, i) => {
      slot.expert = undefined;
      slot.reading = wanted[i];
    });
    return { ids: wanted.slice(0, budget), slots: chosen.map((slot) => slot.index) };
  }

  #inEvictionOrder(): ReferenceSlot[] {
    return this.slots.toSorted((a, b) => {
      if (this.eviction === "lfu") {
        const emptiness = Number(b.expert === undefined) - Number(a.expert === undefined);
        if (emptiness !== 0) return emptiness;
        if (a.expert !== undefined && b.expert !== undefined) {
          const popularity = this.usesOf(a.expert) - this.usesOf(b.expert);
          if (popularity !== 0) return popularity;
        }
      }
      return a.lastUse - b.lastUse || a.index - b.index;
    });
  }
}
