/**
 * One loaded model: a package checked and bound to a device, with the memory that a run needs, sized by
 * the caller's options. Owns everything that `close` frees. Knows no prompt and no text.
 */
import { closeSync } from "node:fs";
import { ExpertPipeline } from "../experts/pipeline.ts";
import { slotCountFor } from "../experts/plan.ts";
import { type ExpertFile, ExpertStore } from "../experts/store.ts";
import type { ReadAt } from "../experts/reader.ts";
import type { ForwardPass, ModelShape, RunnableFamily } from "../families/family.ts";
import { packageRulesOf, runnableFamily } from "../families/index.ts";
import { checkUnchanged, checkUntouched, openRegular } from "../format/files.ts";
import type { SubTensors } from "../format/layout.ts";
import {
  type CheckedFile,
  openLayer,
  openPackage,
  type Package,
  type Policy,
} from "../format/package.ts";
import { KvCache } from "../kv/cache.ts";
import { kvBytes } from "../kv/plan.ts";
import { Device } from "../native/device.ts";
import { Ops, type Precision, PRECISIONS } from "../ops/ops.ts";
import type { ExpertArrays } from "../ops/routed.ts";
import { Stream } from "../ops/stream.ts";
import { Weights } from "../ops/weights.ts";
import { MferenceError } from "../util/errors.ts";
import { memoryFacts } from "../util/limits.ts";
import { chooseChunk, chooseContext, chooseSlots, MemoryGuard, type SlotNeeds } from "./memory.ts";

/** Positions of a session when nothing else is asked for. */
export const CONTEXT_DEFAULT = 4096;

export interface ModelOptions {
  /** Folder of the package. */
  readonly directory: string;
  /** Path of the device library. */
  readonly library: string;
  readonly policy?: Policy;
  readonly precision?: Precision["name"];
  /** Slots of each layer (more than the experts is clamped), or all experts mapped; absent: `chooseSlots`. */
  readonly slots?: number | "resident";
  readonly contextRows?: number;
  /** Most rows of a prompt computed at once; absent: `chooseChunk`. */
  readonly chunkRows?: number;
  /** Rows of logits kept at once; more than 1 for tests. */
  readonly logitRows?: number;
  readonly threads?: number;
  readonly simd?: string;
  /**
   * Whether experts are read past the system's cache; absent: where the package and its slots would not
   * both fit into the memory that this process may use, so that the cache would be churned for nothing.
   */
  readonly directReads?: boolean;
  /** Replaces the positioned read of experts: for tests of failures. */
  readonly read?: ReadAt;
}

/** Bytes that a loaded model holds, by purpose. */
export interface ModelMemory {
  /** Mapped, not allocated. */
  readonly commonBytes: number;
  readonly kvBytes: number;
  readonly slotBytes: number;
  readonly scratchBytes: number;
}

export interface Model {
  readonly package: Package;
  readonly family: RunnableFamily<unknown>;
  readonly shape: ModelShape;
  readonly precision: Precision;
  readonly device: Device;
  readonly stream: Stream;
  readonly ops: Ops;
  readonly kv: KvCache;
  readonly store: ExpertStore;
  readonly experts: ExpertPipeline;
  readonly forward: ForwardPass;
  readonly chunkRows: number;
  readonly slots: number | "resident";
  readonly memory: () => ModelMemory;
  /**
   * To be called before each request.
   *
   * @throws MferenceError "format.changed" when a file was replaced, removed or written to since it was
   *   loaded
   */
  readonly checkFiles: () => void;
  /**
   * To be called before each chunk: a mapped file that was cut in place would end the process at the
   * first touch of a page that is gone. Between this check and that touch it still would.
   *
   * @throws MferenceError "format.changed"
   */
  readonly checkMapped: () => void;
  /**
   * Gives slots back where memory is scarce, and says so in one sentence. To be called between tokens, where
   * no work is under way.
   */
  readonly relieve: () => string | undefined;
  readonly close: () => void;
}

function arraysOf(parts: SubTensors): ExpertArrays {
  const place = (name: "gate" | "up" | "down") => ({
    codes: parts[name].offset,
    scales: parts[`${name}_scales`].offset,
    biases: parts[`${name}_biases`].offset,
  });
  const bits = { gate: parts.gate.bits ?? 0, down: parts.down.bits ?? 0 };
  if (parts.up.bits !== bits.gate || ![bits.gate, bits.down].every((b) => b === 4 || b === 8)) {
    throw new MferenceError(
      "model.family",
      `experts of ${bits.gate}, ${parts.up.bits} and ${bits.down} bits cannot run; expected 4 or 8, gate and up alike`,
    );
  }
  return { gate: place("gate"), up: place("up"), down: place("down"), bits };
}

function expertFiles(model: Package): Map<number, ExpertFile> {
  const files = new Map<number, ExpertFile>();
  for (const layer of model.layers) {
    if (layer.subTensors === undefined) continue;
    files.set(layer.index, {
      layer: layer.index,
      path: layer.path,
      strideBytes: layer.strideBytes,
      offsets: layer.expertOffsets,
      open: () => openLayer(model, layer.index),
    });
  }
  return files;
}

function expertArrays(model: Package): Map<number, ExpertArrays> {
  const entries = model.layers.flatMap(({ index, subTensors }) =>
    subTensors === undefined ? [] : [[index, arraysOf(subTensors)] as const],
  );
  return new Map(entries);
}

/** Checks the sizes that a caller asked for against the model; chooses the others. */
function resolveSizes(options: ModelOptions, shape: ModelShape, opened: Package) {
  const facts = memoryFacts();
  const { contextMax } = shape;
  const needsOf = slotNeeds(options, shape, opened);
  const contextRows = options.contextRows ?? chooseContext(contextMax, needsOf, facts);
  if (!Number.isInteger(contextRows) || contextRows < 1 || contextRows > contextMax) {
    throw new MferenceError(
      "engine.options",
      `a context of ${contextRows} tokens is not possible: expected 1 to ${contextMax}, what the model was made for`,
    );
  }
  const needs = needsOf(contextRows);
  const { slots = chooseSlots(needs, facts), logitRows = 1 } = options;
  const chunkRows = Math.min(options.chunkRows ?? chooseChunk(needs, slots, facts), contextRows);
  if (!Number.isInteger(chunkRows) || chunkRows < 1) {
    throw new MferenceError("engine.options", `a chunk of ${chunkRows} rows: expected 1 or more`);
  }
  return {
    contextRows,
    chunkRows,
    slots: slots === "resident" ? slots : slotCountFor(slots, shape.expertCount),
    logitRows,
    needs,
  };
}

/** Floats of a row beside those of its experts, in hidden widths: more than any family's layer graph has. */
const ROW_WIDTHS = 32;

/** Bytes of the activations of one row of a chunk, generously. */
export function rowBytesOf(
  shape: Pick<ModelShape, "hiddenSize" | "expertWidth" | "expertsPerToken">,
): number {
  const { hiddenSize: D, expertWidth: F, expertsPerToken: K } = shape;
  return 4 * (K * (D + F) + ROW_WIDTHS * D);
}

/** What the model needs in memory at a context. */
function slotNeeds(options: ModelOptions, shape: ModelShape, opened: Package) {
  const elementBytes = PRECISIONS[options.precision ?? "fast"].kvDtype === "f16" ? 2 : 4;
  return (contextRows: number): SlotNeeds => {
    const { chunkRows } = options;
    const extent = { contextRows, chunkRows: Math.max(1, chunkRows ?? contextRows) };
    return {
      commonBytes: opened.weights.sizeBytes,
      kvBytes: kvBytes(shape.kvLayers, extent, elementBytes),
      slotBytes: opened.layers.reduce((sum, { strideBytes }) => sum + strideBytes, 0),
      expertCount: shape.expertCount,
      hasText: opened.text !== undefined,
      rowBytes: rowBytesOf(shape),
      chunkRows,
    };
  };
}

/** The rule of `ModelOptions.directReads`; in bytes. */
export function wantsDirectReads(
  model: Pick<Package, "weights" | "layers">,
  slots: number | "resident",
  usableBytes: number,
): boolean {
  if (slots === "resident") return false;
  let wantedBytes = model.weights.sizeBytes;
  for (const { sizeBytes, strideBytes, expertOffsets } of model.layers) {
    wantedBytes += sizeBytes + Math.min(slots, expertOffsets.length) * strideBytes;
  }
  return wantedBytes > usableBytes;
}

function openStore(
  device: Device,
  opened: Package,
  slots: number | "resident",
  { directReads, read }: ModelOptions,
): ExpertStore {
  return new ExpertStore({
    device,
    files: expertFiles(opened),
    slots,
    isDirect: directReads ?? wantsDirectReads(opened, slots, memoryFacts().usableBytes),
    ...(read === undefined ? {} : { read }),
  });
}

/** Holds a mapped file open, to notice when it is replaced, written to or cut. */
function watchFile({ path, identity }: CheckedFile) {
  const file = openRegular(path, { missing: "install.missing", unsafe: "format.path" });
  return {
    check: (): void => checkUntouched(file, identity),
    checkMapped: (): void => checkUnchanged(file.descriptor, identity, path),
    close: (): void => closeSync(file.descriptor),
  };
}

/** What a package's family makes of it. */
function readFamily(opened: Package) {
  const family = runnableFamily(opened.manifest.arch.family);
  const config = family.parseConfig(opened.config);
  return { family, config, shape: family.shapeOf(config), arrays: expertArrays(opened) };
}

function memoryOf(
  parts: Pick<Model, "kv" | "store" | "forward" | "experts"> & { readonly weights: Weights },
): ModelMemory {
  const { weights, kv, store, forward, experts } = parts;
  return {
    commonBytes: weights.byteLength,
    kvBytes: kv.byteLength,
    slotBytes: store.slabBytes,
    scratchBytes: forward.scratchBytes + experts.scratchBytes,
  };
}

/**
 * Loads a package onto a device.
 *
 * @throws MferenceError of the groups "format", "install", "model", "native", "engine"
 */
export async function loadModel(options: ModelOptions): Promise<Model> {
  const opened = await openPackage(options.directory, {
    policy: options.policy ?? "full-sha256",
    rulesOf: packageRulesOf,
  });
  const { family, config, shape, arrays } = readFamily(opened);
  const sizes = resolveSizes(options, shape, opened);
  const closers: (() => void)[] = [];
  const own = <T extends { close: () => void }>(part: T): T => {
    closers.unshift(() => part.close());
    return part;
  };
  const close = (): void => {
    for (const closer of closers.splice(0)) closer();
  };
  try {
    const device = own(new Device(options));
    const stream = own(new Stream(device));
    const precision = PRECISIONS[options.precision ?? "fast"];
    const ops = new Ops(stream, precision);
    const file = { path: opened.weights.path, entries: opened.resident };
    const weights = own(new Weights(device, file));
    const watch = own(watchFile(opened.weights));
    // What was mapped by its path must be what was verified.
    watch.check();
    const { contextRows, chunkRows, slots } = sizes;
    const dtype = precision.kvDtype;
    const { kvLayers: layers, recurrentLayers: recurrent } = shape;
    const kv = own(new KvCache(device, { layers, recurrent, contextRows, chunkRows, dtype }));
    const store = own(openStore(device, opened, slots, options));
    const guard = new MemoryGuard(store, sizes.needs);
    const { hiddenSize, expertWidth, expertCount, expertsPerToken: perToken, activation } = shape;
    const routed = { hiddenSize, expertWidth, expertCount, perToken, activation, arrays };
    const experts = own(new ExpertPipeline({ ops, store, shape: routed, chunkRows }));
    const limits = { chunkRows, logitRows: sizes.logitRows };
    const forward = own(family.createForward({ ops, weights, kv, experts, limits }, config));
    // Closed first: nothing may run while what it uses is freed.
    own({ close: () => stream.abandon() });
    return {
      package: opened,
      family,
      shape,
      precision,
      device,
      stream,
      ops,
      kv,
      store,
      experts,
      forward,
      chunkRows,
      slots,
      memory: () => memoryOf({ weights, kv, store, forward, experts }),
      checkFiles: () => {
        watch.check();
        store.check();
      },
      checkMapped: () => {
        watch.checkMapped();
        store.checkMapped();
      },
      relieve: () => guard.look(),
      close,
    };
  } catch (error) {
    close();
    throw error;
  }
}
