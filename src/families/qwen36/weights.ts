/** The common weights of Qwen 3.6 by their checkpoint names. */
import type { ConvWeights } from "../../ops/delta.ts";
import type { QkNorms } from "../../ops/ops.ts";
import type { QuantTensor, Vector } from "../../ops/tensor.ts";
import type { Weights } from "../../ops/weights.ts";
import type { Qwen36Config } from "./config.ts";

/** A layer of attention with a gate on its output. */
export interface FullWeights {
  readonly kind: "full";
  /** Each head's query is followed by its gate. */
  readonly q: QuantTensor;
  readonly k: QuantTensor;
  readonly v: QuantTensor;
  readonly o: QuantTensor;
  readonly qkNorms: QkNorms;
}

/** A layer of the gated delta rule. */
export interface LinearWeights {
  readonly kind: "linear";
  readonly qkv: QuantTensor;
  readonly z: QuantTensor;
  readonly a: QuantTensor;
  readonly b: QuantTensor;
  readonly conv: ConvWeights;
  readonly aLog: Vector;
  readonly dtBias: Vector;
  readonly norm: Vector;
  readonly o: QuantTensor;
}

export interface LayerWeights {
  readonly inputNorm: Vector;
  readonly mixer: FullWeights | LinearWeights;
  readonly postNorm: Vector;
  readonly router: QuantTensor;
  /** One row: the gate of the shared expert. */
  readonly sharedGate: QuantTensor;
  readonly gate: QuantTensor;
  readonly up: QuantTensor;
  readonly down: QuantTensor;
}

export interface ModelWeights {
  readonly embedding: QuantTensor;
  readonly layers: readonly LayerWeights[];
  readonly finalNorm: Vector;
  readonly head: QuantTensor;
}

const PREFIX = "language_model.model";

/** Finds what one layer has by the names within it. */
interface Named {
  readonly matrix: (name: string) => QuantTensor;
  readonly vector: (name: string) => Vector;
}

function fullWeights({ matrix, vector }: Named): FullWeights {
  return {
    kind: "full",
    q: matrix("self_attn.q_proj"),
    k: matrix("self_attn.k_proj"),
    v: matrix("self_attn.v_proj"),
    o: matrix("self_attn.o_proj"),
    qkNorms: {
      q: vector("self_attn.q_norm.weight"),
      k: vector("self_attn.k_norm.weight"),
      values: false,
    },
  };
}

function linearWeights({ matrix, vector }: Named, config: Qwen36Config): LinearWeights {
  return {
    kind: "linear",
    qkv: matrix("linear_attn.in_proj_qkv"),
    z: matrix("linear_attn.in_proj_z"),
    a: matrix("linear_attn.in_proj_a"),
    b: matrix("linear_attn.in_proj_b"),
    conv: { taps: vector("linear_attn.conv1d.weight"), tapCount: config.linearConvKernel },
    aLog: vector("linear_attn.A_log"),
    dtBias: vector("linear_attn.dt_bias"),
    norm: vector("linear_attn.norm.weight"),
    o: matrix("linear_attn.out_proj"),
  };
}

export function modelWeights(weights: Weights, config: Qwen36Config): ModelWeights {
  return {
    embedding: weights.matrix(`${PREFIX}.embed_tokens.weight`),
    layers: config.layerKinds.map((kind, layer) => {
      const prefix = `${PREFIX}.layers.${layer}`;
      const matrix = (name: string): QuantTensor => weights.matrix(`${prefix}.${name}.weight`);
      const vector = (name: string): Vector => weights.vector(`${prefix}.${name}`);
      const named = { matrix, vector };
      return {
        inputNorm: vector("input_layernorm.weight"),
        mixer: kind === "full" ? fullWeights(named) : linearWeights(named, config),
        postNorm: vector("post_attention_layernorm.weight"),
        router: matrix("mlp.gate"),
        sharedGate: matrix("mlp.shared_expert_gate"),
        gate: matrix("mlp.shared_expert.gate_proj"),
        up: matrix("mlp.shared_expert.up_proj"),
        down: matrix("mlp.shared_expert.down_proj"),
      };
    }),
    finalNorm: weights.vector(`${PREFIX}.norm.weight`),
    head: weights.matrix("language_model.lm_head.weight"),
  };
}
