import { defineKernel, perCell, perUnit, read, update, write } from "./spec.ts";

/** Rows of the recurrent state that one threadgroup of a grid device carries, a SIMD-group each. */
const STATE_ROWS = 8;

/**
 * Causal depthwise convolution over time with SiLU, and its memory: the last J = K - 1 rows of the raw
 * input, oldest first; zeros stand for rows before the first. Source: arXiv 2312.00752, section 3.4.
 */
export const causalConv = defineKernel({
  name: "causal_conv",
  formula:
    "y[t, c] = silu(sum_j weight[c, j] * x[t - J + j, c]), rows before the first from tail; tail = the last " +
    "J rows of (tail, x)",
  buffers: {
    x: read("f32", "[T, C]"),
    weight: read("bf16", "[C, K]"),
    tail: update("f32", "[J, C]"),
    y: write("f32", "[T, C]"),
  },
  params: { T: "u32", C: "u32", K: "u32", J: "u32" },
  grid: ({ C }) => perUnit(Math.ceil(C / 64), 64),
  tolerance: () => ({ atol: 1e-6, rtol: 2e-6 }),
});

/**
 * What the gated delta rule takes, in place: rows of `mixed` hold Hk queries, Hk keys (Dk each) and Hv
 * values; queries and keys get the length 1, queries also the attention's scale; `alpha` becomes the
 * logarithm of the decay and `beta` the step. The epsilon is added to the sum of squares, as Hugging Face
 * does, not to their mean.
 */
export const deltaPrepare = defineKernel({
  name: "delta_prepare",
  formula:
    "q = q / sqrt(sum q^2 + eps) / sqrt(Dk); k = k / sqrt(sum k^2 + eps); " +
    "alpha[t, h] = -exp(aLog[h]) * softplus(alpha[t, h] + dtBias[h]); beta = 1 / (1 + exp(-beta))",
  buffers: {
    mixed: update("f32", "[T, C]"),
    alpha: update("f32", "[T, Hv]"),
    beta: update("f32", "[T, Hv]"),
    aLog: read("bf16", "[Hv]"),
    dtBias: read("bf16", "[Hv]"),
  },
  params: { T: "u32", C: "u32", Hk: "u32", Hv: "u32", Dk: "u32", eps: "f32" },
  grid: ({ T }) => perUnit(T, 256),
  tolerance: () => ({ atol: 1e-6, rtol: 2e-6 }),
});

/**
 * The gated delta rule, token after token. Value head h reads the key head h * Hk / Hv. Rows of the state
 * do not depend on each other: this is what devices divide, and why T tokens give the bits of T calls.
 * Source: arXiv 2412.06464, equation 10.
 */
export const gatedDelta = defineKernel({
  name: "gated_delta",
  formula:
    "S = exp(alpha[t, h]) * S; S = S + beta[t, h] * (v - S k) k^T; y[t, h] = S q, for t ascending; state[h] = S",
  buffers: {
    mixed: read("f32", "[T, C]"),
    alpha: read("f32", "[T, Hv]"),
    beta: read("f32", "[T, Hv]"),
    state: update("f32", "[Hv, Dv, Dk]"),
    y: write("f32", "[T, Hv, Dv]"),
  },
  params: { T: "u32", C: "u32", Hk: "u32", Hv: "u32", Dk: "u32", Dv: "u32" },
  grid: ({ Hv, Dv }) => perCell(Math.ceil(Dv / STATE_ROWS), Hv, 32 * STATE_ROWS),
  // Rounding of a step decays with the state; over 2,000 tokens it stays below 2e-6 of the largest value.
  tolerance: () => ({ atol: 1e-6, rtol: 1e-5 }),
  constants: ["Dk"],
});

/** The norm of each head's output, and its gate. Source: arXiv 2412.06464, section 3.4. */
export const gatedNorm = defineKernel({
  name: "gated_norm",
  formula: "y[t, h, d] = N(x[t, h]; weight)[d] * silu(gate[t, h, d])",
  buffers: {
    x: read("f32", "[T, H, D]"),
    gate: read("f32", "[T, H, D]"),
    weight: read("bf16", "[D]"),
    y: write("f32", "[T, H, D]"),
  },
  params: { T: "u32", H: "u32", D: "u32", eps: "f32" },
  grid: ({ T, H }) => perCell(Math.ceil(H / 4), T, 128),
  tolerance: () => ({ atol: 1e-6, rtol: 2e-6 }),
});
