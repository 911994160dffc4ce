import type { ExpertPipeline } from "../experts/pipeline.ts";
import type { Dtype } from "../format/dtype.ts";
import type { JsonValue } from "../format/json.ts";
import type { Projection } from "../format/layout.ts";
import type { Arch, QuantSlot, QuantSlotName, QuantWidths } from "../format/manifest.ts";
import type { Quantization } from "../format/quant.ts";
import type { KvCache } from "../kv/cache.ts";
import type { KvShape } from "../kv/plan.ts";
import type { RecurrentShape } from "../kv/recurrent.ts";
import type { Activation, Ops, Routes } from "../ops/ops.ts";
import type { Tensor } from "../ops/tensor.ts";
import type { Weights } from "../ops/weights.ts";
import type { ChatDialect } from "../text/dialect.ts";

/**
 * What one model family must provide. Everything that knows a family's name lives in its folder; the
 * rest of the program reads these properties.
 */
export interface Family<Config> {
  /** Name of the folder and on the command line. */
  readonly id: string;
  /** `arch.family` in manifests; undefined for the one family whose manifests carry no name. */
  readonly manifestName: string | undefined;
  /** Values of `model_type` in config.json. */
  readonly modelTypes: readonly string[];
  /** Checkpoints known by the digest of their index or single file. */
  readonly sources: readonly CheckpointPin[];
  /**
   * Parses and checks config.json; throws on a missing value and on any that the forward pass does not
   * implement.
   *
   * @throws MferenceError "format.config"
   */
  readonly parseConfig: (json: JsonValue) => Config;
  /** Reads the quantization block where it is not the common one. */
  readonly parseQuantization?: (json: JsonValue) => Quantization;
  readonly tensors: FamilyTensors<Config>;
  /** The architecture fields of a manifest, in their order. */
  readonly archOf: (config: Config) => Arch;
  /** Architectures of released checkpoints; a manifest with the same size must equal one wholly. */
  readonly baselines: readonly Arch[];
  /** Bits per value that each quantization slot of a manifest may have. */
  readonly quantWidths: QuantWidths;
  /** Slots that say the same in every manifest, because they are not quantized. */
  readonly quantSlots?: Partial<Record<QuantSlotName, QuantSlot>>;
  /** What a manifest says of the approximate head, if the configuration has one. */
  readonly flashHeadOf?: (config: Config) => JsonValue | undefined;
  /** Absent where checkpoints can be kept, but not run yet. */
  readonly chat?: ChatDialect;
  /** What the engine sizes its memory by. */
  readonly shapeOf?: (config: Config) => ModelShape;
  /** The forward pass over loaded parts. */
  readonly createForward?: (parts: ForwardParts, config: Config) => ForwardPass;
}

/** A family whose models can be run. */
export type RunnableFamily<Config> = Family<Config> &
  Required<Pick<Family<Config>, "chat" | "shapeOf" | "createForward">>;

/** A model as the engine sees it. */
export interface ModelShape {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  /** Positions the model was made for. */
  readonly contextMax: number;
  /** Keys and values of each layer; undefined for one that has none. */
  readonly kvLayers: readonly (KvShape | undefined)[];
  /** States of each layer; undefined for one that has none, absent where no layer has. */
  readonly recurrentLayers?: readonly (RecurrentShape | undefined)[];
  readonly expertWidth: number;
  readonly expertCount: number;
  readonly expertsPerToken: number;
  readonly activation: Activation;
  /** Bound of the final logits; 0 where they are not bounded. */
  readonly finalSoftcap: number;
  /** Ids that end an answer. */
  readonly stopIds: readonly number[];
  /** Id that begins a raw completion; undefined where the family has none. */
  readonly bosId: number | undefined;
}

/** What a forward pass is built from; its owner closes them. */
export interface ForwardParts {
  readonly ops: Ops;
  readonly weights: Weights;
  readonly kv: KvCache;
  readonly experts: ExpertPipeline;
  readonly limits: {
    /** Most tokens of one batch. */
    readonly chunkRows: number;
    /** Most rows whose logits are asked for at once. */
    readonly logitRows: number;
  };
}

/** Tokens of one call, at consecutive positions. */
export interface Batch {
  readonly ids: Uint32Array;
  /** Position of the first token: the cursor of the KV cache. */
  readonly position: number;
  /** Rows whose raw logits are left in `logits`: none, the last one (in row 0), or all. */
  readonly head: "none" | "last" | "all";
  readonly tap?: Tap | undefined;
}

/** Sees named stages of a forward pass, for tests. A tapped pass waits for the device at each stage. */
export interface Tap {
  tensor(stage: string, tensor: Tensor, T: number): void;
  /** Keys and values of the batch have been written. */
  cache(layer: number, rows: { readonly T: number; readonly position: number }): void;
  routes(layer: number, routes: Routes, T: number): void;
}

/** The layer graph over T tokens; prefill and decode are the same code. */
export interface ForwardPass {
  /** Raw logits (before any softcap) of the rows asked for. `[logitRows, V]` */
  readonly logits: Tensor;
  readonly scratchBytes: number;
  /**
   * Records the batch; its last operations are left in the open command list. Reads of the last layer may
   * be under way: `ExpertPipeline.settle` awaits them.
   */
  run(batch: Batch): Promise<void>;
  close(): void;
}

/** A checkpoint that the program knows by digest. */
export interface CheckpointPin {
  /** Name of the package on the command line. */
  readonly name: string;
  /** `modelID` in the manifest. */
  readonly modelId: string;
  /** SHA-256 of `model.safetensors.index.json`, or of a single `model.safetensors`. */
  readonly sourceSha256: string;
  /** SHA-256 of files of the package that are known beforehand, by path; the index says nothing of these. */
  readonly files?: Readonly<Record<string, string>>;
  /** Sampling where the user says nothing; absent: the program's own. */
  readonly sampling?: { readonly temperature: number };
  /** Absent for a checkpoint that is not downloaded. */
  readonly remote?: {
    readonly repository: string;
    readonly revision: string;
    readonly downloadBytes: number;
    readonly installedBytes: number;
    readonly reserveBytes: number;
    /** A sentence to be said before it is fetched. */
    readonly notice?: string;
  };
}

/** Where a checkpoint tensor goes. Companions of a matrix follow their weight. */
export type TensorRole =
  | {
      readonly kind: "resident";
      readonly group: number;
      readonly layer: number;
      readonly slot: number;
    }
  | { readonly kind: "expert"; readonly layer: number; readonly projection: Projection }
  | { readonly kind: "dropped" };

/** A tensor that must be in the common file. */
export interface ResidentSpec {
  readonly name: string;
  /** Logical. */
  readonly shape: readonly number[];
  /** Bits per value that are accepted for a quantized matrix; absent for plain tensors. */
  readonly bits?: readonly number[];
  /** The manifest slot that describes this matrix. */
  readonly slot?: QuantSlotName;
  /** Of a plain tensor; BF16 when absent. */
  readonly dtype?: Dtype;
}

/** Logical shapes of one expert's matrices, and the widths accepted. */
export interface ExpertSpec {
  readonly shapes: Readonly<Record<Projection, readonly number[]>>;
  readonly bits: readonly number[];
  /** Values that may share a scale; 64 when absent. */
  readonly groupSizes?: Partial<Record<Projection, readonly number[]>>;
}

export interface FamilyTensors<Config> {
  /** The role of a tensor by its name in the checkpoint; undefined for a name of another family. */
  readonly roleOf: (name: string, config: Config) => TensorRole | undefined;
  /** Whether ternary matrices come with a value for each row instead of scales and biases. */
  readonly hasRowAlpha?: boolean;
  /** Every tensor of the common file. */
  readonly resident: (config: Config) => readonly ResidentSpec[];
  /** The experts of a layer; undefined for a dense layer. */
  readonly experts: (config: Config, layer: number) => ExpertSpec | undefined;
}

/** Where the tensors of a family are, as most families name them. */
export interface RoleTable {
  /** Prefixes of what stays behind. */
  readonly dropped: readonly string[];
  /** Prefixes of the text model. */
  readonly text: readonly string[];
  /** Exact names that come first in the common file. */
  readonly embedding: readonly string[];
  readonly norm: string;
  readonly head: string;
  /** What comes before a layer's number. */
  readonly layers: string;
  /** What stands between a layer and a projection of its routed experts. */
  readonly experts: string;
  /** Names within a layer, in the order of the common file. */
  readonly order: readonly string[];
}

const GROUPS = { embedding: 0, layers: 1, other: 2, norm: 3, head: 4 } as const;
const LAYER_NAME = /^(0|[1-9][0-9]{0,3})\.(.+)$/;
const PROJECTION_NAME = /\.(gate|up|down)_proj\./;

/** The role of a tensor by such a table. */
export function tableRole(
  name: string,
  table: RoleTable,
  layerCount: number,
): TensorRole | undefined {
  if (table.dropped.some((prefix) => name.startsWith(prefix))) return { kind: "dropped" };
  if (!table.text.some((prefix) => name.startsWith(prefix))) return undefined;
  const place = (group: number, layer = 0, slot = 0): TensorRole => ({
    kind: "resident",
    group,
    layer,
    slot,
  });
  const first = table.embedding.indexOf(name);
  if (first >= 0) return place(GROUPS.embedding, 0, first);
  if (name === table.norm) return place(GROUPS.norm);
  if (name === table.head) return place(GROUPS.head);
  const match = name.startsWith(table.layers)
    ? LAYER_NAME.exec(name.slice(table.layers.length))
    : null;
  if (match === null) return place(GROUPS.other);
  const layer = Number(match[1]);
  if (layer >= layerCount) return undefined;
  const projection = PROJECTION_NAME.exec(name)?.[1] as Projection | undefined;
  if (name.includes(table.experts) && projection !== undefined) {
    return { kind: "expert", layer, projection };
  }
  const slot = table.order.indexOf(match[2] ?? "");
  return place(GROUPS.layers, layer, slot === -1 ? table.order.length : slot);
}

/** Declares a family that can be run. */
export function defineFamily<Config>(family: RunnableFamily<Config>): RunnableFamily<Config> {
  return family;
}

/** Declares a family whose checkpoints can be kept, but not run yet. */
export function defineKeptFamily<Config>(family: Family<Config>): Family<Config> {
  return family;
}
