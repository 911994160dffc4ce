/** The common weights of Gemma 4 by their checkpoint names. */
import type { QkNorms } from "../../ops/ops.ts";
import type { QuantTensor, Vector } from "../../ops/tensor.ts";
import type { Weights } from "../../ops/weights.ts";
import type { Gemma4Config, LayerKind } from "./config.ts";

export interface LayerWeights {
  readonly inputNorm: Vector;
  readonly q: QuantTensor;
  readonly k: QuantTensor;
  /** Absent where the values are the raw keys. */
  readonly v: QuantTensor | undefined;
  readonly o: QuantTensor;
  readonly qkNorms: QkNorms;
  readonly router: QuantTensor;
  readonly expertScale: Vector;
  readonly gate: QuantTensor;
  readonly up: QuantTensor;
  readonly down: QuantTensor;
  readonly setup: {
    readonly post: Vector;
    readonly shared: Vector;
    readonly routed: Vector;
    readonly routerScale: Vector;
  };
  readonly tail: {
    readonly shared: Vector;
    readonly routed: Vector;
    readonly sum: Vector;
    readonly layerScalar: Vector;
  };
}

export interface ModelWeights {
  readonly embedding: QuantTensor;
  readonly layers: readonly LayerWeights[];
  readonly finalNorm: Vector;
}

const PREFIX = "language_model.model";

function layerWeights(weights: Weights, prefix: string, kind: LayerKind): LayerWeights {
  const matrix = (name: string): QuantTensor => weights.matrix(`${prefix}.${name}.weight`);
  const norm = (name: string): Vector => weights.vector(`${prefix}.${name}.weight`);
  return {
    inputNorm: norm("input_layernorm"),
    q: matrix("self_attn.q_proj"),
    k: matrix("self_attn.k_proj"),
    v: kind === "sliding" ? matrix("self_attn.v_proj") : undefined,
    o: matrix("self_attn.o_proj"),
    qkNorms: { q: norm("self_attn.q_norm"), k: norm("self_attn.k_norm"), values: true },
    router: matrix("router.proj"),
    expertScale: weights.vector(`${prefix}.router.per_expert_scale`),
    gate: matrix("mlp.gate_proj"),
    up: matrix("mlp.up_proj"),
    down: matrix("mlp.down_proj"),
    setup: {
      post: norm("post_attention_layernorm"),
      shared: norm("pre_feedforward_layernorm"),
      routed: norm("pre_feedforward_layernorm_2"),
      routerScale: weights.vector(`${prefix}.router.scale`),
    },
    tail: {
      shared: norm("post_feedforward_layernorm_1"),
      routed: norm("post_feedforward_layernorm_2"),
      sum: norm("post_feedforward_layernorm"),
      layerScalar: weights.vector(`${prefix}.layer_scalar`),
    },
  };
}

export function modelWeights(weights: Weights, config: Gemma4Config): ModelWeights {
  return {
    embedding: weights.matrix(`${PREFIX}.embed_tokens.weight`),
    layers: config.layerKinds.map((kind, layer) =>
      layerWeights(weights, `${PREFIX}.layers.${layer}`, kind),
    ),
    finalNorm: weights.vector(`${PREFIX}.norm.weight`),
  };
}
