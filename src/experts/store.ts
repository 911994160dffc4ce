/**
 * Where the routed experts of each layer lie in memory. In slot mode a layer has one slab of slots that
 * reads fill; in resident mode its file is mapped and every expert is always there. Layers open at their
 * first touch. Knows bytes and slots; which expert deserves a slot is plan.ts's business.
 *
 *     slab of a layer (2 MiB aligned)
 *     | slot 0: one expert, strideBytes | slot 1 | ... | slot n - 1 |
 */
import { closeSync } from "node:fs";
import { checkUnchanged, checkUntouched, identityOf, type OpenFile } from "../format/files.ts";
import type { Buffer, Device, Memory, SharedBuffer } from "../native/device.ts";
import { MferenceError } from "../util/errors.ts";
import { createCache, type ExpertCache, resizeCache } from "./plan.ts";
import {
  DIRECT_BYTES,
  openDirect,
  type ReadAt,
  readAt,
  type ReadRequest,
  readWhole,
} from "./reader.ts";

/** One array of an expert: where it begins in the slot. */
export interface ExpertArray {
  readonly offset: number;
  readonly bits: number;
}

/** The experts of one layer as the package has them. */
export interface ExpertFile {
  readonly layer: number;
  readonly path: string;
  readonly strideBytes: number;
  /** Byte offset in the file of each expert, by id. */
  readonly offsets: readonly number[];
  /** Opens the file, checked as the policy wants it; called once, at the layer's first touch. */
  readonly open: () => Promise<OpenFile>;
}

export interface StoreOptions {
  readonly device: Device;
  readonly files: ReadonlyMap<number, ExpertFile>;
  /** Slots of each layer, or every expert mapped. */
  readonly slots: number | "resident";
  /** Whether reads go past the system's cache where they can; absent: no. */
  readonly isDirect?: boolean;
  readonly read?: ReadAt;
}

/** An opened layer. */
export interface OpenLayer {
  /** What kernels bind: slots of `slotBytes`. */
  readonly slab: Buffer;
  readonly slotCount: number;
  readonly slotBytes: number;
  /** `[E]` u32: the slot of each expert, where kernels look it up; no slot's number for one that has none. */
  readonly table: SharedBuffer;
  /** Which expert is in which slot; absent where all are resident. */
  readonly cache: ExpertCache | undefined;
  /** Fills a slot with an expert. */
  readonly fetch: (expert: number, slot: number) => Promise<void>;
  /** Refuses to go on when the file was replaced, removed or written to since it was opened. */
  readonly check: () => void;
  /** The same for a mapped file that was written to or cut: cheap enough for every token. */
  readonly checkMapped: () => void;
  /** The same layer with another number of slots, which keeps what it can; absent where all are resident. */
  readonly resize?: (slotCount: number) => OpenLayer;
  /** Frees the slab. */
  readonly close: () => void;
}

/** An error must not leave a file open or memory allocated. */
function undoing<Result>(undo: () => void, work: () => Result): Result {
  try {
    return work();
  } catch (error) {
    undo();
    throw error;
  }
}

const entriesOf = ({ bytes }: SharedBuffer): Int32Array =>
  new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);

type MemorySlot = readonly [memory: Memory, slot: number];

export class ExpertStore {
  readonly #options: StoreOptions;
  readonly #layers = new Map<number, OpenLayer>();
  /** Of the opened layers' files. */
  readonly #closers: (() => void)[] = [];
  #slots: StoreOptions["slots"];
  #bytesRead = 0;
  #reads = 0;

  constructor(options: StoreOptions) {
    this.#options = options;
    this.#slots = options.slots;
  }

  /** Slots of each layer, as far as it has so many experts. */
  get slots(): StoreOptions["slots"] {
    return this.#slots;
  }

  get bytesRead(): number {
    return this.#bytesRead;
  }

  get reads(): number {
    return this.#reads;
  }

  /** Bytes of the slabs allocated so far. */
  get slabBytes(): number {
    if (this.#slots === "resident") return 0;
    return [...this.#layers.values()].reduce((sum, layer) => sum + layer.slab.byteLength, 0);
  }

  /**
   * Opens a layer at its first touch.
   *
   * @throws MferenceError "install.hash", "install.size", "format.changed" when its file is not intact
   */
  async open(layer: number): Promise<OpenLayer> {
    const known = this.#layers.get(layer);
    if (known !== undefined) return known;
    const file = this.#options.files.get(layer);
    if (file === undefined) {
      throw new MferenceError("format.layout", `layer ${layer} has no routed experts`);
    }
    const source = await file.open();
    const close = (): void => closeSync(source.descriptor);
    const { device, slots } = this.#options;
    const table = undoing(close, () => device.createBuffer(4 * file.offsets.length));
    const closeAll = (): void => {
      device.destroyBuffer(table);
      close();
    };
    const opened = undoing(closeAll, () =>
      slots === "resident" ? this.#map(file, source, table) : this.#openSlots(file, source, table),
    );
    this.#closers.push(closeAll);
    this.#layers.set(layer, opened);
    return opened;
  }

  /** A layer that has been touched before. */
  opened(layer: number): OpenLayer | undefined {
    return this.#layers.get(layer);
  }

  /**
   * Changes the number of slots of every layer; of each, the experts that would leave last stay. No work
   * that uses the slots may be under way, and no read.
   */
  resize(slots: number): void {
    this.#slots = slots;
    for (const [layer, opened] of this.#layers) {
      if (opened.resize !== undefined) this.#layers.set(layer, opened.resize(slots));
    }
  }

  /**
   * Refuses to go on when a file of an opened layer was replaced, removed or written to.
   *
   * @throws MferenceError "format.changed"
   */
  check(): void {
    for (const layer of this.#layers.values()) layer.check();
  }

  /** The same for layers that are mapped, as far as a token may pay for it. */
  checkMapped(): void {
    if (this.#options.slots !== "resident") return;
    for (const layer of this.#layers.values()) layer.checkMapped();
  }

  close(): void {
    for (const layer of this.#layers.values()) layer.close();
    this.#layers.clear();
    for (const close of this.#closers.splice(0)) close();
  }

  #map(file: ExpertFile, source: OpenFile, table: SharedBuffer): OpenLayer {
    const memory = this.#options.device.mapFile(file.path);
    for (const expert of file.offsets.keys()) entriesOf(table)[expert] = expert;
    const identity = identityOf(source.descriptor);
    const opened = this.#bind(memory, {
      slotCount: file.offsets.length,
      slotBytes: file.strideBytes,
      table,
      cache: undefined,
      fetch: () => Promise.resolve(),
      check: () => checkUntouched(source, identity),
      checkMapped: () => checkUnchanged(source.descriptor, identity, file.path),
    });
    // What was mapped by its path must be what was verified.
    undoing(opened.close, opened.check);
    return opened;
  }

  #openSlots(file: ExpertFile, source: OpenFile, table: SharedBuffer): OpenLayer {
    const expertCount = file.offsets.length;
    const identity = identityOf(source.descriptor);
    const direct = this.#openDirect(file, source);
    const closeDirect = (): void => {
      if (direct !== undefined) closeSync(direct);
    };
    const { descriptor } = source;
    const withSlab = (cache: ExpertCache, memory: Memory): OpenLayer => {
      const opened = this.#bind(memory, {
        slotCount: cache.slotCount,
        slotBytes: file.strideBytes,
        table,
        cache,
        fetch: this.#fetcher(file, { descriptor, direct }, memory),
        check: () => checkUntouched(source, identity),
        checkMapped: () => {},
      });
      const resize = (slotCount: number): OpenLayer => {
        const { resized, moves } = resizeCache(cache, Math.min(slotCount, expertCount));
        const target = this.#allocate(file, resized.slotCount);
        for (const { from, to } of moves) this.#copySlot(file, [memory, from], [target, to]);
        const layer = withSlab(resized, target);
        opened.close();
        return layer;
      };
      return { ...opened, resize };
    };
    const opened = undoing(closeDirect, () => {
      const slotCount = Math.min(Number(this.#slots), expertCount);
      const cache = createCache({ slotCount, expertCount, table: entriesOf(table) });
      return withSlab(cache, this.#allocate(file, slotCount));
    });
    this.#closers.push(closeDirect);
    return opened;
  }

  #allocate({ strideBytes }: ExpertFile, slotCount: number): Memory {
    return this.#options.device.allocate(slotCount * strideBytes);
  }

  #copySlot({ strideBytes }: ExpertFile, from: MemorySlot, to: MemorySlot): void {
    const { device } = this.#options;
    const view = ([memory, slot]: MemorySlot): Uint8Array =>
      device.view(memory, slot * strideBytes, strideBytes);
    view(to).set(view(from));
  }

  /** Slots begin where direct reads may if the stride is right; the slab itself always does. */
  #openDirect(file: ExpertFile, source: OpenFile): number | undefined {
    const isAligned = [file.strideBytes, ...file.offsets].every((at) => at % DIRECT_BYTES === 0);
    return this.#options.isDirect === true && isAligned ? openDirect(source.descriptor) : undefined;
  }

  /** An opened layer over a memory, which it owns from here on. */
  #bind(memory: Memory, layer: Omit<OpenLayer, "slab" | "close">): OpenLayer {
    const { device } = this.#options;
    const slab = undoing(
      () => device.release(memory),
      () => device.bindMemory(memory),
    );
    const close = (): void => {
      device.destroyBuffer(slab);
      device.release(memory);
    };
    return { ...layer, slab, close };
  }

  #fetcher(
    file: ExpertFile,
    source: Pick<ReadRequest, "descriptor" | "direct">,
    memory: Memory,
  ): OpenLayer["fetch"] {
    const { device, read = readAt } = this.#options;
    const views = new Map<number, Uint8Array<ArrayBuffer>>();
    return async (expert, slot) => {
      let target = views.get(slot);
      if (target === undefined) {
        target = device.view(memory, slot * file.strideBytes, file.strideBytes);
        views.set(slot, target);
      }
      const what = `expert ${expert} of layer ${file.layer} (${file.path})`;
      await readWhole({ ...source, target, position: file.offsets[expert]!, what }, read);
      this.#bytesRead += target.length;
      this.#reads += 1;
    };
  }
}
