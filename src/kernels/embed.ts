import { defineKernel, perUnit, read, write } from "./spec.ts";

/** Rows of a quantised embedding, dequantised in float32 and multiplied once. */
export const embedAffine = defineKernel({
  name: "embed_affine",
  formula:
    "y[t, d] = (scale[id, d / 64] * code[id, d] + bias[id, d / 64]) * multiplier; id = ids[t]",
  buffers: {
    ids: read("u32", "[T]"),
    codes: read("u8", "[V, D * bits / 8]"),
    scales: read("bf16", "[V, D / 64]"),
    biases: read("bf16", "[V, D / 64]"),
    y: write("f32", "[T, D]"),
  },
  params: { T: "u32", D: "u32", V: "u32", bits: "u32", multiplier: "f32" },
  grid: ({ T }) => perUnit(T),
  tolerance: () => ({ atol: 0, rtol: 3e-7 }),
  constants: ["bits"],
});
