import { defineKernel, perUnit, read, update, write } from "./spec.ts";

/** Most candidates the sampler may ask for. */
export const CANDIDATES_MAX = 256;

/** The largest finite logit of each row; the lowest index wins a tie. */
export const argmax = defineKernel({
  name: "argmax",
  formula: "result[t] = (argmax of the finite logits[t], number of logits that are not finite)",
  buffers: { logits: read("f32", "[T, V]"), result: write("u32", "[T, 2]") },
  params: { T: "u32", V: "u32" },
  grid: ({ T }) => perUnit(T, 1024),
  tolerance: () => ({ atol: 0, rtol: 0 }),
});

/** Bounded logits, or with a cap of 0 a copy. Source: arXiv 2408.00118, section 2. */
export const softcap = defineKernel({
  name: "softcap",
  formula: "y[i] = cap > 0 ? cap * tanh(x[i] / cap) : x[i]",
  buffers: { x: read("f32", "[N]"), y: write("f32", "[N]") },
  params: { N: "u32", cap: "f32" },
  grid: ({ N }) => perUnit(Math.ceil(N / 256)),
  tolerance: () => ({ atol: 1e-6, rtol: 1e-6 }),
});

/** Repetition penalty, once for each listed id. Source: arXiv 1909.05858, section 4.1. */
export const penalize = defineKernel({
  name: "penalize",
  formula:
    "logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty for id in ids",
  buffers: { logits: update("f32", "[V]"), ids: read("u32", "[N]") },
  params: { V: "u32", N: "u32", penalty: "f32" },
  grid: () => perUnit(1),
  tolerance: () => ({ atol: 0, rtol: 2e-7 }),
});

/**
 * The C largest logits in descending order (ties: lower id first) and the mass of the whole row, so that
 * the host draws from C numbers and never walks the vocabulary.
 */
export const candidates = defineKernel({
  name: "candidates",
  formula:
    "ids, values = C largest of logits; mass[0] = max; mass[1] = sum_v exp(logits[v] - max); " +
    "mass[2] = number of logits that are not finite",
  buffers: {
    logits: read("f32", "[V]"),
    ids: write("u32", "[C]"),
    values: write("f32", "[C]"),
    mass: write("f32", "[3]"),
  },
  params: { V: "u32", C: "u32" },
  grid: () => perUnit(1, 1024),
  tolerance: () => ({ atol: 0, rtol: 1e-5 }),
});

/**
 * One draw from the whole distribution by the Gumbel-max trick (arXiv 1611.01144, eq. 1). The noise of
 * an id is a function of a 64-bit key alone: r = splitmix64(key xor id), u = (top24(r) + 0.5) / 2^24,
 * g = -ln(-ln u).
 */
export const gumbel = defineKernel({
  name: "gumbel",
  formula:
    "result = (argmax_v (logits[v] - ln sum_u exp logits[u]) / temperature + g(v), not finite)",
  buffers: { logits: read("f32", "[V]"), result: write("u32", "[2]") },
  params: { V: "u32", temperature: "f32", keyLow: "u32", keyHigh: "u32" },
  grid: () => perUnit(1, 1024),
  tolerance: () => ({ atol: 0, rtol: 0 }),
});
