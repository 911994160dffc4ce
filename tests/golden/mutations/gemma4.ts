/** Mistakes that an implementation of Gemma 4 makes. */
import type { Mutation } from "./mutation.ts";

const FORWARD = "src/families/gemma4/forward.ts";
const CONFIG = "src/families/gemma4/config.ts";
const OPS = "src/ops/ops.ts";
const ROUTER = "cpu/kernels/router.c";
const NORM = "cpu/kernels/norm_vector.h";
const ROTARY = "cpu/kernels/rotary_vector.h";
const PIPELINE = "src/experts/pipeline.ts";

/** Pairs of neighbours: the whole head, since pairs that do not rotate have the angle 0. */
const NEIGHBOURING_PAIRS = `
  for (uint32_t i = 0; i < h->N; i++) {
    const float c = h->cosines[i], s = h->sines[i];
    const float a = h->source[2 * i] * h->factor[0] * mf_bf16(h->weight[2 * i]);
    const float b = h->source[2 * i + 1] * h->factor[0] * mf_bf16(h->weight[2 * i + 1]);
    ((float *)out)[2 * i] = a * c - b * s;
    ((float *)out)[2 * i + 1] = b * c + a * s;
  }
  if (h->N != 0 && !is_half) return;
`;

const ATTENTION: readonly Mutation[] = [
  {
    name: "norm-1-plus-w",
    title: "norms use 1 + w",
    edits: [
      {
        file: "cpu/kernels/vector.h",
        from: "if (n >= VF) return vf_from_bf16(p);",
        to: "if (n >= VF) return vf_from_bf16(p) + vf_splat(1);",
      },
      {
        // The router's scale is no norm's weight: what 1 adds to it is taken off again.
        file: NORM,
        from: "(float *)bound[MF_SANDWICH_SETUP_ROUTER] + at, D);",
        to: `(float *)bound[MF_SANDWICH_SETUP_ROUTER] + at, D);
    for (uint32_t i = 0; i < D; i++) {
      ((float *)bound[MF_SANDWICH_SETUP_ROUTER])[at + i] -= x[i] * factor * p->router_factor;
    }`,
      },
    ],
  },
  {
    name: "rotary-neighbours",
    title: "rotary pairs (2i, 2i + 1)",
    edits: [
      {
        file: ROTARY,
        from: "  const uint32_t N = h->N;\n",
        to: `  const uint32_t N = h->N;\n${NEIGHBOURING_PAIRS}`,
      },
    ],
  },
  {
    name: "rotary-exponent",
    title: "full layers: exponent over the rotated width",
    edits: [{ file: CONFIG, from: "(-2 * pair) / headDim", to: "(-2 * pair) / (2 * pairs)" }],
  },
  {
    name: "rotary-all-pairs",
    title: "full layers: all pairs rotate",
    edits: [
      { file: CONFIG, from: 'kind === "full" ? config.fullPartialRotaryFactor : 1', to: "1" },
    ],
  },
  {
    name: "rotary-restarts",
    title: "rotation restarts at 0 with each call",
    edits: [
      {
        file: OPS,
        from: "N: rope.pairs, position }",
        to: "N: rope.pairs, position: position * 0 }",
      },
    ],
  },
  {
    name: "v-after-rotation",
    title: "full layers: V is K after norm and rotation",
    edits: [
      {
        file: ROTARY,
        from: "if (is_query || is_key) {",
        to: "if (is_query || is_key || bound[MF_QKV_EPILOGUE_F32_V] == bound[MF_QKV_EPILOGUE_F32_K]) {",
      },
    ],
  },
  {
    name: "no-v-norm",
    title: "no V norm",
    edits: [
      {
        file: ROTARY,
        from: "  if (is_query || is_key) {",
        to: "  if (!is_query && !is_key) h.factor = vf_splat(1);\n  if (is_query || is_key) {",
      },
    ],
  },
  {
    name: "attention-scale",
    title: "attention scaled by d^-1/2",
    edits: [
      { file: FORWARD, from: "window, scale: 1 }", to: "window, scale: heads.headDim ** -0.5 }" },
    ],
  },
  {
    name: "window-plus-1",
    title: "window of W + 1",
    edits: [{ file: CONFIG, from: "text.sliding_window,", to: "text.sliding_window + 1," }],
  },
  {
    name: "short-ring",
    title: "the ring of a sliding layer one row too short",
    edits: [
      { file: "src/kv/plan.ts", from: "window + blockRows - 1)", to: "window + blockRows - 2)" },
      { file: "src/kv/plan.ts", from: "rows - window + 1;", to: "rows - window + 2;" },
    ],
  },
  {
    name: "half-kv",
    title: "half-precision keys and values in exact precision",
    edits: [
      {
        file: OPS,
        from: 'activationBits: 32, kvDtype: "f32"',
        to: 'activationBits: 32, kvDtype: "f16"',
      },
    ],
  },
];

const FEED_FORWARD: readonly Mutation[] = [
  {
    name: "router-input",
    title: "router reads the dense branch's input",
    edits: [{ file: FORWARD, from: "ops.matmul(s.routerIn,", to: "ops.matmul(s.sharedIn," }],
  },
  {
    name: "no-expert-scale",
    title: "no per_expert_scale",
    edits: [{ file: ROUTER, from: "* mf_bf16(scale[ids[at + k]])", to: "+ 0 * mf_bf16(scale[0])" }],
  },
  {
    name: "expert-scale-first",
    title: "per_expert_scale before the normalisation",
    edits: [
      {
        file: ROUTER,
        from: "* mf_bf16(scale[ids[at + k]]) : 0;",
        to: `* mf_bf16(scale[ids[at + k]]) : 0;
      float sum = 0;
      for (uint32_t j = 0; k + 1 == p->K && j < p->K; j++) sum += weights[at + j];
      for (uint32_t j = 0; k + 1 == p->K && j < p->K; j++) weights[at + j] /= sum;`,
      },
    ],
  },
  {
    name: "softmax-over-all",
    title: "routing weights are not normalised over the chosen",
    edits: [
      {
        file: ROUTER,
        from: "k < p->K; k++) weights[k] /= sum;",
        to: `k < p->K; k++) {
    float all = 0;
    for (uint32_t e = 0; e < p->E; e++) all += expf(scores[e] - scores[ids[0]]);
    weights[k] /= all;
  }`,
      },
    ],
  },
  {
    name: "layer-scalar",
    title: "layer_scalar on the branch only",
    edits: [
      {
        file: NORM,
        from: "(vf_load_some(x + i, D - i) + s) * scalar",
        to: "vf_load_some(x + i, D - i) + s * scalar",
      },
    ],
  },
  {
    name: "expert-input",
    title: "experts read the dense branch's input",
    edits: [{ file: FORWARD, from: "x: s.routedIn,", to: "x: s.sharedIn," }],
  },
  {
    name: "gate-up-swapped",
    title: "gate and up swapped in the experts",
    edits: [
      {
        file: "src/engine/model.ts",
        from: 'gate: place("gate"), up: place("up")',
        to: 'gate: place("up"), up: place("gate")',
      },
    ],
  },
  {
    name: "silu",
    title: "SiLU for GeLU",
    edits: [{ file: "src/kernels/spec.ts", from: "geluTanh: 0", to: "geluTanh: 1" }],
  },
  {
    name: "16-bit-activations",
    title: "16-bit activations in exact precision",
    edits: [
      {
        file: OPS,
        from: 'activationBits: 32, kvDtype: "f32"',
        to: 'activationBits: 16, kvDtype: "f32"',
      },
    ],
  },
  {
    name: "miss-not-read",
    title: "the first missing expert of a plan is not read",
    edits: [
      {
        file: PIPELINE,
        from: "if (failure === undefined) await",
        to: "if (failure === undefined && position !== plan.misses[0]) await",
      },
    ],
  },
  {
    name: "stale-slot",
    title: "an evicted expert still counts as present (4 slots)",
    edits: [
      {
        file: "src/experts/plan.ts",
        from: "if (previous >= 0) cache.table[previous] = -1;",
        to: "if (previous >= cache.expertCount) cache.table[previous] = -1;",
      },
    ],
    slots: 4,
  },
];

const ENDS: readonly Mutation[] = [
  {
    name: "no-multiplier",
    title: "embedding multiplier omitted",
    edits: [{ file: FORWARD, from: "Math.sqrt(this.#config.hiddenSize)", to: "1" }],
  },
  {
    name: "bf16-multiplier",
    title: "embedding multiplier rounded to bfloat16",
    edits: [
      {
        // BF16 has steps of 1/16 from 8 on and of 1/8 from 16 on; the fixtures' roots are 11.3 and 17.9.
        file: FORWARD,
        from: "Math.sqrt(this.#config.hiddenSize)",
        to: "Math.round(16 * Math.sqrt(this.#config.hiddenSize)) / 16",
      },
    ],
  },
  {
    name: "no-softcap",
    title: "softcap left out",
    edits: [
      {
        file: "src/ops/sampling.ts",
        from: "{ N: x.columns, cap }",
        to: "{ N: x.columns, cap: 0 * cap }",
      },
    ],
  },
];

/** In the order of a forward pass. */
export const gemma4Mutations: readonly Mutation[] = [...ATTENTION, ...FEED_FORWARD, ...ENDS];
