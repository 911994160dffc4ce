import { z } from "zod";
import { MferenceError } from "../../util/errors.ts";
import { checkJson, type JsonValue } from "../../format/json.ts";
import type { Arch } from "../../format/manifest.ts";
import type { Quantization } from "../../format/quant.ts";

/**
 * `config.json` of a Maple checkpoint, as far as its tensors and its manifest need it. Its quantization
 * block speaks of two bits in groups of 128, but what it means are ternary rows.
 */
export interface MapleConfig {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly layerKinds: readonly ("sliding" | "full")[];
  readonly numAttentionHeads: number;
  readonly numKeyValueHeads: number;
  readonly headDim: number;
  readonly slidingWindow: number;
  readonly ropeTheta: number;
  readonly partialRotaryFactor: number;
  readonly numExperts: number;
  readonly topKExperts: number;
  readonly moeIntermediateSize: number;
  readonly flashHead: FlashHead | undefined;
}

/** The approximate head: the vocabulary in clusters, of which the likeliest are looked at. */
export interface FlashHead {
  readonly nClusters: number;
  readonly clusterSize: number;
  readonly nProbes: number;
  readonly groupSize: number;
  readonly bits: number;
  readonly headGroupSize: number;
  readonly headBits: number;
  readonly scaledCentroids: boolean;
  readonly forceTokens: readonly number[];
}

/** No real dimension comes near; keeps every product of a few of them exact. */
const DIMENSION_MAX = 1 << 24;
const LAYERS_MAX = 1024;
const dimension = z.int().min(1).max(DIMENSION_MAX);
/** A constant of the reference, which no configuration names. */
const SWIGLU_LIMIT = 7;

const flashHeadSchema = z.object({
  n_clusters: dimension,
  cluster_size: dimension,
  n_probes: dimension,
  bits: z.literal(4),
  group_size: z.literal(64),
  head_bits: z.literal(4),
  head_group_size: z.literal(64),
  scaled_centroids: z.literal(true),
  force_tokens: z.array(z.int().nonnegative()),
});
const schema = z.object({
  vocab_size: dimension,
  hidden_size: dimension,
  num_hidden_layers: z.int().min(1).max(LAYERS_MAX),
  num_attention_heads: dimension,
  num_key_value_heads: dimension,
  head_dim: dimension,
  layer_types: z.array(z.enum(["sliding_attention", "full_attention"])),
  sliding_window: dimension,
  rope_theta: z.number().positive(),
  partial_rotary_factor: z.number().positive().max(1),
  use_qk_norm: z.literal(true),
  use_bias: z.literal(false),
  use_rmsnorm: z.literal(true),
  rms_norm_eps: z.literal(1e-6),
  hidden_act: z.literal("silu"),
  num_experts: dimension,
  num_experts_per_tok: dimension,
  moe_intermediate_size: dimension,
  first_k_dense_replace: z.literal(0).optional(),
  num_shared_experts: z.literal(0).optional(),
  norm_topk_prob: z.literal(true),
  router_dtype: z.literal("fp32"),
  max_position_embeddings: z.literal(128_000),
  tie_word_embeddings: z.literal(false),
  flash_head: flashHeadSchema.optional(),
});
type Parsed = z.output<typeof schema>;

const override = z.strictObject({ bits: z.literal(4), group_size: z.literal(64) });
const quantizationSchema = z.object({
  quantization: z.strictObject({
    bits: z.literal(2),
    group_size: z.literal(128),
    mode: z.literal("affine"),
    "model.word_embeddings": override,
    lm_head: override,
  }),
});

/**
 * Parses and checks config.json.
 *
 * @throws MferenceError "format.config" naming the key
 */
export function parseConfig(json: JsonValue): MapleConfig {
  const parsed = checkJson(json, schema, { code: "format.config", what: "config.json" });
  const { layer_types: types, num_hidden_layers: layers } = parsed;
  if (types.length !== layers) fail(`layer_types has ${types.length} entries for ${layers} layers`);
  const layerKinds = types.map((type, layer) => {
    const kind = type === "full_attention" ? "full" : "sliding";
    if ((kind === "full") !== (layer % 4 === 3)) {
      fail(`layer ${layer} is a ${type} layer; every fourth is full, and no other`);
    }
    return kind;
  });
  if (parsed.num_experts_per_tok > parsed.num_experts) {
    fail(`num_experts_per_tok is ${parsed.num_experts_per_tok}, of ${parsed.num_experts} experts`);
  }
  return {
    vocabSize: parsed.vocab_size,
    hiddenSize: parsed.hidden_size,
    layerKinds,
    numAttentionHeads: parsed.num_attention_heads,
    numKeyValueHeads: parsed.num_key_value_heads,
    headDim: parsed.head_dim,
    slidingWindow: parsed.sliding_window,
    ropeTheta: parsed.rope_theta,
    partialRotaryFactor: parsed.partial_rotary_factor,
    numExperts: parsed.num_experts,
    topKExperts: parsed.num_experts_per_tok,
    moeIntermediateSize: parsed.moe_intermediate_size,
    flashHead: flashHeadOf(parsed),
  };
}

function flashHeadOf({ flash_head: head, vocab_size: vocabSize }: Parsed): FlashHead | undefined {
  if (head === undefined) return undefined;
  const { n_clusters: nClusters, cluster_size: clusterSize, n_probes: nProbes } = head;
  if (nClusters * clusterSize !== vocabSize) {
    fail(`flash_head has ${nClusters} clusters of ${clusterSize} for ${vocabSize} tokens`);
  }
  if (nProbes > nClusters) fail(`flash_head looks at ${nProbes} of ${nClusters} clusters`);
  const { force_tokens: forceTokens } = head;
  const isFit = forceTokens.every((token) => token < vocabSize);
  if (!isFit || new Set(forceTokens).size !== forceTokens.length) {
    fail("flash_head forces a token twice, or one outside the vocabulary");
  }
  return {
    nClusters,
    clusterSize,
    nProbes,
    groupSize: head.group_size,
    bits: head.bits,
    headGroupSize: head.head_group_size,
    headBits: head.head_bits,
    scaledCentroids: head.scaled_centroids,
    forceTokens,
  };
}

/**
 * The quantization block, which must be just the one of the released checkpoint.
 *
 * @throws MferenceError "format.config"
 */
export function parseQuantization(json: JsonValue): Quantization {
  checkJson(json, quantizationSchema, { code: "format.config", what: "config.json" });
  const spec = { bits: 4, groupSize: 64 };
  const overrides = new Map([
    ["model.word_embeddings", spec],
    ["lm_head", spec],
    // Only flash_head speaks of these.
    ["lm_head_flash.centroids", spec],
  ]);
  return { bits: 2, groupSize: 64, overrides, declaredCount: 2 };
}

function fail(problem: string): never {
  throw new MferenceError("format.config", `config.json: ${problem}`);
}

/** The architecture fields of a manifest. */
export function archOf(config: MapleConfig): Arch {
  return {
    hiddenSize: config.hiddenSize,
    ffnIntermediate: config.moeIntermediateSize,
    moeIntermediateSize: config.moeIntermediateSize,
    numHeads: config.numAttentionHeads,
    numKVHeads: config.numKeyValueHeads,
    numFullKVHeads: config.numKeyValueHeads,
    headDim: config.headDim,
    fullHeadDim: config.headDim,
    vocabSize: config.vocabSize,
    slidingWindow: config.slidingWindow,
    finalLogitSoftcap: 0,
    ropeTheta: config.ropeTheta,
    // Full layers have no rotation.
    fullRopeTheta: 0,
    partialRotaryFactor: config.partialRotaryFactor,
    numLayers: config.layerKinds.length,
    numExperts: config.numExperts,
    topKExperts: config.topKExperts,
    tieWordEmbeddings: false,
    attentionKEqV: false,
    hiddenActivation: "silu",
    fullAttentionLayerMask: config.layerKinds.map((kind) => (kind === "full" ? 1 : 0)),
    family: "maple",
    attnOutputGate: false,
    attentionScale: 1 / Math.sqrt(config.headDim),
    embeddingScaledBySqrtHidden: false,
    routerScaled: false,
    ffnSandwichNorms: false,
    sharedExpertGated: false,
    ropeNeoxSubdim: true,
    linearNumKHeads: 0,
    linearNumVHeads: 0,
    linearKeyHeadDim: 0,
    linearValueHeadDim: 0,
    linearConvKernelSize: 0,
    routerScoringFunc: "softmax",
    routedScalingFactor: 1,
    swigluLimit: SWIGLU_LIMIT,
    numSharedExperts: 0,
    numDenseLayers: 0,
    routerNormAfterTopK: true,
  };
}

/** The released preview of 20B. */
export const ARCH_20B: Arch = archOf({
  vocabSize: 151_936,
  hiddenSize: 2048,
  layerKinds: Array.from({ length: 24 }, (_, layer) => (layer % 4 === 3 ? "full" : "sliding")),
  numAttentionHeads: 16,
  numKeyValueHeads: 4,
  headDim: 128,
  slidingWindow: 512,
  ropeTheta: 10_000,
  partialRotaryFactor: 0.5,
  numExperts: 256,
  topKExperts: 8,
  moeIntermediateSize: 512,
  flashHead: undefined,
});
