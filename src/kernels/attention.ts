import { defineKernel, type Dtype, perCell, read, update, write } from "./spec.ts";

/** From so many tokens on a grid device attends tiles of 32 rows that share keys and values. */
const WIDE_QUERIES_LEAST = 8;

/** Cosines and sines of the rotary positions `position .. position + T - 1`. */
export const ropeTable = defineKernel({
  name: "rope_table",
  formula:
    "table[t, n] = (cos a, sin a); a = float32(float32(position + t) * frequencies[n]), full reduction",
  buffers: { frequencies: read("f32", "[N]"), table: write("f32", "[T, N, 2]") },
  params: { T: "u32", N: "u32", position: "u32" },
  grid: ({ T, N }) => perCell(Math.ceil(N / 256), T, 256),
  tolerance: () => ({ atol: 2e-7, rtol: 0 }),
});

/**
 * Per-head norms, rotation (component i pairs with i + N) and the write of new rows into the KV cache,
 * row `position + t` at slot `(position + t) mod R`. Components from 2 N on do not rotate. The keys that
 * the values come from may be the raw keys themselves: bind `k` as `v`.
 */
const qkvEpilogue = (dtype: Extract<Dtype, "f32" | "f16">, normed: "qkv" | "qk") =>
  defineKernel({
    name: `${normed}_epilogue_${dtype}`,
    formula:
      "q[t, h] = rope(N(q[t, h]; qNorm)); keys[slot, g] = rope(N(k[t, g]; kNorm)); " +
      `values[slot, g] = ${normed === "qkv" ? "N(v[t, g]; 1)" : "v[t, g]"}; slot = (position + t) mod R`,
    buffers: {
      q: update("f32", "[T, H, Dh]"),
      k: read("f32", "[T, Hkv, Dh]"),
      v: read("f32", "[T, Hkv, Dh]"),
      qNorm: read("bf16", "[Dh]"),
      kNorm: read("bf16", "[Dh]"),
      table: read("f32", "[T, N, 2]"),
      keys: update(dtype, "[R, Hkv, Dh]"),
      values: update(dtype, "[R, Hkv, Dh]"),
    },
    params: {
      T: "u32",
      H: "u32",
      Hkv: "u32",
      Dh: "u32",
      N: "u32",
      R: "u32",
      position: "u32",
      eps: "f32",
    },
    grid: ({ T, H, Hkv }) => perCell(Math.ceil((H + 2 * Hkv) / 4), T, 128),
    tolerance: () => (dtype === "f32" ? { atol: 1e-6, rtol: 3e-6 } : { atol: 1e-6, rtol: 6e-4 }),
  });

export const qkvEpilogueF32 = qkvEpilogue("f32", "qkv");
export const qkvEpilogueF16 = qkvEpilogue("f16", "qkv");
/** The same where values have no norm. */
export const qkEpilogueF32 = qkvEpilogue("f32", "qk");
export const qkEpilogueF16 = qkvEpilogue("f16", "qk");

/**
 * Causal attention of T queries over a KV cache of R row slots (a ring when the sequence is longer than
 * R; a linear cache when it never is). Query t stands at `position + t` and sees the keys u with
 * `u <= position + t` and, if `window` is not 0, `u > position + t - window`. Softmax in float32 with
 * the maximum subtracted; accumulation in float32 or better.
 */
const attention = (dtype: Extract<Dtype, "f32" | "f16">) =>
  defineKernel({
    name: `attention_${dtype}`,
    formula:
      "y[t, h] = sum_u softmax_u(scale * q[t, h] . keys[u mod R, g]) * values[u mod R, g]; g = h * Hkv / H",
    buffers: {
      q: read("f32", "[T, H, Dh]"),
      keys: read(dtype, "[R, Hkv, Dh]"),
      values: read(dtype, "[R, Hkv, Dh]"),
      y: write("f32", "[T, H, Dh]"),
    },
    params: {
      T: "u32",
      H: "u32",
      Hkv: "u32",
      Dh: "u32",
      R: "u32",
      position: "u32",
      window: "u32",
      scale: "f32",
    },
    grid: ({ T, H, Hkv }) =>
      T < WIDE_QUERIES_LEAST
        ? perCell(H, T, 512)
        : perCell(Math.ceil((T * H) / Hkv / 32), Hkv, 256),
    tolerance: () => ({ atol: 2e-6, rtol: 5e-6 }),
    constants: ["Dh"],
    wide: { param: "T", least: WIDE_QUERIES_LEAST },
  });

export const attentionF32 = attention("f32");
export const attentionF16 = attention("f16");

/** The queries out of heads that are followed by their gates. */
export const splitGate = defineKernel({
  name: "split_gate",
  formula: "q[t, h] = pairs[t, h, 0]",
  buffers: { pairs: read("f32", "[T, H, 2, Dh]"), q: write("f32", "[T, H, Dh]") },
  params: { T: "u32", H: "u32", Dh: "u32" },
  grid: ({ T, H, Dh }) => perCell(Math.ceil((H * Dh) / 256), T, 256),
  tolerance: () => ({ atol: 0, rtol: 0 }),
});

/** The gates of the same heads on what was attended. Source: arXiv 2505.06708, section 3. */
export const outputGate = defineKernel({
  name: "output_gate",
  formula: "y[t, h, d] = y[t, h, d] / (1 + exp(-pairs[t, h, 1, d]))",
  buffers: { pairs: read("f32", "[T, H, 2, Dh]"), y: update("f32", "[T, H, Dh]") },
  params: { T: "u32", H: "u32", Dh: "u32" },
  grid: ({ T, H, Dh }) => perCell(Math.ceil((H * Dh) / 256), T, 256),
  tolerance: () => ({ atol: 1e-6, rtol: 2e-6 }),
});
