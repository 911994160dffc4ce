/**
 * The flags that several commands share, and their values checked and typed. The declarations serve help
 * and strict parsing alike. Knows no engine state: what a value means is for whoever takes it.
 */
import type { LoadRequest } from "../engine/protocol.ts";
import type { SamplingRequest } from "../engine/sampler.ts";
import { MferenceError } from "../util/errors.ts";
import type { Arguments } from "./args.ts";

export const outputArgs = {
  quiet: { type: "boolean", description: "no footer and no notices" },
  json: { type: "boolean", description: "print JSON for programs instead of text" },
} as const satisfies Arguments;

/** Which model to load, and how. */
export const modelArgs = {
  model: {
    type: "string",
    valueHint: "name or folder",
    description: "the model; default: the only one installed, else the last used",
  },
  slots: {
    type: "string",
    valueHint: "number or resident",
    description: "experts held in memory for each layer (default: what memory allows)",
  },
  context: {
    type: "string",
    valueHint: "tokens",
    description: "most tokens of prompt and answer together (default 4096)",
  },
  threads: {
    type: "string",
    valueHint: "number",
    description: "threads of the CPU device (default: one for each core)",
  },
  precision: {
    type: "enum",
    options: ["exact", "fast", "quick"],
    description: "arithmetic (default fast)",
  },
  device: {
    type: "enum",
    options: ["metal", "cpu"],
    description: "what computes (default: Metal on macOS, the CPU elsewhere)",
  },
  verify: {
    type: "enum",
    options: ["full-sha256", "trusted-receipt"],
    description: "how the package is checked before use (default full-sha256)",
  },
} as const satisfies Arguments;

/** How tokens are chosen. */
export const samplingArgs = {
  seed: {
    type: "string",
    valueHint: "0 to 2^64 - 1",
    description: "makes the random draws repeatable",
  },
  temp: {
    type: "string",
    valueHint: "0 or more",
    description: "temperature; 0 always takes the likeliest token (default: the model's, else 0.2)",
  },
  "top-p": {
    type: "string",
    valueHint: "above 0, at most 1",
    description:
      "draw from the likeliest tokens that hold this mass (default: the model's, else 0.95)",
  },
  "top-k": {
    type: "string",
    valueHint: "0 to 256",
    description: "draw from so many tokens; 0 from all (default: the model's, else 64)",
  },
  "repetition-penalty": {
    type: "string",
    valueHint: "above 0",
    description: "above 1 makes tokens already seen less likely (default: the model's, else 1)",
  },
  "max-new": {
    type: "string",
    valueHint: "1 or more",
    description: "most new tokens (default 1024)",
  },
  stop: {
    type: "string",
    isRepeatable: true,
    valueHint: "text",
    description: "end the answer before this text; may be given several times",
  },
} as const satisfies Arguments;

/** Values of flags as the command library hands them over. */
export type Values = Readonly<Record<string, unknown>>;

/** The part of a load request that flags decide. */
export type LoadFlags = Pick<
  LoadRequest,
  "slots" | "contextRows" | "threads" | "precision" | "policy"
>;

const DEFAULTS = { temperature: 0.2, topK: 64, topP: 0.95, repetitionPenalty: 1 } as const;
export const MAX_NEW_DEFAULT = 1024;
const SEED_END = 1n << 64n;

/** @throws MferenceError "usage.value" naming the flag, what was found and what is allowed */
export function readLoadFlags(values: Values): LoadFlags {
  const slots = text(values, "slots");
  const contextRows = integer(values, "context", { least: 1 });
  // `MF_THREADS_MAX` of the CPU device.
  const threads = integer(values, "threads", { least: 1, most: 64 });
  return {
    ...(slots === undefined ? {} : { slots: readSlots(slots) }),
    ...(contextRows === undefined ? {} : { contextRows }),
    ...(threads === undefined ? {} : { threads }),
    precision: text(values, "precision") as LoadFlags["precision"],
    policy: text(values, "verify") as LoadFlags["policy"],
  };
}

function readSlots(value: string): number | "resident" {
  if (value === "resident") return value;
  if (/^\d{1,9}$/.test(value) && Number(value) >= 1) return Number(value);
  throw bad("slots", 'a whole number of at least 1, or "resident"', value);
}

/** What flags say about choosing tokens; what they leave out is absent. Top-k 0 stands for none. */
export type SamplingFlags = SamplingRequest;

/** @throws MferenceError "usage.value" */
export function readSamplingFlags(values: Values): SamplingFlags {
  const temperature = number(values, "temp", { least: 0, allowed: "a number of at least 0" });
  const topP = number(values, "top-p", { above: 0, most: 1, allowed: "above 0 and at most 1" });
  const topK = integer(values, "top-k", { least: 0, most: 256 });
  const repetitionPenalty = number(values, "repetition-penalty", {
    above: 0,
    allowed: "above 0 (1 changes nothing)",
  });
  const seed = readSeed(text(values, "seed"));
  return {
    ...(temperature === undefined ? {} : { temperature }),
    ...(topP === undefined ? {} : { topP }),
    ...(topK === undefined ? {} : { topK }),
    ...(repetitionPenalty === undefined ? {} : { repetitionPenalty }),
    ...(seed === undefined ? {} : { seed }),
  };
}

function readSeed(value: string | undefined): bigint | undefined {
  if (value === undefined) return undefined;
  const seed = /^\d{1,20}$/.test(value) ? BigInt(value) : SEED_END;
  if (seed < SEED_END) return seed;
  throw bad("seed", "a whole number from 0 to 18446744073709551615", value);
}

/** @throws MferenceError "usage.value" */
export function readMaxNew(values: Values): number {
  return integer(values, "max-new", { least: 1 }) ?? MAX_NEW_DEFAULT;
}

/**
 * The sampling of a request: the user's word, else the checkpoint's, else the program's.
 *
 * @throws MferenceError "usage.value" when the values contradict each other
 */
export function resolveSampling(flags: SamplingFlags, model: SamplingRequest): SamplingRequest {
  const merged = { ...DEFAULTS, ...model, ...flags };
  const isOff = merged.topK === 0;
  const { temperature = DEFAULTS.temperature, topP = DEFAULTS.topP } = merged;
  if (isOff && temperature > 0 && topP < 1) {
    throw new MferenceError(
      "usage.value",
      `--top-k 0 at temperature ${temperature} needs --top-p 1, not ${topP}: the nucleus is looked for among at most 256 candidates`,
    );
  }
  return isOff ? { ...merged, topK: undefined } : merged;
}

interface Range {
  readonly least?: number;
  readonly most?: number;
  readonly above?: number;
}

function integer(values: Values, name: string, range: Range): number | undefined {
  const value = text(values, name);
  if (value === undefined) return undefined;
  const found = /^\d{1,15}$/.test(value) ? Number(value) : Number.NaN;
  if (isInside(found, range)) return found;
  const { least = 0, most } = range;
  const allowed =
    most === undefined
      ? `a whole number of at least ${least}`
      : `a whole number from ${least} to ${most}`;
  throw bad(name, allowed, value);
}

function number(
  values: Values,
  name: string,
  range: Range & { readonly allowed: string },
): number | undefined {
  const value = text(values, name);
  if (value === undefined) return undefined;
  const isNumber = /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value);
  const found = isNumber ? Number(value) : Number.NaN;
  if (isInside(found, range)) return found;
  throw bad(name, range.allowed, value);
}

function isInside(value: number, range: Range): boolean {
  const { least = -Infinity, most = Number.MAX_VALUE, above = -Infinity } = range;
  return value >= least && value <= most && value > above;
}

function text(values: Values, name: string): string | undefined {
  const value = values[name];
  return typeof value === "string" ? value : undefined;
}

function bad(name: string, allowed: string, found: string): MferenceError {
  return new MferenceError("usage.value", `--${name} must be ${allowed}, not "${found}"`);
}
