/**
 * A golden fixture folder: a tiny checkpoint with the logits and stages that Hugging Face transformers
 * computed for it in float32. Read-only truth; nothing here computes.
 */
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";

const goldenSchema = z.object({
  fixture: z.string(),
  family: z.string(),
  inputs: z.object({
    ids: z.array(z.int().nonnegative()).min(1),
    prompt: z.int().positive(),
    greedy: z.boolean(),
    splits: z.array(z.array(z.int().positive())),
    short: z.int().positive().nullish(),
    singles: z.boolean().nullish(),
  }),
  tensors: z.record(
    z.string(),
    z.looseObject({
      shape: z.array(z.int().nonnegative()),
      float64: z.looseObject({ max_abs: z.number().optional() }).optional(),
    }),
  ),
});

export interface GoldenTensor {
  readonly shape: readonly number[];
  readonly values: Float32Array | Int32Array;
}

export interface Fixture {
  readonly name: string;
  readonly directory: string;
  readonly family: string;
  readonly inputs: z.output<typeof goldenSchema>["inputs"];
  readonly tensors: ReadonlyMap<string, GoldenTensor>;
  /** How far the truth itself is from float64. */
  readonly distances: ReadonlyMap<string, number>;
}

interface Entry {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data_offsets: readonly [number, number];
}

/** The tensors of a small safetensors file, whole: fixtures are a megabyte. */
function readTensors(path: string): Map<string, GoldenTensor> {
  const bytes = readFileSync(path);
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString("utf8", 8, 8 + headerBytes)) as Record<string, Entry>;
  const tensors = new Map<string, GoldenTensor>();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [begin, end] = entry.data_offsets;
    const data = Uint8Array.from(bytes.subarray(8 + headerBytes + begin, 8 + headerBytes + end));
    const values =
      entry.dtype === "F32" ? new Float32Array(data.buffer) : new Int32Array(data.buffer);
    if (entry.dtype !== "F32" && entry.dtype !== "I32") {
      throw new Error(`${path}: ${name} is ${entry.dtype}, expected F32 or I32`);
    }
    tensors.set(name, { shape: entry.shape, values });
  }
  return tensors;
}

/** Reads `golden.json` and `golden.safetensors` of a fixture folder. */
export function readFixture(directory: string): Fixture {
  const golden = goldenSchema.parse(
    JSON.parse(readFileSync(join(directory, "golden.json"), "utf8")),
  );
  const tensors = readTensors(join(directory, "golden.safetensors"));
  checkListed(directory, golden.tensors, tensors);
  const { family, inputs } = golden;
  const distances = new Map(
    Object.entries(golden.tensors).map(([name, { float64 }]) => [name, float64?.max_abs ?? 0]),
  );
  return { name: basename(directory), directory, family, inputs, tensors, distances };
}

/** What golden.json lists must be there, so that a damaged fixture cannot pass by having less to check. */
function checkListed(
  directory: string,
  listed: Readonly<Record<string, { readonly shape: readonly number[] }>>,
  tensors: ReadonlyMap<string, GoldenTensor>,
): void {
  if (listed["logits"] === undefined) {
    throw new Error(`${directory}/golden.json lists no logits; a fixture has them`);
  }
  for (const [name, { shape }] of Object.entries(listed)) {
    const found = tensors.get(name);
    const isWhole =
      found !== undefined &&
      found.shape.join() === shape.join() &&
      found.values.length === shape.reduce((product, length) => product * length, 1);
    if (isWhole) continue;
    throw new Error(
      `${directory}/golden.safetensors lacks ${name}, or not all of its shape ${shape.join(" x ")} is there`,
    );
  }
}
