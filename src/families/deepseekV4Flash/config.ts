import { z } from "zod";
import { MferenceError } from "../../util/errors.ts";
import { checkJson, type JsonValue } from "../../format/json.ts";
import type { Arch } from "../../format/manifest.ts";

/**
 * `config.json` of a DeepSeek V4 Flash checkpoint, as far as its tensors and its manifest need it. The
 * file is flat: there is no text_config.
 */
export type LayerKind = "sliding" | "sparse" | "heavy";

export interface DeepseekV4Config {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly layerKinds: readonly LayerKind[];
  readonly numAttentionHeads: number;
  readonly headDim: number;
  readonly ropeHeadDim: number;
  readonly partialRotaryFactor: number;
  readonly qLoraRank: number;
  readonly oGroups: number;
  readonly oLoraRank: number;
  readonly slidingWindow: number;
  /** Positions behind one entry of a sparse layer. */
  readonly sparseRate: number;
  readonly heavyRate: number;
  readonly indexHeads: number;
  readonly indexHeadDim: number;
  readonly indexTopK: number;
  readonly ropeTheta: number;
  readonly compressRopeTheta: number;
  readonly ropeScaling: {
    readonly factor: number;
    readonly originalMax: number;
    readonly betaFast: number;
    readonly betaSlow: number;
  };
  /** Parallel streams of the hyper-connections. */
  readonly hcMult: number;
  readonly hcSinkhornIterations: number;
  readonly hcEps: number;
  readonly numExperts: number;
  readonly topKExperts: number;
  readonly moeIntermediateSize: number;
  readonly ffnIntermediate: number;
  readonly routedScalingFactor: number;
  /** Layers at the start whose experts follow from the token alone. */
  readonly hashLayers: number;
  readonly swigluLimit: number;
}

/** No real dimension comes near; keeps every product of a few of them exact. */
const DIMENSION_MAX = 1 << 24;
const LAYERS_MAX = 1024;
const dimension = z.int().min(1).max(DIMENSION_MAX);

const KINDS: Readonly<Record<string, LayerKind>> = {
  sliding_attention: "sliding",
  compressed_sparse_attention: "sparse",
  heavily_compressed_attention: "heavy",
};
const MASK: Readonly<Record<LayerKind, number>> = { sliding: 0, sparse: 3, heavy: 4 };

const schema = z.object({
  vocab_size: dimension,
  hidden_size: dimension,
  num_hidden_layers: z.int().min(1).max(LAYERS_MAX),
  num_attention_heads: dimension,
  num_key_value_heads: z.literal(1),
  head_dim: dimension,
  qk_rope_head_dim: dimension,
  partial_rotary_factor: z.number().positive().max(1).optional(),
  q_lora_rank: dimension,
  o_groups: dimension,
  o_lora_rank: dimension,
  sliding_window: dimension,
  layer_types: z.array(z.enum(Object.keys(KINDS))).optional(),
  compress_ratios: z.array(z.int().nonnegative()).optional(),
  compress_rates: z
    .object({
      compressed_sparse_attention: dimension,
      heavily_compressed_attention: dimension,
    })
    .optional(),
  compress_rate_csa: dimension.optional(),
  compress_rate_hca: dimension.optional(),
  index_n_heads: dimension,
  index_head_dim: dimension,
  index_topk: dimension,
  rope_theta: z.number().positive(),
  compress_rope_theta: z.number().positive(),
  rope_scaling: z.object({
    type: z.literal("yarn").optional(),
    rope_type: z.literal("yarn").optional(),
    factor: z.number().positive(),
    original_max_position_embeddings: dimension,
    beta_fast: z.number().positive().default(32),
    beta_slow: z.number().positive().default(1),
  }),
  hc_mult: dimension,
  hc_sinkhorn_iters: dimension,
  hc_eps: z.number().positive(),
  n_routed_experts: dimension,
  num_experts_per_tok: dimension,
  n_shared_experts: z.literal(1).optional(),
  moe_intermediate_size: dimension,
  intermediate_size: dimension.optional(),
  scoring_func: z.literal("sqrtsoftplus").default("sqrtsoftplus"),
  routed_scaling_factor: z.number().positive(),
  mlp_layer_types: z.array(z.string()).optional(),
  num_hash_layers: z.int().nonnegative().default(3),
  swiglu_limit: z.number().positive(),
  hidden_act: z.literal("silu").optional(),
  tie_word_embeddings: z.literal(false).optional(),
});
type Parsed = z.output<typeof schema>;

/**
 * Parses and checks config.json.
 *
 * @throws MferenceError "format.config" naming the key
 */
export function parseConfig(json: JsonValue): DeepseekV4Config {
  const parsed = checkJson(json, schema, { code: "format.config", what: "config.json" });
  if (parsed.num_experts_per_tok > parsed.n_routed_experts) {
    fail(`num_experts_per_tok is ${parsed.num_experts_per_tok}, of ${parsed.n_routed_experts}`);
  }
  const width = parsed.num_attention_heads * parsed.head_dim;
  if (width % parsed.o_groups !== 0) fail(`${parsed.o_groups} groups cannot share ${width} values`);
  const { rope_scaling: scaling } = parsed;
  if ((scaling.type ?? scaling.rope_type) === undefined) fail("rope_scaling has no type");
  const rates = ratesOf(parsed);
  return {
    vocabSize: parsed.vocab_size,
    hiddenSize: parsed.hidden_size,
    layerKinds: layerKindsOf(parsed, rates),
    numAttentionHeads: parsed.num_attention_heads,
    headDim: parsed.head_dim,
    ropeHeadDim: parsed.qk_rope_head_dim,
    partialRotaryFactor: parsed.partial_rotary_factor ?? parsed.qk_rope_head_dim / parsed.head_dim,
    qLoraRank: parsed.q_lora_rank,
    oGroups: parsed.o_groups,
    oLoraRank: parsed.o_lora_rank,
    slidingWindow: parsed.sliding_window,
    ...rates,
    indexHeads: parsed.index_n_heads,
    indexHeadDim: parsed.index_head_dim,
    indexTopK: parsed.index_topk,
    ropeTheta: parsed.rope_theta,
    compressRopeTheta: parsed.compress_rope_theta,
    ropeScaling: {
      factor: scaling.factor,
      originalMax: scaling.original_max_position_embeddings,
      betaFast: scaling.beta_fast,
      betaSlow: scaling.beta_slow,
    },
    hcMult: parsed.hc_mult,
    hcSinkhornIterations: parsed.hc_sinkhorn_iters,
    hcEps: parsed.hc_eps,
    numExperts: parsed.n_routed_experts,
    topKExperts: parsed.num_experts_per_tok,
    moeIntermediateSize: parsed.moe_intermediate_size,
    ffnIntermediate: parsed.intermediate_size ?? parsed.moe_intermediate_size,
    routedScalingFactor: parsed.routed_scaling_factor,
    hashLayers: hashLayersOf(parsed),
    swigluLimit: parsed.swiglu_limit,
  };
}

function ratesOf(parsed: Parsed): Pick<DeepseekV4Config, "sparseRate" | "heavyRate"> {
  const { compress_rates: rates } = parsed;
  return {
    sparseRate: rates?.compressed_sparse_attention ?? parsed.compress_rate_csa ?? 4,
    heavyRate: rates?.heavily_compressed_attention ?? parsed.compress_rate_hca ?? 128,
  };
}

/** The kinds by name, or by ratio; one ratio for each layer that predicts further tokens trails. */
function layerKindsOf(
  parsed: Parsed,
  { sparseRate, heavyRate }: Pick<DeepseekV4Config, "sparseRate" | "heavyRate">,
): readonly LayerKind[] {
  const { layer_types: types, compress_ratios: ratios, num_hidden_layers: count } = parsed;
  const kinds =
    types?.map((type) => KINDS[type]!) ??
    ratios?.slice(0, count).map((ratio): LayerKind => {
      if (ratio === 0) return "sliding";
      if (ratio === sparseRate) return "sparse";
      if (ratio === heavyRate) return "heavy";
      return fail(`compress_ratios holds ${ratio}; expected 0, ${sparseRate} or ${heavyRate}`);
    });
  if (kinds === undefined) return fail("both layer_types and compress_ratios are missing");
  if (kinds.length !== count) fail(`the kinds of ${kinds.length} layers are given, of ${count}`);
  return kinds;
}

function hashLayersOf({
  mlp_layer_types: types,
  num_hash_layers: count,
  num_hidden_layers,
}: Parsed) {
  const first = types?.findIndex((type) => type !== "hash_moe");
  const found = first === undefined ? count : first === -1 ? num_hidden_layers : first;
  if (found > num_hidden_layers) fail(`num_hash_layers is ${found}, of ${num_hidden_layers}`);
  return found;
}

function fail(problem: string): never {
  throw new MferenceError("format.config", `config.json: ${problem}`);
}

/** The architecture fields of a manifest. */
export function archOf(config: DeepseekV4Config): Arch {
  return {
    hiddenSize: config.hiddenSize,
    ffnIntermediate: config.ffnIntermediate,
    moeIntermediateSize: config.moeIntermediateSize,
    numHeads: config.numAttentionHeads,
    numKVHeads: 1,
    numFullKVHeads: 1,
    headDim: config.headDim,
    fullHeadDim: config.headDim,
    vocabSize: config.vocabSize,
    slidingWindow: config.slidingWindow,
    finalLogitSoftcap: 0,
    ropeTheta: config.ropeTheta,
    fullRopeTheta: config.ropeTheta,
    partialRotaryFactor: config.partialRotaryFactor,
    numLayers: config.layerKinds.length,
    numExperts: config.numExperts,
    topKExperts: config.topKExperts,
    tieWordEmbeddings: false,
    attentionKEqV: true,
    hiddenActivation: "silu",
    fullAttentionLayerMask: config.layerKinds.map((kind) => MASK[kind]),
    ...extensionsOf(config),
  };
}

function extensionsOf(config: DeepseekV4Config): Record<string, unknown> {
  const { ropeScaling } = config;
  return {
    family: "deepseekV4Flash",
    attnOutputGate: false,
    attentionScale: 1 / Math.sqrt(config.headDim),
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
    caQLoraRank: config.qLoraRank,
    caOLoraRank: config.oLoraRank,
    caOGroups: config.oGroups,
    caRopeHeadDim: config.ropeHeadDim,
    caIndexNHeads: config.indexHeads,
    caIndexHeadDim: config.indexHeadDim,
    caIndexTopK: config.indexTopK,
    caCSACompressRate: config.sparseRate,
    caHCACompressRate: config.heavyRate,
    caCompressRopeTheta: config.compressRopeTheta,
    caRopeScalingFactor: ropeScaling.factor,
    caRopeScalingOriginalMax: ropeScaling.originalMax,
    caRopeScalingBetaFast: ropeScaling.betaFast,
    caRopeScalingBetaSlow: ropeScaling.betaSlow,
    hcMult: config.hcMult,
    hcSinkhornIters: config.hcSinkhornIterations,
    hcEps: config.hcEps,
    numHashRoutedLayers: config.hashLayers,
    routerScoringFunc: "sqrtsoftplus",
    routedScalingFactor: config.routedScalingFactor,
    swigluLimit: config.swigluLimit,
  };
}

/** The released 284B. */
export const ARCH_284B: Arch = archOf({
  vocabSize: 129_280,
  hiddenSize: 4096,
  layerKinds: Array.from({ length: 43 }, (_, layer) => {
    if (layer < 2) return "sliding";
    return layer % 2 === 0 ? "sparse" : "heavy";
  }),
  numAttentionHeads: 64,
  headDim: 512,
  ropeHeadDim: 64,
  partialRotaryFactor: 0.125,
  qLoraRank: 1024,
  oGroups: 8,
  oLoraRank: 1024,
  slidingWindow: 128,
  sparseRate: 4,
  heavyRate: 128,
  indexHeads: 64,
  indexHeadDim: 128,
  indexTopK: 512,
  ropeTheta: 10_000,
  compressRopeTheta: 160_000,
  ropeScaling: { factor: 16, originalMax: 65_536, betaFast: 32, betaSlow: 1 },
  hcMult: 4,
  hcSinkhornIterations: 20,
  hcEps: 1e-6,
  numExperts: 256,
  topKExperts: 6,
  moeIntermediateSize: 2048,
  ffnIntermediate: 2048,
  routedScalingFactor: 1.5,
  hashLayers: 3,
  swigluLimit: 10,
});
