import type { JsonValue } from "../format/json.ts";
import type { Projection } from "../format/layout.ts";
import type { Arch, QuantSlotName, QuantWidths } from "../format/manifest.ts";

/**
 * What one model family must provide. Everything that knows a family's name lives in its folder; the
 * rest of the program reads these properties. This part serves installing and loading.
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
  readonly tensors: FamilyTensors<Config>;
  /** The architecture fields of a manifest, in their order. */
  readonly archOf: (config: Config) => Arch;
  /** Architectures of released checkpoints; a manifest with the same size must equal one wholly. */
  readonly baselines: readonly Arch[];
  /** Bits per value that each quantization slot of a manifest may have. */
  readonly quantWidths: QuantWidths;
}

/** A checkpoint that the program knows by digest. */
export interface CheckpointPin {
  /** Name of the package on the command line. */
  readonly name: string;
  /** `modelID` in the manifest. */
  readonly modelId: string;
  /** SHA-256 of `model.safetensors.index.json`, or of a single `model.safetensors`. */
  readonly sourceSha256: string;
  /** Absent for a checkpoint that is not downloaded. */
  readonly remote?: {
    readonly repository: string;
    readonly revision: string;
    readonly downloadBytes: number;
    readonly installedBytes: number;
    readonly reserveBytes: number;
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
