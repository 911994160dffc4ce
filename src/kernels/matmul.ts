import { defineKernel, perCell, productTolerance, read, write } from "./spec.ts";

/** From so many tokens on a grid device multiplies tiles of tokens, in which weights are unpacked once. */
export const WIDE_TOKENS_LEAST = 16;

/**
 * Product with an affine-quantised matrix (groups of 64 along the input axis; 4 bits: element 2m in the
 * low nibble of byte m; 8 bits: plain bytes). The three arrays may start at any even address.
 */
export const matmulAffine = defineKernel({
  name: "matmul_affine",
  formula: "y[t, o] = sum_i (scale[o, i / 64] * code[o, i] + bias[o, i / 64]) * x[t, i]",
  buffers: {
    x: read("f32", "[T, I]"),
    codes: read("u8", "[O, I * bits / 8]"),
    scales: read("bf16", "[O, I / 64]"),
    biases: read("bf16", "[O, I / 64]"),
    y: write("f32", "[T, O]"),
  },
  params: { T: "u32", I: "u32", O: "u32", bits: "u32", activationBits: "u32" },
  grid: ({ T, O }) =>
    T < WIDE_TOKENS_LEAST
      ? perCell(Math.ceil(O / 8), T, 64)
      : perCell(Math.ceil(T / 32), Math.ceil(O / 64), 128),
  tolerance: ({ activationBits }) => productTolerance(activationBits),
  constants: ["bits"],
  wide: { param: "T", least: WIDE_TOKENS_LEAST },
});

/** Gate and up projections of a gated feed-forward network with the activation between them. */
export const gatedMatmulAffine = defineKernel({
  name: "gated_matmul_affine",
  formula: "y[t, f] = act(sum_i gate[f, i] * x[t, i]) * (sum_i up[f, i] * x[t, i])",
  buffers: {
    x: read("f32", "[T, I]"),
    gateCodes: read("u8", "[F, I * bits / 8]"),
    gateScales: read("bf16", "[F, I / 64]"),
    gateBiases: read("bf16", "[F, I / 64]"),
    upCodes: read("u8", "[F, I * bits / 8]"),
    upScales: read("bf16", "[F, I / 64]"),
    upBiases: read("bf16", "[F, I / 64]"),
    y: write("f32", "[T, F]"),
  },
  params: {
    T: "u32",
    I: "u32",
    F: "u32",
    bits: "u32",
    activation: "u32",
    activationBits: "u32",
  },
  grid: ({ T, F }) =>
    T < WIDE_TOKENS_LEAST
      ? perCell(Math.ceil(F / 8), T, 64)
      : perCell(Math.ceil(T / 32), Math.ceil(F / 32), 128),
  tolerance: ({ activationBits }) => productTolerance(activationBits),
  constants: ["bits", "activation"],
  wide: { param: "T", least: WIDE_TOKENS_LEAST },
});
