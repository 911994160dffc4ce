import { defineKernel, perUnit, read, update, write } from "./spec.ts";

const ROUNDING = { atol: 1e-6, rtol: 2e-6 };

/** Root-mean-square norm over the last axis. Source: arXiv 1910.07467, eq. 4. */
export const rmsNorm = defineKernel({
  name: "rms_norm",
  formula: "y[t, d] = x[t, d] * rsqrt(mean_d(x[t]^2) + eps) * weight[d]",
  buffers: { x: read("f32", "[T, D]"), weight: read("bf16", "[D]"), y: write("f32", "[T, D]") },
  params: { T: "u32", D: "u32", eps: "f32" },
  grid: ({ T }) => perUnit(T),
  tolerance: () => ROUNDING,
});

/** The middle of a pre-normed layer: the branch joins the residual stream, which is normed for the next one. */
export const residualNorm = defineKernel({
  name: "residual_norm",
  formula: "x[t] += branch[t]; y[t] = N(x[t]; weight)",
  buffers: {
    x: update("f32", "[T, D]"),
    branch: read("f32", "[T, D]"),
    weight: read("bf16", "[D]"),
    y: write("f32", "[T, D]"),
  },
  params: { T: "u32", D: "u32", eps: "f32" },
  grid: ({ T }) => perUnit(T),
  tolerance: () => ROUNDING,
});

/**
 * What a sandwich-normed layer needs between attention and its two feed-forward branches, in one pass
 * over a row: the branch is normed and added to the residual stream, which is then normed three ways.
 */
export const sandwichSetup = defineKernel({
  name: "sandwich_setup",
  formula:
    "x[t] += N(branch[t]; postNorm); shared[t] = N(x[t]; sharedNorm); routed[t] = N(x[t]; routedNorm); " +
    "router[t, d] = x[t, d] * rsqrt(mean_d(x[t]^2) + eps) * routerScale[d] * routerFactor",
  buffers: {
    x: update("f32", "[T, D]"),
    branch: read("f32", "[T, D]"),
    postNorm: read("bf16", "[D]"),
    sharedNorm: read("bf16", "[D]"),
    routedNorm: read("bf16", "[D]"),
    routerScale: read("bf16", "[D]"),
    shared: write("f32", "[T, D]"),
    routed: write("f32", "[T, D]"),
    router: write("f32", "[T, D]"),
  },
  params: { T: "u32", D: "u32", eps: "f32", routerFactor: "f32" },
  grid: ({ T }) => perUnit(T),
  tolerance: () => ROUNDING,
});

/** The end of a sandwich-normed layer: both branches normed, their sum normed, added and scaled. */
export const sandwichTail = defineKernel({
  name: "sandwich_tail",
  formula:
    "x[t] = (x[t] + N(N(shared[t]; sharedNorm) + N(routed[t]; routedNorm); sumNorm)) * layerScalar[0]",
  buffers: {
    x: update("f32", "[T, D]"),
    shared: read("f32", "[T, D]"),
    routed: read("f32", "[T, D]"),
    sharedNorm: read("bf16", "[D]"),
    routedNorm: read("bf16", "[D]"),
    sumNorm: read("bf16", "[D]"),
    layerScalar: read("bf16", "[1]"),
  },
  params: { T: "u32", D: "u32", eps: "f32" },
  grid: ({ T }) => perUnit(T),
  tolerance: () => ROUNDING,
});
