import { z } from "zod";
import { MferenceError } from "../util/errors.ts";
import { checkJson, type JsonObject, type JsonValue } from "./json.ts";

/**
 * The `quantization` block of a checkpoint's config.json: which matrices have how many bits. The
 * encoding is affine, value = scale * code + bias with one BF16 pair per group of a row; code i of a
 * little-endian word sits in bits i*b ... i*b + b - 1. Declares and checks; never touches weights.
 */
export interface Quantization {
  readonly bits: number;
  readonly groupSize: number;
  /** By module path, without `.weight`. */
  readonly overrides: ReadonlyMap<string, QuantSpec>;
  /** Overrides that config.json holds, where it leaves some unsaid. */
  readonly declaredCount?: number;
}

/** How one matrix is quantized. */
export interface QuantSpec {
  readonly bits: number;
  readonly groupSize: number;
}

/** Widths for which a word holds a whole number of codes and a kernel may exist. */
const BITS = [2, 4, 8] as const;
const WORD_BITS = 32;

const overrideSchema = z.object({
  bits: z.int().optional(),
  group_size: z.int().optional(),
  mode: z.string().optional(),
});
const blockSchema = z.object({
  bits: z.int().default(4),
  group_size: z.int().default(64),
  mode: z.string().default("affine"),
});

/**
 * Parses `config.json`'s `quantization`; values that are no objects beside the three known keys are
 * notes of the converter and skipped.
 *
 * @throws MferenceError "format.config" when it is missing or holds a width or group not implemented
 */
export function parseQuantization(config: JsonValue, what: string): Quantization {
  const context = { code: "format.config", what } as const;
  const root = checkJson(config, z.record(z.string(), z.unknown()), context);
  const block = root["quantization"];
  if (block === undefined) {
    throw new MferenceError(
      "format.config",
      `${what} has no "quantization" block: the checkpoint is not quantized in MLX layout, and this program does not quantize`,
    );
  }
  const base = checkJson(block, blockSchema, { ...context, what: `${what}: quantization` });
  if (base.mode !== "affine") {
    throw new MferenceError(
      "format.config",
      `${what}: quantization.mode is "${base.mode}"; expected "affine"`,
    );
  }
  const baseSpec = checkedSpec(
    { bits: base.bits, groupSize: base.group_size },
    `${what}: quantization`,
  );
  const overrides = new Map<string, QuantSpec>();
  for (const [module, value] of Object.entries(block as JsonObject)) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) continue;
    const where = `${what}: quantization of ${module}`;
    overrides.set(module, parseOverride(value, baseSpec, where));
  }
  return { ...baseSpec, overrides };
}

function parseOverride(value: JsonObject, base: QuantSpec, where: string): QuantSpec {
  const override = checkJson(value, overrideSchema, { code: "format.config", what: where });
  if (override.mode !== undefined && override.mode !== "affine") {
    throw new MferenceError(
      "format.config",
      `${where}: mode is "${override.mode}"; expected "affine"`,
    );
  }
  const spec = {
    bits: override.bits ?? base.bits,
    groupSize: override.group_size ?? base.groupSize,
  };
  const isNarrow = spec.bits === 2 && (spec.groupSize === 32 || spec.groupSize === 64);
  if (spec.groupSize !== base.groupSize && !isNarrow) {
    throw new MferenceError(
      "format.config",
      `${where}: group size ${spec.groupSize} differs from the base of ${base.groupSize}; only 2-bit matrices may, with 32 or 64`,
    );
  }
  return checkedSpec(spec, where);
}

function checkedSpec(spec: QuantSpec, where: string): QuantSpec {
  if (!BITS.some((bits) => bits === spec.bits)) {
    throw new MferenceError(
      "format.config",
      `${where}: ${spec.bits} bits; implemented are ${BITS.join(", ")}`,
    );
  }
  if (spec.groupSize !== 64 && spec.groupSize !== 32) {
    throw new MferenceError(
      "format.config",
      `${where}: groups of ${spec.groupSize}; implemented are 64 and 32`,
    );
  }
  return spec;
}

/** How the matrix stored as `name` (with or without `.weight`) is quantized. */
export function quantOf(quantization: Quantization, name: string): QuantSpec {
  const module = name.endsWith(".weight") ? name.slice(0, -".weight".length) : name;
  return quantization.overrides.get(module) ?? quantization;
}

/** The shapes of a quantized matrix as a checkpoint stores it. */
export interface PackedShapes {
  readonly name: string;
  readonly weight: readonly number[];
  readonly scales: readonly number[];
  readonly biases: readonly number[];
}

/**
 * The logical shape of a packed matrix, after a check that the declared width and group fit the
 * stored shapes: columns = words * 32 / bits = groups * group size.
 *
 * @throws MferenceError "format.config" when they disagree
 */
export function logicalShape(packed: PackedShapes, spec: QuantSpec): readonly number[] {
  const rows = packed.weight.slice(0, -1);
  const words = packed.weight.at(-1) ?? 0;
  const columns = (words * WORD_BITS) / spec.bits;
  const expected = [...rows, columns / spec.groupSize];
  for (const companion of ["scales", "biases"] as const) {
    if (isSameShape(packed[companion], expected)) continue;
    throw new MferenceError(
      "format.config",
      `${packed.name}: config.json declares ${spec.bits} bits in groups of ${spec.groupSize}, so ${words} words a row are ${columns} columns and ${companion} should be [${expected.join(", ")}], but they are [${packed[companion].join(", ")}]`,
    );
  }
  return [...rows, columns];
}

/** Whether two shapes are equal. */
export function isSameShape(left: readonly number[], right: readonly number[]): boolean {
  return left.length === right.length && left.every((size, axis) => size === right[axis]);
}
