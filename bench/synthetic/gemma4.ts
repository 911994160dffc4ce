/** Gemma 4 26B-A4B's dimensions, for a synthetic package. */
import { ARCH_26B } from "../../src/families/gemma4/config.ts";
import { gemma4 } from "../../src/families/gemma4/index.ts";
import type { JsonValue } from "../../src/format/json.ts";
import { defineSynthetic, GROUP, routerBits } from "./family.ts";

const TEXT = "language_model.model";
const { hiddenSize } = ARCH_26B;

/** config.json of the released model with so many layers. */
function configOf(layerCount: number): JsonValue {
  const a = ARCH_26B;
  const layerKinds = Array.from({ length: layerCount }, (_, layer) => layer % 6 === 5);
  const routers = layerKinds.map((_, layer) => `${TEXT}.layers.${layer}.router.proj`);
  return {
    model_type: "gemma4",
    text_config: {
      vocab_size: a.vocabSize,
      hidden_size: a.hiddenSize,
      intermediate_size: a.ffnIntermediate,
      moe_intermediate_size: a.moeIntermediateSize,
      num_hidden_layers: layerCount,
      layer_types: layerKinds.map((isFull) => (isFull ? "full_attention" : "sliding_attention")),
      num_attention_heads: a.numHeads,
      num_key_value_heads: a.numKVHeads,
      num_global_key_value_heads: a.numFullKVHeads,
      head_dim: a.headDim,
      global_head_dim: a.fullHeadDim,
      sliding_window: a.slidingWindow,
      rope_parameters: {
        sliding_attention: { rope_type: "default", rope_theta: a.ropeTheta },
        full_attention: {
          rope_type: "proportional",
          rope_theta: a.fullRopeTheta,
          partial_rotary_factor: a.partialRotaryFactor,
        },
      },
      rms_norm_eps: 1e-6,
      final_logit_softcapping: a.finalLogitSoftcap,
      enable_moe_block: true,
      num_experts: a.numExperts,
      top_k_experts: a.topKExperts,
      hidden_activation: "gelu_pytorch_tanh",
      attention_k_eq_v: true,
      attention_bias: false,
      num_kv_shared_layers: 0,
      hidden_size_per_layer_input: 0,
      use_double_wide_mlp: false,
      use_bidirectional_attention: "vision",
      max_position_embeddings: 262_144,
      bos_token_id: 2,
      pad_token_id: 0,
      eos_token_id: [1],
    },
    tie_word_embeddings: true,
    quantization: { bits: 4, group_size: GROUP, ...routerBits(routers) },
  };
}

export const syntheticGemma4 = defineSynthetic({
  family: gemma4,
  arch: ARCH_26B,
  layerStep: 6,
  configOf,
  expertName: (layer, part) => `${TEXT}.layers.${layer}.experts.switch_glu.${part}_proj.weight`,
  router: "router.proj",
  embeddingMultiplier: Math.sqrt(hiddenSize),
  scaleOf: () => 1,
  plainValue: ({ name, shape }) => {
    if (name.endsWith("router.scale")) return 2 * Math.sqrt(hiddenSize);
    // In front of attention, whose scale is 1.
    if (name.endsWith("q_norm.weight")) return shape[0]! ** -0.5;
    return /\.post_\w+_layernorm(_[12])?\.weight$/.test(name) ? 0.15 : 1;
  },
});
