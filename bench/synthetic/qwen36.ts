/** Qwen 3.6 35B-A3B's dimensions, for a synthetic package. */
import { ARCH_35B } from "../../src/families/qwen36/config.ts";
import { qwen36 } from "../../src/families/qwen36/index.ts";
import type { JsonValue } from "../../src/format/json.ts";
import { defineSynthetic, GROUP, routerBits } from "./family.ts";

const TEXT = "language_model.model";
/** What a layer adds to the residual stream, beside a stream of about 1: small, as with trained weights. */
export const BRANCH = 0.1;

/** A dimension of the delta rule. */
const linear = (key: string): number => ARCH_35B[key] as number;

/** config.json of the released model with so many layers. */
function configOf(layerCount: number): JsonValue {
  const a = ARCH_35B;
  const layers = Array.from({ length: layerCount }, (_, layer) => layer);
  const eightBits = layers.flatMap((layer) => [
    `${TEXT}.layers.${layer}.mlp.gate`,
    `${TEXT}.layers.${layer}.mlp.shared_expert_gate`,
  ]);
  return {
    model_type: "qwen3_5_moe",
    text_config: {
      vocab_size: a.vocabSize,
      hidden_size: a.hiddenSize,
      num_hidden_layers: layerCount,
      layer_types: layers.map((layer) => (layer % 4 === 3 ? "full_attention" : "linear_attention")),
      num_attention_heads: a.numHeads,
      num_key_value_heads: a.numKVHeads,
      head_dim: a.headDim,
      attn_output_gate: true,
      attention_bias: false,
      hidden_act: "silu",
      rope_parameters: {
        rope_type: "default",
        rope_theta: a.ropeTheta,
        partial_rotary_factor: a.partialRotaryFactor,
      },
      linear_num_key_heads: linear("linearNumKHeads"),
      linear_num_value_heads: linear("linearNumVHeads"),
      linear_key_head_dim: linear("linearKeyHeadDim"),
      linear_value_head_dim: linear("linearValueHeadDim"),
      linear_conv_kernel_dim: linear("linearConvKernelSize"),
      num_experts: a.numExperts,
      num_experts_per_tok: a.topKExperts,
      moe_intermediate_size: a.moeIntermediateSize,
      shared_expert_intermediate_size: a.ffnIntermediate,
      rms_norm_eps: 1e-6,
      max_position_embeddings: 262_144,
      eos_token_id: 0,
      tie_word_embeddings: false,
    },
    quantization: { bits: 4, group_size: GROUP, ...routerBits(eightBits) },
  };
}

export const syntheticQwen36 = defineSynthetic({
  family: qwen36,
  arch: ARCH_35B,
  layerStep: 4,
  configOf,
  expertName: (layer, part) => `${TEXT}.layers.${layer}.mlp.switch_mlp.${part}_proj.weight`,
  router: "mlp.gate",
  embeddingMultiplier: 1,
  scaleOf: (name) => {
    // The embedding has no multiplier: its rows are to be about 1 themselves.
    if (name.includes("embed_tokens")) return Math.sqrt(ARCH_35B.hiddenSize);
    return /\.(o_proj|out_proj|down_proj)\./.test(name) ? BRANCH : 1;
  },
  plainValue: ({ name }) => {
    if (name.endsWith("dt_bias")) return -2;
    if (name.endsWith("A_log")) return 0;
    return name.endsWith("conv1d.weight") ? 0.5 : 1;
  },
});
