import { z } from "zod";
import { MferenceError } from "../util/errors.ts";
import { checkJson, parseJson, sizeSchema, type JsonContext, type JsonValue } from "./json.ts";
import { isSha256 } from "./digest.ts";
import {
  checkPackagePaths,
  LAYOUT_FILE,
  layerFile,
  WEIGHTS_FILE,
  EXPERTS_FOLDER,
} from "./paths.ts";
import { PAGE_BYTES } from "./resident.ts";

/**
 * `manifest.json`, the root of a package: identity, architecture, quantization and the digest of every
 * other file. Checks what holds for every family; which architectures exist is the families' affair.
 */
const MAGIC = "GTURBO";
const VERSION_MAJOR = 1;
const KNOWN_FLAGS = new Set(["streamingPresent", "turboQuantKV", "aneSharedExpert"]);

/** Architecture fields that every family has. Extensions of a family pass through unread. */
export const archSchema = z.looseObject({
  family: z.string().optional(),
  hiddenSize: sizeSchema,
  ffnIntermediate: sizeSchema,
  moeIntermediateSize: sizeSchema,
  numHeads: sizeSchema,
  numKVHeads: sizeSchema,
  numFullKVHeads: sizeSchema,
  headDim: sizeSchema,
  fullHeadDim: sizeSchema,
  vocabSize: sizeSchema,
  slidingWindow: sizeSchema,
  finalLogitSoftcap: z.number().nonnegative(),
  ropeTheta: z.number().nonnegative(),
  fullRopeTheta: z.number().nonnegative(),
  partialRotaryFactor: z.number().nonnegative(),
  numLayers: sizeSchema,
  numExperts: sizeSchema,
  topKExperts: sizeSchema,
  tieWordEmbeddings: z.boolean(),
  attentionKEqV: z.boolean(),
  hiddenActivation: z.string(),
  fullAttentionLayerMask: z.array(z.int()),
});
export type Arch = z.output<typeof archSchema>;

const slotSchema = z.object({
  weightBits: z.int().nonnegative(),
  scheme: z.string(),
  scaleType: z.string(),
  biasType: z.string(),
  groupSize: z.int().nonnegative(),
});
/** How one kind of matrices is quantized. */
export type QuantSlot = z.output<typeof slotSchema>;

export const QUANT_SLOTS = [
  "embedding",
  "attention",
  "router",
  "sharedExpert",
  "routedExpert",
] as const;
export type QuantSlotName = (typeof QUANT_SLOTS)[number];
export type QuantSlots = Readonly<Record<QuantSlotName, QuantSlot>>;

const fileSchema = z.object({
  size: sizeSchema,
  sha256: z.string().refine(isSha256, "expected 64 hexadecimal digits"),
});
/** Size and digest of one file. */
export type FileRecord = z.output<typeof fileSchema>;
export const filesSchema = z.record(z.string(), fileSchema);

const preambleSchema = z.object({
  magic: z.string(),
  versionMajor: z.int(),
  versionMinor: sizeSchema,
  flags: z.record(z.string(), z.boolean()),
});
const manifestSchema = preambleSchema.extend({
  modelID: z.string(),
  sourceSnapshotHash: z.string().optional(),
  arch: archSchema,
  quant: z
    .strictObject({
      embedding: slotSchema,
      attention: slotSchema,
      router: slotSchema,
      sharedExpert: slotSchema,
      routedExpert: slotSchema,
    })
    .optional(),
  flashHead: z.unknown().optional(),
  files: filesSchema,
  expertsPerLayer: sizeSchema,
  numLayers: sizeSchema,
  expertStride: sizeSchema,
  bitWidthOverridesHonored: sizeSchema.optional(),
});
export type Manifest = z.output<typeof manifestSchema>;

/** Everything the installer decides about a manifest; the constants are added here. */
export type ManifestContent = Omit<
  Manifest,
  "magic" | "versionMajor" | "versionMinor" | "flags" | "quant"
> & { readonly quant: QuantSlots };

/** The bytes of a manifest. */
export function encodeManifest(content: ManifestContent): Uint8Array {
  const { modelID, ...rest } = content;
  const files = Object.fromEntries(
    Object.entries(content.files).toSorted(([left], [right]) => (left < right ? -1 : 1)),
  );
  const manifest = {
    magic: MAGIC,
    versionMajor: VERSION_MAJOR,
    versionMinor: 0,
    flags: { streamingPresent: true, turboQuantKV: false, aneSharedExpert: false },
    modelID,
    ...rest,
    files,
  };
  return new TextEncoder().encode(JSON.stringify(manifest, null, 2));
}

/**
 * Parses a manifest: syntax, types, magic, version and flags, in that order. Architecture and
 * structure are checked by the family and by `checkManifestStructure`.
 *
 * @throws MferenceError "format.manifest"
 */
export function parseManifest(bytes: Uint8Array, what: string): Manifest {
  const context: JsonContext = { code: "format.manifest", what };
  const json = parseJson(bytes, context);
  checkPreamble(json, context);
  return checkJson(json, manifestSchema, context);
}

function checkPreamble(json: JsonValue, context: JsonContext): void {
  const { magic, versionMajor, flags } = checkJson(json, preambleSchema, context);
  if (magic !== MAGIC) fail(`the magic is "${magic}"; this is not a .gturbo package`);
  if (versionMajor !== VERSION_MAJOR) {
    fail(`the format version is ${versionMajor}; this program reads version ${VERSION_MAJOR}.x`);
  }
  const unknown = Object.keys(flags).find((flag) => !KNOWN_FLAGS.has(flag));
  if (unknown !== undefined) fail(`the flag "${unknown}" is unknown; a newer program wrote it`);
  if (flags["turboQuantKV"] === true) {
    fail("it asks for the removed TurboQuant KV option; install the model again");
  }
}

/**
 * Checks the parts of a manifest against each other: stride, paths, counts, needed files.
 *
 * @throws MferenceError "format.manifest" or "format.path"
 */
export function checkManifestStructure(manifest: Manifest): void {
  const { arch } = manifest;
  if (manifest.expertStride % PAGE_BYTES !== 0) {
    fail(`expertStride ${manifest.expertStride} is not a multiple of ${PAGE_BYTES}`);
  }
  checkPackagePaths(Object.keys(manifest.files));
  equal("arch.numLayers", arch.numLayers, manifest.numLayers);
  equal("arch.numExperts", arch.numExperts, manifest.expertsPerLayer);
  equal(
    "the length of arch.fullAttentionLayerMask",
    arch.fullAttentionLayerMask.length,
    manifest.numLayers,
  );
  if (arch.topKExperts > arch.numExperts) {
    fail(`arch.topKExperts is ${arch.topKExperts}, more than the ${arch.numExperts} experts`);
  }
  if (manifest.expertsPerLayer > 0 && manifest.expertStride === 0) fail("expertStride is 0");
  for (const path of [WEIGHTS_FILE, LAYOUT_FILE]) {
    if (manifest.files[path] === undefined) fail(`files has no entry ${path}`);
  }
  for (let layer = denseLayerCount(manifest); layer < manifest.numLayers; layer += 1) {
    if (layerRecordPath(manifest, layer) === undefined)
      fail(`files has no entry ${layerFile(layer)}`);
  }
}

/** Layers at the start without routed experts. */
export function denseLayerCount(manifest: Manifest): number {
  if (manifest.expertsPerLayer === 0) return manifest.numLayers;
  const declared = manifest.arch["numDenseLayers"];
  return typeof declared === "number" && Number.isInteger(declared) && declared > 0 ? declared : 0;
}

/** The path under which the manifest lists a layer file: two digits, or none padded. */
function layerRecordPath(manifest: Manifest, layer: number): string | undefined {
  const candidates = [layerFile(layer), `${EXPERTS_FOLDER}/layer_${layer}.bin`];
  return candidates.find((path) => manifest.files[path] !== undefined);
}

/**
 * Compares an architecture with the one expected, field by field in the order of the expected one.
 *
 * @throws MferenceError "format.manifest" naming the first field that differs
 */
export function checkArch(found: Arch, expected: Arch, source: string): void {
  for (const [field, value] of Object.entries(expected)) {
    const other = found[field];
    if (JSON.stringify(other) === JSON.stringify(value)) continue;
    fail(
      `architecture mismatch: arch.${field} is ${JSON.stringify(other)}; ${source} says ${JSON.stringify(value)}`,
    );
  }
}

/** Widths that a family accepts per slot; everything else of a slot is affine, BF16, groups of 64. */
export type QuantWidths = Readonly<Record<QuantSlotName, readonly number[]>>;

/**
 * Checks the five quantization slots.
 *
 * @throws MferenceError "format.manifest"
 */
export function checkQuantSlots(
  manifest: Pick<Manifest, "quant">,
  widths: QuantWidths,
  fixed: Partial<Record<QuantSlotName, QuantSlot>> = {},
): void {
  const { quant } = manifest;
  if (quant === undefined) return fail("manifest.quant is required");
  for (const name of QUANT_SLOTS) {
    const slot = quant[name];
    const only = fixed[name];
    if (only !== undefined) {
      if (slotText(slot) === slotText(only)) continue;
      fail(`quant.${name} is ${slotText(slot)}; expected ${slotText(only)}`);
    }
    const isAffine =
      slot.scheme.toLowerCase() === "affine" &&
      slot.scaleType.toLowerCase() === "bf16" &&
      slot.biasType.toLowerCase() === "bf16" &&
      slot.groupSize === 64;
    if (isAffine && widths[name].includes(slot.weightBits)) continue;
    fail(
      `quant.${name} is an unsupported quantization: ${slot.weightBits} bits, ${slot.scheme}, ${slot.scaleType}/${slot.biasType}, group ${slot.groupSize}; expected ${widths[name].join(" or ")} bits, affine, BF16/BF16, group 64`,
    );
  }
}

function slotText({ weightBits, scheme, scaleType, biasType, groupSize }: QuantSlot): string {
  const text = `${weightBits} bits, ${scheme}, ${scaleType}/${biasType}, group ${groupSize}`;
  return text.toLowerCase();
}

function equal(what: string, found: number, expected: number): void {
  if (found !== expected) fail(`${what} is ${found}, but the manifest says ${expected}`);
}

function fail(problem: string): never {
  throw new MferenceError("format.manifest", `manifest.json: ${problem}`);
}
