import { z } from "zod";
import { MferenceError } from "../../util/errors.ts";
import { checkJson, type JsonValue } from "../../format/json.ts";
import type { Arch } from "../../format/manifest.ts";

/**
 * `config.json` of a Qwen 3.6 mixture-of-experts checkpoint, as far as its tensors and its manifest need
 * it. No dimension has a default.
 */
export interface Qwen36Config {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly layerKinds: readonly ("linear" | "full")[];
  readonly numAttentionHeads: number;
  readonly numKeyValueHeads: number;
  readonly headDim: number;
  readonly ropeTheta: number;
  readonly partialRotaryFactor: number;
  readonly linearKeyHeads: number;
  readonly linearValueHeads: number;
  readonly linearKeyHeadDim: number;
  readonly linearValueHeadDim: number;
  readonly linearConvKernel: number;
  readonly numExperts: number;
  readonly topKExperts: number;
  readonly moeIntermediateSize: number;
  readonly sharedIntermediateSize: number;
}

/** No real dimension comes near; keeps every product of a few of them exact. */
const DIMENSION_MAX = 1 << 24;
const LAYERS_MAX = 1024;
const dimension = z.int().min(1).max(DIMENSION_MAX);

const textSchema = z.object({
  vocab_size: dimension,
  hidden_size: dimension,
  num_hidden_layers: z.int().min(1).max(LAYERS_MAX),
  layer_types: z.array(z.enum(["linear_attention", "full_attention"])),
  num_attention_heads: dimension,
  num_key_value_heads: dimension,
  head_dim: dimension,
  attn_output_gate: z.literal(true),
  attention_bias: z.literal(false).optional(),
  hidden_act: z.literal("silu"),
  rope_parameters: z.object({
    rope_theta: z.number().positive(),
    partial_rotary_factor: z.number().positive().max(1),
  }),
  linear_num_key_heads: dimension,
  linear_num_value_heads: dimension,
  linear_key_head_dim: dimension,
  linear_value_head_dim: dimension,
  linear_conv_kernel_dim: dimension,
  num_experts: dimension,
  num_experts_per_tok: dimension,
  moe_intermediate_size: dimension,
  shared_expert_intermediate_size: dimension,
  tie_word_embeddings: z.literal(false).optional(),
});
const rootSchema = z.object({
  text_config: z.record(z.string(), z.unknown()),
  tie_word_embeddings: z.literal(false).optional(),
});

/**
 * Parses and checks config.json.
 *
 * @throws MferenceError "format.config" naming the key
 */
export function parseConfig(json: JsonValue): Qwen36Config {
  const root = checkJson(json, rootSchema, { code: "format.config", what: "config.json" });
  const what = "config.json: text_config";
  const text = checkJson(root.text_config, textSchema, { code: "format.config", what });
  if (text.layer_types.length !== text.num_hidden_layers) {
    fail(`layer_types has ${text.layer_types.length} entries for ${text.num_hidden_layers} layers`);
  }
  if (text.num_experts_per_tok > text.num_experts) {
    fail(`num_experts_per_tok is ${text.num_experts_per_tok}, of ${text.num_experts} experts`);
  }
  return {
    vocabSize: text.vocab_size,
    hiddenSize: text.hidden_size,
    layerKinds: text.layer_types.map((type) => (type === "full_attention" ? "full" : "linear")),
    numAttentionHeads: text.num_attention_heads,
    numKeyValueHeads: text.num_key_value_heads,
    headDim: text.head_dim,
    ropeTheta: text.rope_parameters.rope_theta,
    partialRotaryFactor: text.rope_parameters.partial_rotary_factor,
    linearKeyHeads: text.linear_num_key_heads,
    linearValueHeads: text.linear_num_value_heads,
    linearKeyHeadDim: text.linear_key_head_dim,
    linearValueHeadDim: text.linear_value_head_dim,
    linearConvKernel: text.linear_conv_kernel_dim,
    numExperts: text.num_experts,
    topKExperts: text.num_experts_per_tok,
    moeIntermediateSize: text.moe_intermediate_size,
    sharedIntermediateSize: text.shared_expert_intermediate_size,
  };
}

function fail(problem: string): never {
  throw new MferenceError("format.config", `config.json: ${problem}`);
}

/** The architecture fields of a manifest. */
export function archOf(config: Qwen36Config): Arch {
  return {
    hiddenSize: config.hiddenSize,
    ffnIntermediate: config.sharedIntermediateSize,
    moeIntermediateSize: config.moeIntermediateSize,
    numHeads: config.numAttentionHeads,
    numKVHeads: config.numKeyValueHeads,
    numFullKVHeads: config.numKeyValueHeads,
    headDim: config.headDim,
    fullHeadDim: config.headDim,
    vocabSize: config.vocabSize,
    slidingWindow: 0,
    finalLogitSoftcap: 0,
    ropeTheta: config.ropeTheta,
    fullRopeTheta: config.ropeTheta,
    partialRotaryFactor: config.partialRotaryFactor,
    numLayers: config.layerKinds.length,
    numExperts: config.numExperts,
    topKExperts: config.topKExperts,
    tieWordEmbeddings: false,
    attentionKEqV: false,
    hiddenActivation: "silu",
    fullAttentionLayerMask: config.layerKinds.map((kind) => (kind === "full" ? 1 : 2)),
    family: "qwen36",
    attnOutputGate: true,
    attentionScale: 1 / Math.sqrt(config.headDim),
    embeddingScaledBySqrtHidden: false,
    routerScaled: false,
    ffnSandwichNorms: false,
    sharedExpertGated: true,
    ropeNeoxSubdim: true,
    linearNumKHeads: config.linearKeyHeads,
    linearNumVHeads: config.linearValueHeads,
    linearKeyHeadDim: config.linearKeyHeadDim,
    linearValueHeadDim: config.linearValueHeadDim,
    linearConvKernelSize: config.linearConvKernel,
  };
}

/** The released 35B-A3B. */
export const ARCH_35B: Arch = archOf({
  vocabSize: 248_320,
  hiddenSize: 2048,
  layerKinds: Array.from({ length: 40 }, (_, layer) => (layer % 4 === 3 ? "full" : "linear")),
  numAttentionHeads: 16,
  numKeyValueHeads: 2,
  headDim: 256,
  ropeTheta: 1e7,
  partialRotaryFactor: 0.25,
  linearKeyHeads: 16,
  linearValueHeads: 32,
  linearKeyHeadDim: 128,
  linearValueHeadDim: 128,
  linearConvKernel: 4,
  numExperts: 256,
  topKExperts: 8,
  moeIntermediateSize: 512,
  sharedIntermediateSize: 512,
});
