/**
 * What a family states for its GGUF file: keys, tensors in their order, and values that keep it well
 * conditioned. Knows no family and no file.
 */
import type { TensorInfo, Value } from "./gguf-header.ts";

/** A tensor and what it holds: random codes, one number everywhere, or numbers made by a function. */
export interface Tensor extends TensorInfo {
  readonly fill: "random" | "embedding" | number | (() => Float32Array);
  /** Factor of random codes, whose outputs are about as large as their inputs without it. */
  readonly gain: number;
}

/** The router's weights of a layer, float32 `[E, D]`. */
export type RouterOf = (layer: number) => Float32Array;

export interface PeerFamily {
  readonly architecture: string;
  /** Of the architecture, without its name in front. */
  readonly keys: (layerCount: number) => Readonly<Record<string, Value>>;
  readonly vocabulary: () => Readonly<Record<string, Value>>;
  readonly tensors: (layerCount: number, routerOf: RouterOf) => readonly Tensor[];
}

export const u32 = (value: number): Value => ({ type: "u32", value });
export const f32 = (value: number): Value => ({ type: "f32", value });
export const text = (value: string): Value => ({ type: "string", value });

/** Random codes; `shape` has the fastest dimension first. */
export const matrix = (name: string, ...shape: number[]): Tensor => ({
  name: `${name}.weight`,
  shape,
  type: "q4_0",
  fill: "random",
  gain: 1,
});

/** Numbers that are not quantized, under a whole name. */
export const plain = (name: string, shape: readonly number[], fill: Tensor["fill"]): Tensor => ({
  name,
  shape,
  type: "f32",
  fill,
  gain: 1,
});

export const vector = (name: string, length: number, value = 1): Tensor =>
  plain(`${name}.weight`, [length], value);

/** Kinds of tokens in a file. */
export const TOKEN_KINDS = { normal: 1, control: 3, byte: 6 } as const;
type TokenKind = keyof typeof TOKEN_KINDS;

/** As much of a vocabulary as a reader insists on: the known tokens, then made-up words. */
export function tokenKeys(
  count: number,
  known: readonly (readonly [string, TokenKind])[],
): Record<string, Value> {
  const ids = Array.from({ length: count }, (_, id) => id);
  const tokens = ids.map((id) => known[id]?.[0] ?? `word${id}`);
  const kinds = ids.map((id) => TOKEN_KINDS[known[id]?.[1] ?? "normal"]);
  return {
    "tokenizer.ggml.tokens": { type: "string[]", value: tokens },
    "tokenizer.ggml.scores": { type: "f32[]", value: ids.map(() => 0) },
    "tokenizer.ggml.token_type": { type: "i32[]", value: kinds },
    "tokenizer.ggml.merges": { type: "string[]", value: ["w o"] },
  };
}
