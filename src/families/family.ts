import type { ExpertPipeline } from "../experts/pipeline.ts";
import type { JsonValue } from "../format/json.ts";
import type { Projection } from "../format/layout.ts";
import type { Arch, QuantSlotName, QuantWidths } from "../format/manifest.ts";
import type { Quantization } from "../format/quant.ts";
import type { KvCache } from "../kv/cache.ts";
import type { KvShape } from "../kv/plan.ts";
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
  readonly chat: ChatDialect;
  /** What the engine sizes its memory by. */
  readonly shapeOf: (config: Config) => ModelShape;
  /** The forward pass over loaded parts. */
  readonly createForward: (parts: ForwardParts, config: Config) => ForwardPass;
}

/** A model as the engine sees it. */
export interface ModelShape {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  /** Positions the model was made for. */
  readonly contextMax: number;
  /** Keys and values of each layer. */
  readonly kvLayers: readonly KvShape[];
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
  /** Records the batch; its last operations are left in the open command list. */
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
}

/** Logical shapes of one expert's matrices, and the widths accepted. */
export interface ExpertSpec {
  readonly shapes: Readonly<Record<Projection, readonly number[]>>;
  readonly bits: readonly number[];
}

export interface FamilyTensors<Config> {
  /** The role of a tensor by its name in the checkpoint; undefined for a name of another family. */
  readonly roleOf: (name: string, config: Config) => TensorRole | undefined;
  /** Every tensor of the common file. */
  readonly resident: (config: Config) => readonly ResidentSpec[];
  /** The experts of a layer; undefined for a dense layer. */
  readonly experts: (config: Config, layer: number) => ExpertSpec | undefined;
}

/** Declares a family. */
export function defineFamily<Config>(family: Family<Config>): Family<Config> {
  return family;
}
