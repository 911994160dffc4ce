/** Mistakes that an implementation of Qwen 3.6 makes. */
import type { Mutation } from "./mutation.ts";

const FORWARD = "src/families/qwen36/forward.ts";
const CONFIG = "src/families/qwen36/config.ts";
const DELTA = "cpu/kernels/delta_vector.h";

const ATTENTION: readonly Mutation[] = [
  {
    name: "qwen-norm-1-plus-w",
    title: "norms add 1 to the stored weight",
    edits: [
      {
        file: "cpu/kernels/vector.h",
        from: "if (n >= VF) return vf_from_bf16(p);",
        to: "if (n >= VF) return vf_from_bf16(p) + vf_splat(1);",
      },
    ],
  },
  {
    name: "qwen-rotate-all",
    title: "rotation over the whole head",
    edits: [
      {
        file: CONFIG,
        from: "(headDim * partialRotaryFactor) / 2",
        to: "(headDim + 0 * partialRotaryFactor) / 2",
      },
    ],
  },
  {
    name: "qwen-gate-halves",
    title: "query and gate split as halves of all rows",
    edits: [
      {
        file: "cpu/kernels/rotary.c",
        from: "pairs + head * 2 * p->Dh",
        to: "pairs + ((size_t)t * p->H * 2 + (head - (size_t)t * p->H)) * p->Dh",
      },
      {
        file: DELTA,
        from: "((size_t)head * 2 + 1) * p->Dh",
        to: "((size_t)(head / p->H) * p->H * 2 + p->H + head % p->H) * p->Dh",
      },
    ],
  },
  {
    name: "qwen-gate-silu",
    title: "attention gate SiLU",
    edits: [
      {
        file: DELTA,
        from: "const vf g = vf_sigmoid(vf_load_some(gate + i, p->Dh - i));",
        to: "const vf g = vf_load_some(gate + i, p->Dh - i) * vf_sigmoid(vf_load_some(gate + i, p->Dh - i));",
      },
    ],
  },
];

const DELTA_RULE: readonly Mutation[] = [
  {
    name: "delta-mean-epsilon",
    title: "delta rule: L2 epsilon on the mean",
    edits: [
      {
        file: DELTA,
        from: "sqrtf(sum_squares(x, n) + eps)",
        to: "sqrtf(sum_squares(x, n) + (float)n * eps)",
      },
    ],
  },
  {
    name: "delta-late-decay",
    title: "delta rule: decay after the read",
    edits: [
      {
        file: DELTA,
        from: "seen[r] = vf_fma(vf_load(state + r * Dk + i) * decay, k, seen[r]);",
        to: "seen[r] = vf_fma(vf_load(state + r * Dk + i), k, seen[r]);",
      },
    ],
  },
  {
    name: "delta-old-state",
    title: "delta rule: output from the old state",
    edits: [
      {
        file: DELTA,
        from: "out[r] = vf_fma(grown, q, out[r]);",
        to: "out[r] = vf_fma(grown - delta[r] * k, q, out[r]);",
      },
    ],
  },
  {
    name: "delta-interleaved",
    title: "delta rule: value heads interleaved over key heads",
    edits: [{ file: DELTA, from: "h / (p->Hv / p->Hk) * Dk;", to: "h % p->Hk * Dk;" }],
  },
  {
    name: "delta-taps-reversed",
    title: "convolution taps reversed",
    edits: [
      {
        file: DELTA,
        from: "taps[k][c] = mf_bf16(weight[(size_t)(first + c) * p->K + k]);",
        to: "taps[k][c] = mf_bf16(weight[(size_t)(first + c) * p->K + p->K - 1 - k]);",
      },
    ],
  },
  {
    name: "delta-raw-values",
    title: "no SiLU on the convolved v",
    edits: [
      {
        file: DELTA,
        from: "first + c, sum * vf_sigmoid(sum), n - c);",
        to: "first + c, sum * (first + c >= p->C / 2 ? vf_splat(1) : vf_sigmoid(sum)), n - c);",
      },
    ],
  },
  {
    name: "delta-query-scale",
    title: "no Dk^-1/2 on the query",
    edits: [{ file: DELTA, from: "1.0f / sqrtf((float)p->Dk)", to: "1.0f" }],
  },
  {
    name: "delta-gate-first",
    title: "gate before the norm",
    edits: [
      {
        file: DELTA,
        from: "const vf factor = vf_splat(inverse_rms(sum_squares(x, p->D), p->D, p->eps));",
        to: `float squares = 0;
      for (uint32_t i = 0; i < p->D; i++) {
        const float silu = gate[i] / (1 + expf(-gate[i]));
        squares += x[i] * x[i] * silu * silu;
      }
      const vf factor = vf_splat(inverse_rms(squares, p->D, p->eps));`,
      },
    ],
  },
  {
    name: "delta-transposed",
    title: "delta rule: state transposed",
    edits: [
      {
        // v takes the place of k in the update, and the other way round.
        file: DELTA,
        from: "vf_fma(delta[r], k, vf_load(state + r * Dk + i) * decay);",
        to: "vf_fma(vf_splat(s->beta * s->k[r]), k, vf_load(state + r * Dk + i) * decay);",
      },
    ],
  },
];

const FEED_FORWARD: readonly Mutation[] = [
  {
    name: "qwen-softmax-over-all",
    title: "top-k weights not renormalised",
    edits: [
      {
        file: "cpu/kernels/router.c",
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
    name: "qwen-shared-ungated",
    title: "shared expert not gated",
    edits: [
      {
        file: DELTA,
        from: "const vf gate = vf_sigmoid(vf_splat(gates[t]));",
        to: "const vf gate = vf_splat(1 + 0 * gates[t]);",
      },
    ],
  },
  {
    name: "qwen-mixer-input",
    title: "the mixer reads the stream before its norm",
    edits: [
      {
        file: FORWARD,
        from: "ops.matmul(normed, w.qkv, raw, T);",
        to: "ops.matmul(this.#s.x, w.qkv, raw, T);",
      },
    ],
  },
  {
    name: "state-not-restored",
    title: "the tail of the convolution is not kept",
    edits: [
      {
        file: DELTA,
        from: "    keep_tail(task, first, n);",
        to: "    if (p->T > 1) keep_tail(task, first, n);",
      },
    ],
  },
];

/** In the order of a forward pass. */
export const qwen36Mutations: readonly Mutation[] = [...ATTENTION, ...DELTA_RULE, ...FEED_FORWARD];
