import { z } from "zod";
import { MferenceError } from "../../util/errors.ts";
import { checkJson, type JsonValue } from "../../format/json.ts";
import type { Arch } from "../../format/manifest.ts";

/** `config.json` of an Inkling Small checkpoint, as far as its tensors and its manifest need it. */
export interface InklingConfig {
  readonly vocabSize: number;
  /** Rows of the vocabulary that are tokens; 0 where all are. */
  readonly unpaddedVocabSize: number;
  readonly hiddenSize: number;
  readonly layerKinds: readonly ("sliding" | "full")[];
  readonly numAttentionHeads: number;
  readonly numKeyValueHeads: number;
  readonly headDim: number;
  readonly slidingWindow: number;
  /** Width of the learned distances of a head. */
  readonly relationDim: number;
  readonly relationExtent: number;
  readonly logScalingFloor: number;
  readonly logScalingAlpha: number;
  readonly convKernel: number;
  /** Layers at the start without routed experts. */
  readonly denseLayers: number;
  readonly denseIntermediateSize: number;
  readonly expertIntermediateSize: number;
  readonly numExperts: number;
  readonly topKExperts: number;
  readonly sharedExperts: number;
  readonly routeScale: number;
  readonly logitsWidthMultiplier: number;
}

/** No real dimension comes near; keeps every product of a few of them exact. */
const DIMENSION_MAX = 1 << 24;
const LAYERS_MAX = 1024;
const dimension = z.int().min(1).max(DIMENSION_MAX);

const textSchema = z.object({
  vocab_size: dimension,
  unpadded_vocab_size: z.int().nonnegative().max(DIMENSION_MAX).default(0),
  hidden_size: dimension,
  num_hidden_layers: z.int().min(1).max(LAYERS_MAX),
  num_attention_heads: dimension,
  num_key_value_heads: dimension,
  head_dim: dimension,
  swa_head_dim: dimension,
  swa_num_attention_heads: dimension.optional(),
  swa_num_key_value_heads: dimension.optional(),
  sliding_window_size: dimension,
  local_layer_ids: z.array(z.int().nonnegative()),
  d_rel: dimension,
  rel_extent: dimension,
  log_scaling_n_floor: z.number().positive(),
  log_scaling_alpha: z.number(),
  use_sconv: z.literal(true),
  sconv_kernel_size: dimension,
  dense_mlp_idx: z.int().nonnegative(),
  dense_intermediate_size: dimension,
  intermediate_size: dimension,
  n_routed_experts: dimension,
  num_experts_per_tok: dimension,
  n_shared_experts: dimension,
  gate_activation: z.literal("sigmoid"),
  use_gate_bias: z.literal(true),
  norm_after_topk: z.literal(true),
  use_global_scale: z.literal(true),
  shared_expert_sink: z.literal(true),
  use_embed_norm: z.literal(true),
  route_scale: z.number().positive(),
  logits_mup_width_multiplier: z.number().positive(),
  final_logit_softcapping: z.null().optional(),
  hidden_act: z.literal("silu").optional(),
  tie_word_embeddings: z.literal(false).optional(),
});
const rootSchema = z.object({ text_config: z.record(z.string(), z.unknown()) });
type Text = z.output<typeof textSchema>;

/**
 * Parses and checks config.json.
 *
 * @throws MferenceError "format.config" naming the key
 */
export function parseConfig(json: JsonValue): InklingConfig {
  const root = checkJson(json, rootSchema, { code: "format.config", what: "config.json" });
  const what = "config.json: text_config";
  const text = checkJson(root.text_config, textSchema, { code: "format.config", what });
  checkText(text);
  const local = new Set(text.local_layer_ids);
  return {
    vocabSize: text.vocab_size,
    unpaddedVocabSize: text.unpadded_vocab_size,
    hiddenSize: text.hidden_size,
    layerKinds: Array.from({ length: text.num_hidden_layers }, (_, layer) =>
      local.has(layer) ? "sliding" : "full",
    ),
    numAttentionHeads: text.num_attention_heads,
    numKeyValueHeads: text.num_key_value_heads,
    headDim: text.head_dim,
    slidingWindow: text.sliding_window_size,
    relationDim: text.d_rel,
    relationExtent: text.rel_extent,
    logScalingFloor: text.log_scaling_n_floor,
    logScalingAlpha: text.log_scaling_alpha,
    convKernel: text.sconv_kernel_size,
    denseLayers: text.dense_mlp_idx,
    denseIntermediateSize: text.dense_intermediate_size,
    expertIntermediateSize: text.intermediate_size,
    numExperts: text.n_routed_experts,
    topKExperts: text.num_experts_per_tok,
    sharedExperts: text.n_shared_experts,
    routeScale: text.route_scale,
    logitsWidthMultiplier: text.logits_mup_width_multiplier,
  };
}

function checkText(text: Text): void {
  const { num_hidden_layers: layers, num_attention_heads: heads } = text;
  const outside = text.local_layer_ids.find((layer) => layer >= layers);
  if (outside !== undefined) fail(`local_layer_ids holds ${outside}, of ${layers} layers`);
  if (text.swa_head_dim !== text.head_dim) fail("swa_head_dim differs from head_dim");
  const isSame =
    (text.swa_num_attention_heads ?? heads) === heads &&
    (text.swa_num_key_value_heads ?? text.num_key_value_heads) === text.num_key_value_heads;
  if (!isSame) fail("sliding layers have other numbers of heads than full ones");
  if (text.dense_mlp_idx > layers) fail(`dense_mlp_idx is ${text.dense_mlp_idx}, of ${layers}`);
  if (text.unpadded_vocab_size > text.vocab_size) fail("unpadded_vocab_size exceeds vocab_size");
  if (text.num_experts_per_tok > text.n_routed_experts) {
    fail(`num_experts_per_tok is ${text.num_experts_per_tok}, of ${text.n_routed_experts} experts`);
  }
}

function fail(problem: string): never {
  throw new MferenceError("format.config", `config.json: ${problem}`);
}

/** The architecture fields of a manifest. */
export function archOf(config: InklingConfig): Arch {
  return {
    hiddenSize: config.hiddenSize,
    ffnIntermediate: config.expertIntermediateSize,
    moeIntermediateSize: config.expertIntermediateSize,
    numHeads: config.numAttentionHeads,
    numKVHeads: config.numKeyValueHeads,
    numFullKVHeads: config.numKeyValueHeads,
    headDim: config.headDim,
    fullHeadDim: config.headDim,
    vocabSize: config.vocabSize,
    slidingWindow: config.slidingWindow,
    finalLogitSoftcap: 0,
    ropeTheta: 0,
    fullRopeTheta: 0,
    partialRotaryFactor: 0,
    numLayers: config.layerKinds.length,
    numExperts: config.numExperts,
    topKExperts: config.topKExperts,
    tieWordEmbeddings: false,
    attentionKEqV: false,
    hiddenActivation: "silu",
    fullAttentionLayerMask: config.layerKinds.map((kind) => (kind === "full" ? 1 : 0)),
    ...extensionsOf(config),
  };
}

function extensionsOf(config: InklingConfig): Record<string, unknown> {
  return {
    family: "inklingSmall",
    attnOutputGate: false,
    // By the head's width and not by its root.
    attentionScale: 1 / config.headDim,
    embeddingScaledBySqrtHidden: false,
    routerScaled: false,
    ffnSandwichNorms: false,
    sharedExpertGated: false,
    ropeNeoxSubdim: false,
    linearNumKHeads: 0,
    linearNumVHeads: 0,
    linearKeyHeadDim: 0,
    linearValueHeadDim: 0,
    linearConvKernelSize: 0,
    routerScoringFunc: "sigmoid",
    routedScalingFactor: config.routeScale,
    relDRel: config.relationDim,
    relExtent: config.relationExtent,
    relProjDim: config.numAttentionHeads * config.relationDim,
    relLogScalingFloor: config.logScalingFloor,
    relLogScalingAlpha: config.logScalingAlpha,
    sconvKernelSize: config.convKernel,
    denseIntermediateSize: config.denseIntermediateSize,
    unpaddedVocabSize: config.unpaddedVocabSize,
    numSharedExperts: config.sharedExperts,
    numDenseLayers: config.denseLayers,
    sharedExpertSink: true,
    embedNormEnabled: true,
    routerGateBias: true,
    routerGlobalScale: true,
    routerNormAfterTopK: true,
    logitsWidthMultiplier: config.logitsWidthMultiplier,
  };
}

/** The released 276B. */
export const ARCH_276B: Arch = archOf({
  vocabSize: 201_024,
  unpaddedVocabSize: 200_058,
  hiddenSize: 4096,
  layerKinds: Array.from({ length: 42 }, (_, layer) => (layer % 6 === 5 ? "full" : "sliding")),
  numAttentionHeads: 32,
  numKeyValueHeads: 8,
  headDim: 128,
  slidingWindow: 512,
  relationDim: 16,
  relationExtent: 1024,
  logScalingFloor: 128_000,
  logScalingAlpha: 0.1,
  convKernel: 4,
  denseLayers: 2,
  denseIntermediateSize: 16_384,
  expertIntermediateSize: 2048,
  numExperts: 256,
  topKExperts: 6,
  sharedExperts: 2,
  routeScale: 8,
  logitsWidthMultiplier: 16,
});
