/** What a family states for its synthetic package: dimensions, names, and values that keep it well conditioned. */
import type { AnyFamily } from "../../src/families/index.ts";
import type { Family } from "../../src/families/family.ts";
import type { JsonValue } from "../../src/format/json.ts";
import type { Projection } from "../../src/format/layout.ts";
import type { Arch } from "../../src/format/manifest.ts";
import type { Place } from "../weights.ts";

export const GROUP = 64;

export interface Synthetic<Config> {
  readonly family: Family<Config> & AnyFamily;
  /** Of the released model. */
  readonly arch: Arch;
  /** A number of layers is a multiple of it. */
  readonly layerStep: number;
  readonly configOf: (layerCount: number) => JsonValue;
  readonly expertName: (layer: number, part: Projection) => string;
  /** How the names of routers end. */
  readonly router: string;
  /** What the forward pass multiplies embeddings with. */
  readonly embeddingMultiplier: number;
  /** Factor of a random matrix, whose outputs are about as large as its inputs without it. */
  readonly scaleOf: (name: string) => number;
  /** The value of a tensor that is not quantized. */
  readonly plainValue: (place: Place) => number;
}

/** Declares one; the configuration's type stays within. */
export function defineSynthetic<Config>(given: Synthetic<Config>): Synthetic<Config> {
  return given;
}

/** The entries of a quantization block for modules of eight bits. */
export const routerBits = (modules: readonly string[]): Record<string, JsonValue> =>
  Object.fromEntries(modules.map((module) => [module, { bits: 8, group_size: GROUP }]));
