import { z } from "zod";
import { MferenceError } from "../../util/errors.ts";
import { checkJson, type JsonValue } from "../../format/json.ts";
import type { Arch } from "../../format/manifest.ts";
import type { Heads } from "../../ops/ops.ts";
import type { ModelShape } from "../family.ts";

/**
 * `config.json` of a Gemma 4 mixture-of-experts checkpoint. No dimension and no flag has a default:
 * the defaults of the published libraries are wrong for this model, so a missing key is an error, and
 * so is any value that the forward pass does not implement.
 */
export type LayerKind = "sliding" | "full";

export interface Gemma4Config {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  /** Width of the dense branch. */
  readonly intermediateSize: number;
  readonly moeIntermediateSize: number;
  readonly numHiddenLayers: number;
  readonly layerKinds: readonly LayerKind[];
  readonly numAttentionHeads: number;
  /** Sliding layers. */
  readonly numKeyValueHeads: number;
  /** Full layers. */
  readonly numGlobalKeyValueHeads: number;
  /** Sliding layers. */
  readonly headDim: number;
  /** Full layers. */
  readonly globalHeadDim: number;
  /** Positions that a sliding layer sees, the current one included. */
  readonly slidingWindow: number;
  readonly slidingRopeTheta: number;
  readonly fullRopeTheta: number;
  /** Part of a full layer's head that rotates. */
  readonly fullPartialRotaryFactor: number;
  readonly rmsNormEps: number;
  readonly finalLogitSoftcapping: number;
  readonly numExperts: number;
  readonly topKExperts: number;
  readonly hiddenActivation: "gelu_pytorch_tanh";
  readonly maxPositionEmbeddings: number;
  readonly bosTokenId: number;
  readonly padTokenId: number;
  readonly eosTokenIds: readonly number[];
}

/** No real dimension comes near; keeps every product of a few of them exact. */
const DIMENSION_MAX = 1 << 24;
const LAYERS_MAX = 1024;
const GROUP = 64;

const dimension = z.int().min(1).max(DIMENSION_MAX);
const tokenIds = z.union([z.int().nonnegative(), z.array(z.int().nonnegative()).min(1)]);
const textSchema = z.object({
  vocab_size: dimension,
  hidden_size: dimension,
  intermediate_size: dimension,
  moe_intermediate_size: dimension,
  num_hidden_layers: z.int().min(1).max(LAYERS_MAX),
  layer_types: z.array(z.enum(["sliding_attention", "full_attention"])),
  num_attention_heads: dimension,
  num_key_value_heads: dimension,
  num_global_key_value_heads: dimension,
  head_dim: dimension,
  global_head_dim: dimension,
  sliding_window: dimension,
  rope_parameters: z.object({
    sliding_attention: z.object({
      rope_type: z.literal("default"),
      rope_theta: z.number().positive(),
      partial_rotary_factor: z.literal(1).optional(),
    }),
    full_attention: z.object({
      rope_type: z.literal("proportional"),
      rope_theta: z.number().positive(),
      partial_rotary_factor: z.number().positive().max(1),
    }),
  }),
  rms_norm_eps: z.number().positive(),
  final_logit_softcapping: z.number().positive(),
  enable_moe_block: z.literal(true),
  num_experts: dimension,
  top_k_experts: dimension,
  hidden_activation: z.literal("gelu_pytorch_tanh"),
  attention_k_eq_v: z.literal(true),
  attention_bias: z.literal(false),
  attn_logit_softcapping: z.null().optional(),
  num_kv_shared_layers: z.literal(0),
  hidden_size_per_layer_input: z.literal(0),
  use_double_wide_mlp: z.literal(false),
  use_bidirectional_attention: z.union([z.literal("vision"), z.literal(false), z.null()]),
  tie_word_embeddings: z.literal(true).optional(),
  max_position_embeddings: dimension,
  bos_token_id: z.int().nonnegative().optional(),
  pad_token_id: z.int().nonnegative().optional(),
  eos_token_id: tokenIds.optional(),
});
const rootSchema = z.object({
  model_type: z.string(),
  text_config: z.record(z.string(), z.unknown()),
  tie_word_embeddings: z.literal(true).optional(),
  bos_token_id: z.int().nonnegative().optional(),
  pad_token_id: z.int().nonnegative().optional(),
  eos_token_id: tokenIds.optional(),
});

type Text = z.output<typeof textSchema>;
type Root = z.output<typeof rootSchema>;

/**
 * Parses and checks config.json.
 *
 * @throws MferenceError "format.config" naming the key
 */
export function parseConfig(json: JsonValue): Gemma4Config {
  const root = checkJson(json, rootSchema, { code: "format.config", what: "config.json" });
  const text = checkJson(root.text_config, textSchema, {
    code: "format.config",
    what: "config.json: text_config",
  });
  if (text.tie_word_embeddings === undefined && root.tie_word_embeddings === undefined) {
    fail("tie_word_embeddings is missing");
  }
  const config: Gemma4Config = {
    vocabSize: text.vocab_size,
    hiddenSize: text.hidden_size,
    intermediateSize: text.intermediate_size,
    moeIntermediateSize: text.moe_intermediate_size,
    numHiddenLayers: text.num_hidden_layers,
    layerKinds: text.layer_types.map((type) => (type === "full_attention" ? "full" : "sliding")),
    numAttentionHeads: text.num_attention_heads,
    numKeyValueHeads: text.num_key_value_heads,
    numGlobalKeyValueHeads: text.num_global_key_value_heads,
    headDim: text.head_dim,
    globalHeadDim: text.global_head_dim,
    slidingWindow: text.sliding_window,
    slidingRopeTheta: text.rope_parameters.sliding_attention.rope_theta,
    fullRopeTheta: text.rope_parameters.full_attention.rope_theta,
    fullPartialRotaryFactor: text.rope_parameters.full_attention.partial_rotary_factor,
    rmsNormEps: text.rms_norm_eps,
    finalLogitSoftcapping: text.final_logit_softcapping,
    numExperts: text.num_experts,
    topKExperts: text.top_k_experts,
    hiddenActivation: text.hidden_activation,
    maxPositionEmbeddings: text.max_position_embeddings,
    ...tokens(text, root),
  };
  checkDimensions(config);
  return config;
}

/** The root of config.json governs; text_config may know fewer stop ids. */
function tokens(
  text: Text,
  root: Root,
): Pick<Gemma4Config, "bosTokenId" | "padTokenId" | "eosTokenIds"> {
  const bos = root.bos_token_id ?? text.bos_token_id;
  const pad = root.pad_token_id ?? text.pad_token_id;
  const eos = root.eos_token_id ?? text.eos_token_id;
  if (bos === undefined) return fail("bos_token_id is missing");
  if (pad === undefined) return fail("pad_token_id is missing");
  if (eos === undefined) return fail("eos_token_id is missing");
  const ids = typeof eos === "number" ? [eos] : eos;
  const outside = [bos, pad, ...ids].find((id) => id >= text.vocab_size);
  if (outside !== undefined)
    fail(`token ${outside} is outside the vocabulary of ${text.vocab_size}`);
  return { bosTokenId: bos, padTokenId: pad, eosTokenIds: ids };
}

function checkDimensions(config: Gemma4Config): void {
  if (config.layerKinds.length !== config.numHiddenLayers) {
    fail(
      `layer_types has ${config.layerKinds.length} entries for ${config.numHiddenLayers} layers`,
    );
  }
  if (config.layerKinds.at(-1) !== "full") fail("the last layer must be a full_attention layer");
  if (config.topKExperts > config.numExperts) {
    fail(`top_k_experts is ${config.topKExperts}, more than the ${config.numExperts} experts`);
  }
  for (const heads of [config.numKeyValueHeads, config.numGlobalKeyValueHeads]) {
    if (config.numAttentionHeads % heads === 0) continue;
    fail(`${config.numAttentionHeads} attention heads cannot share ${heads} key and value heads`);
  }
  if (config.headDim % 2 !== 0 || config.globalHeadDim % 2 !== 0) fail("a head dimension is odd");
  const columns = {
    hidden_size: config.hiddenSize,
    intermediate_size: config.intermediateSize,
    moe_intermediate_size: config.moeIntermediateSize,
    "num_attention_heads * head_dim": config.numAttentionHeads * config.headDim,
    "num_attention_heads * global_head_dim": config.numAttentionHeads * config.globalHeadDim,
  };
  for (const [name, size] of Object.entries(columns)) {
    if (size % GROUP !== 0) fail(`${name} is ${size}, not a multiple of the group of ${GROUP}`);
  }
}

function fail(problem: string): never {
  throw new MferenceError("format.config", `config.json: ${problem}`);
}

/** The heads of a layer kind. */
export function headsOf(config: Gemma4Config, kind: LayerKind): Heads {
  const queryHeads = config.numAttentionHeads;
  return kind === "full"
    ? { queryHeads, kvHeads: config.numGlobalKeyValueHeads, headDim: config.globalHeadDim }
    : { queryHeads, kvHeads: config.numKeyValueHeads, headDim: config.headDim };
}

/**
 * Angle per position of each rotary pair: component i pairs with i + Dh / 2. A full layer's exponent
 * runs over the whole head although only its first pairs rotate; the others get the angle 0, which
 * leaves them as they are.
 *
 * Source: transformers, modeling_rope_utils.py, "proportional".
 *
 * @returns `[Dh / 2]` float32
 */
export function ropeFrequencies(config: Gemma4Config, kind: LayerKind): Float32Array {
  const { headDim } = headsOf(config, kind);
  const theta = kind === "full" ? config.fullRopeTheta : config.slidingRopeTheta;
  const rotating = kind === "full" ? config.fullPartialRotaryFactor : 1;
  const pairs = Math.floor((rotating * headDim) / 2);
  const frequencies = new Float32Array(headDim / 2);
  for (let pair = 0; pair < pairs; pair += 1) frequencies[pair] = theta ** ((-2 * pair) / headDim);
  return frequencies;
}

/** What the engine sizes its memory by. */
export function shapeOf(config: Gemma4Config): ModelShape {
  return {
    vocabSize: config.vocabSize,
    hiddenSize: config.hiddenSize,
    contextMax: config.maxPositionEmbeddings,
    kvLayers: config.layerKinds.map((kind) => {
      const { kvHeads, headDim } = headsOf(config, kind);
      return { kvHeads, headDim, window: kind === "sliding" ? config.slidingWindow : 0 };
    }),
    expertWidth: config.moeIntermediateSize,
    expertCount: config.numExperts,
    expertsPerToken: config.topKExperts,
    activation: "geluTanh",
    finalSoftcap: config.finalLogitSoftcapping,
    stopIds: config.eosTokenIds,
    bosId: config.bosTokenId,
  };
}

/** The architecture fields of a manifest. */
export function archOf(config: Gemma4Config): Arch {
  return {
    hiddenSize: config.hiddenSize,
    ffnIntermediate: config.intermediateSize,
    moeIntermediateSize: config.moeIntermediateSize,
    numHeads: config.numAttentionHeads,
    numKVHeads: config.numKeyValueHeads,
    numFullKVHeads: config.numGlobalKeyValueHeads,
    headDim: config.headDim,
    fullHeadDim: config.globalHeadDim,
    vocabSize: config.vocabSize,
    slidingWindow: config.slidingWindow,
    finalLogitSoftcap: config.finalLogitSoftcapping,
    ropeTheta: config.slidingRopeTheta,
    fullRopeTheta: config.fullRopeTheta,
    partialRotaryFactor: config.fullPartialRotaryFactor,
    numLayers: config.numHiddenLayers,
    numExperts: config.numExperts,
    topKExperts: config.topKExperts,
    tieWordEmbeddings: true,
    attentionKEqV: true,
    hiddenActivation: config.hiddenActivation,
    fullAttentionLayerMask: config.layerKinds.map((type) => (type === "full" ? 1 : 0)),
  };
}

/** The released 26B-A4B. */
export const ARCH_26B: Arch = {
  hiddenSize: 2816,
  ffnIntermediate: 2112,
  moeIntermediateSize: 704,
  numHeads: 16,
  numKVHeads: 8,
  numFullKVHeads: 2,
  headDim: 256,
  fullHeadDim: 512,
  vocabSize: 262_144,
  slidingWindow: 1024,
  finalLogitSoftcap: 30,
  ropeTheta: 10_000,
  fullRopeTheta: 1_000_000,
  partialRotaryFactor: 0.25,
  numLayers: 30,
  numExperts: 128,
  topKExperts: 8,
  tieWordEmbeddings: true,
  attentionKEqV: true,
  hiddenActivation: "gelu_pytorch_tanh",
  fullAttentionLayerMask: Array.from({ length: 30 }, (_, layer) => (layer % 6 === 5 ? 1 : 0)),
};
