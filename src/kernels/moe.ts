import { WIDE_TOKENS_LEAST } from "./matmul.ts";
import { defineKernel, perCell, perUnit, productTolerance, read, write } from "./spec.ts";

/**
 * The K largest router scores of each token (ties: the lower expert), in descending order, and their
 * softmax times a scale for each expert.
 */
export const routerTopk = defineKernel({
  name: "router_topk",
  formula:
    "ids[t] = K largest of scores[t]; weights[t, k] = softmax_k(scores[t, ids[t]]) * expertScale[ids[t, k]]",
  buffers: {
    scores: read("f32", "[T, E]"),
    expertScale: read("bf16", "[E]"),
    ids: write("u32", "[T, K]"),
    weights: write("f32", "[T, K]"),
  },
  params: { T: "u32", E: "u32", K: "u32" },
  grid: ({ T }) => perUnit(T, 32),
  tolerance: () => ({ atol: 1e-6, rtol: 2e-6 }),
});

/**
 * Routed experts work on lists, so that the experts already cached can run before the missing ones have
 * been read. `groups` has one row for each active expert: its slot in the slab, the first of its pairs,
 * their number, 0. A pair is the flat index `t * K + rank` of a routed (token, rank); rows of the output
 * are indexed by it, so that no result depends on how the lists were cut.
 */
export const routedGate = defineKernel({
  name: "routed_gate",
  formula:
    "hidden[p, f] = act(gate[f] . x[p / K]) * (up[f] . x[p / K]) for each pair p of each group, weights at " +
    "slab + slot * slotBytes + the offset of each array",
  buffers: {
    slab: read("u8", "[S, slotBytes]"),
    x: read("f32", "[T, D]"),
    groups: read("u32", "[A, 4]"),
    pairs: read("u32", "[P]"),
    hidden: write("f32", "[T * K, F]"),
  },
  params: {
    S: "u32",
    slotBytes: "u32",
    T: "u32",
    K: "u32",
    D: "u32",
    F: "u32",
    A: "u32",
    P: "u32",
    bits: "u32",
    gateCodes: "u32",
    gateScales: "u32",
    gateBiases: "u32",
    upCodes: "u32",
    upScales: "u32",
    upBiases: "u32",
    activation: "u32",
    activationBits: "u32",
  },
  grid: ({ T, A, F }) =>
    T < WIDE_TOKENS_LEAST ? perCell(Math.ceil(F / 8), A, 64) : perCell(Math.ceil(F / 32), A, 128),
  tolerance: ({ activationBits }) => productTolerance(activationBits),
  constants: ["bits", "activation"],
  wide: { param: "T", least: WIDE_TOKENS_LEAST },
});

/** The down projection of the same lists. */
export const routedDown = defineKernel({
  name: "routed_down",
  formula: "y[p, d] = down[d] . hidden[p] for each pair p of each group",
  buffers: {
    slab: read("u8", "[S, slotBytes]"),
    hidden: read("f32", "[T * K, F]"),
    groups: read("u32", "[A, 4]"),
    pairs: read("u32", "[P]"),
    y: write("f32", "[T * K, D]"),
  },
  params: {
    S: "u32",
    slotBytes: "u32",
    T: "u32",
    K: "u32",
    D: "u32",
    F: "u32",
    A: "u32",
    P: "u32",
    bits: "u32",
    codes: "u32",
    scales: "u32",
    biases: "u32",
    activationBits: "u32",
  },
  grid: ({ T, A, D }) =>
    T < WIDE_TOKENS_LEAST ? perCell(Math.ceil(D / 8), A, 64) : perCell(Math.ceil(D / 64), A, 128),
  tolerance: ({ activationBits }) => productTolerance(activationBits),
  constants: ["bits"],
  wide: { param: "T", least: WIDE_TOKENS_LEAST },
});

/** The weighted sum of a token's experts in rank order. */
export const routedReduce = defineKernel({
  name: "routed_reduce",
  formula: "y[t, d] = sum_k weights[t, k] * experts[t * K + k, d], k ascending",
  buffers: {
    experts: read("f32", "[T * K, D]"),
    weights: read("f32", "[T, K]"),
    y: write("f32", "[T, D]"),
  },
  params: { T: "u32", K: "u32", D: "u32" },
  grid: ({ T, D }) => perCell(Math.ceil(D / 256), T, 256),
  tolerance: () => ({ atol: 1e-6, rtol: 2e-6 }),
});

/** What routed experts and a shared expert with a gate, one value a token, give together. */
export const gatedShared = defineKernel({
  name: "gated_shared",
  formula: "y[t, d] = routed[t, d] + shared[t, d] / (1 + exp(-gate[t]))",
  buffers: {
    routed: read("f32", "[T, D]"),
    shared: read("f32", "[T, D]"),
    gate: read("f32", "[T]"),
    y: write("f32", "[T, D]"),
  },
  params: { T: "u32", D: "u32" },
  grid: ({ T, D }) => perCell(Math.ceil(D / 256), T, 256),
  tolerance: () => ({ atol: 1e-6, rtol: 2e-6 }),
});

/**
 * The rows that `routedGate` and `routedDown` read, one for each pair of a token's routes: what the host
 * writes when it plans, found by the device where every expert is in a slot.
 */
export const slotLookup = defineKernel({
  name: "slot_lookup",
  formula: "groups[p] = (table[ids[p]], p, 1, 0)",
  buffers: {
    ids: read("u32", "[P]"),
    table: read("u32", "[E]"),
    groups: write("u32", "[P, 4]"),
  },
  params: { P: "u32", E: "u32", S: "u32" },
  grid: ({ P }) => perUnit(Math.ceil(P / 32), 32),
  tolerance: () => ({ atol: 0, rtol: 0 }),
});
