/**
 * How many expert slots a model gets and how many rows of a prompt it takes at once where nobody says it,
 * and how the cache gives memory back when it gets scarce. Goes by what is available and by the limits of control groups, never by what the machine has.
 */
import type { ExpertStore } from "../experts/store.ts";
import { type MemoryFacts, memoryFacts, refaultedBytes } from "../util/limits.ts";
import { formatBytes } from "../util/units.ts";

/** What a model needs beside its slots, and what a slot in every layer takes. */
export interface SlotNeeds {
  /** Mapped, and read by every token: it must stay in memory. */
  readonly commonBytes: number;
  readonly kvBytes: number;
  readonly slotBytes: number;
  readonly expertCount: number;
  readonly hasText: boolean;
  /** Activations of one row of a chunk. */
  readonly rowBytes: number;
  /** Rows of a chunk that somebody asked for; absent: `chooseChunk`. */
  readonly chunkRows?: number | undefined;
}

/** Slots that are chosen: few enough that a little more or less memory changes nothing. */
const RUNGS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512] as const;
/** Chunks that are chosen, longest first; the last is small enough to need no room of its own. */
const CHUNKS = [1024, 512, 256, 128] as const;
const CHUNK_LEAST = 128;
/** Longer ones save reads and hardly time: where nothing is read, or memory is unknown, they are not chosen. */
const CHUNK_USUAL = 512;
/** The program itself as it grows after loading, and the scratch of the smallest chunk. */
const PROGRAM_BYTES = 100e6;
/** A tokenizer with a big vocabulary. */
const TEXT_BYTES = 150e6;
/** Where the system does not say what is available. */
const SLOTS_UNKNOWN = 16;

/**
 * Slots of each layer. All experts if they fit into three quarters of what is usable. Else, within the limit
 * of a control group, which is there to be used: what fits; on a machine shared with others: what fits into
 * half, but up to 16 even if that takes the rest.
 */
export function chooseSlots(needs: SlotNeeds, facts: MemoryFacts): number {
  const { expertCount } = needs;
  if (!facts.isExact) return Math.min(SLOTS_UNKNOWN, expertCount);
  const { usableBytes, availableBytes } = facts;
  const fits = (bytes: number): number => slotsWithin(needs, bytes);
  if (fits(0.75 * usableBytes) >= expertCount) return expertCount;
  const most = fits(usableBytes);
  const isLimited = usableBytes < availableBytes;
  const wanted = isLimited ? most : Math.min(most, Math.max(SLOTS_UNKNOWN, fits(usableBytes / 2)));
  return Math.min(expertCount, RUNGS.findLast((rung) => rung <= wanted) ?? 1);
}

/**
 * Rows of a chunk: the longest whose activations take at most half of the room that the slots leave. Long
 * chunks read each expert less often and give every read more to compute.
 */
export function chooseChunk(
  needs: SlotNeeds,
  slots: number | "resident",
  facts: MemoryFacts,
): number {
  if (!facts.isExact) return CHUNK_USUAL;
  const kept = slots === "resident" ? needs.expertCount : slots;
  const most = kept < needs.expertCount ? CHUNKS[0] : CHUNK_USUAL;
  const roomBytes = facts.usableBytes - fixedBytes(needs) - kept * needs.slotBytes;
  const fits = (rows: number): boolean => chunkBytes(needs, rows) <= roomBytes / 2;
  return CHUNKS.find((rows) => rows <= most && fits(rows)) ?? CHUNK_LEAST;
}

/** Positions that a session gets where nobody says it: fewer where not even one slot would fit beside more. */
const CONTEXTS = [4096, 2048, 1024, 512] as const;

/** The longest usual context with which a slot fits. */
export function chooseContext(
  contextMax: number,
  needsOf: (contextRows: number) => SlotNeeds,
  facts: MemoryFacts,
): number {
  const rows = CONTEXTS.map((usual) => Math.min(usual, contextMax));
  const fits = (contextRows: number): boolean =>
    !facts.isExact || slotsWithin(needsOf(contextRows), facts.usableBytes) >= 1;
  return rows.find(fits) ?? rows.at(-1)!;
}

function slotsWithin(needs: SlotNeeds, bytes: number): number {
  return Math.floor((bytes - fixedBytes(needs)) / Math.max(1, needs.slotBytes));
}

function fixedBytes(needs: SlotNeeds): number {
  const { commonBytes, kvBytes, hasText, chunkRows = CHUNK_LEAST } = needs;
  const textBytes = hasText ? TEXT_BYTES : 0;
  return commonBytes + kvBytes + PROGRAM_BYTES + textBytes + chunkBytes(needs, chunkRows);
}

/** What a chunk takes beyond the smallest one. */
function chunkBytes({ rowBytes }: SlotNeeds, rows: number): number {
  return rowBytes * Math.max(0, rows - CHUNK_LEAST);
}

/** Room that is left free for what grows: below it the cache shrinks. */
const ROOM_BYTES = 32e6;
/** Of the common weights, what may be pushed out and read again between two looks. */
const REFAULT_SHARE = 1 / 16;
const LOOK_MS = 250;

/** What the guard looks at; replaced by tests. */
export interface Gauges {
  readonly facts: () => MemoryFacts;
  readonly refaultedBytes: () => number;
  readonly now: () => number;
}

const SYSTEM: Gauges = { facts: memoryFacts, refaultedBytes, now: () => performance.now() };

export class MemoryGuard {
  readonly #store: Pick<ExpertStore, "slots" | "resize">;
  readonly #needs: Pick<SlotNeeds, "commonBytes" | "slotBytes">;
  readonly #gauges: Gauges;
  #lookedAt = -Infinity;
  #refaulted: number;

  constructor(
    store: Pick<ExpertStore, "slots" | "resize">,
    needs: Pick<SlotNeeds, "commonBytes" | "slotBytes">,
    gauges: Gauges = SYSTEM,
  ) {
    this.#store = store;
    this.#needs = needs;
    this.#gauges = gauges;
    this.#refaulted = gauges.refaultedBytes();
  }

  /**
   * Looks whether memory is scarce, a few times a second at most, and takes slots away if it is; says so in
   * one sentence. To be called where no work is under way.
   */
  look(): string | undefined {
    const { slots } = this.#store;
    const now = this.#gauges.now();
    if (slots === "resident" || slots <= 1 || now - this.#lookedAt < LOOK_MS) return undefined;
    this.#lookedAt = now;
    const missingBytes = this.#missingBytes();
    if (missingBytes <= 0) return undefined;
    const left = Math.max(1, slots - Math.ceil(missingBytes / this.#needs.slotBytes));
    this.#store.resize(left);
    const freed = formatBytes((slots - left) * this.#needs.slotBytes);
    return `memory is scarce: ${left} expert slots of ${slots} are kept in each layer (${freed} given back)`;
  }

  #missingBytes(): number {
    const { facts, refaultedBytes: refaulted } = this.#gauges;
    const { commonBytes, slotBytes } = this.#needs;
    const { isExact, usableBytes } = facts();
    if (!isExact) return 0;
    const total = refaulted();
    const again = total - this.#refaulted;
    this.#refaulted = total;
    // Usable counts the mapped weights, which can be dropped, but would be read again at once.
    const shortBytes = ROOM_BYTES + commonBytes - usableBytes;
    // Where nothing limits this process alone, other programs' refaults count too: with room to spare they are theirs.
    const isTight = shortBytes + commonBytes > 0;
    const isPushedOut = isTight && again > REFAULT_SHARE * commonBytes;
    return isPushedOut ? Math.max(slotBytes, shortBytes) : shortBytes;
  }
}
