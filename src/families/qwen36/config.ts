import { z } from "zod";
import { MferenceError } from "../../util/errors.ts";
import { checkJson, type JsonValue } from "../../format/json.ts";
import type { Arch } from "../../format/manifest.ts";
import type { ModelShape } from "../family.ts";

/**
 * `config.json` of a Qwen 3.6 mixture-of-experts checkpoint. No dimension has a default, and a value that
 * the forward pass does not implement is an error.
 */
export type LayerKind = "linear" | "full";

export interface Qwen36Config {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly layerKinds: readonly LayerKind[];
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
  readonly rmsNormEps: number;
  readonly maxPositionEmbeddings: number;
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
  num_hidden_layers: z.int().min(1).max(LAYERS_MAX),
  layer_types: z.array(z.enum(["linear_attention", "full_attention"])),
  num_attention_heads: dimension,
  num_key_value_heads: dimension,
  head_dim: dimension,
  attn_output_gate: z.literal(true),
  attention_bias: z.literal(false).optional(),
  hidden_act: z.literal("silu"),
  full_attention_interval: z.int().positive().optional(),
  rope_parameters: z.object({
    rope_type: z.literal("default").optional(),
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
  norm_topk_prob: z.literal(true).optional(),
  // Of the delta rule's output norm, not of attention's gate, which is a sigmoid.
  output_gate_type: z.enum(["swish", "silu"]).optional(),
  rms_norm_eps: z.number().positive(),
  max_position_embeddings: dimension,
  eos_token_id: tokenIds.optional(),
  tie_word_embeddings: z.literal(false).optional(),
});
const rootSchema = z.object({
  text_config: z.record(z.string(), z.unknown()),
  eos_token_id: tokenIds.optional(),
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
  // The root of config.json governs; text_config may know fewer stop ids.
  const eos = root.eos_token_id ?? text.eos_token_id ?? fail("eos_token_id is missing");
  const config: Qwen36Config = {
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
    rmsNormEps: text.rms_norm_eps,
    maxPositionEmbeddings: text.max_position_embeddings,
    eosTokenIds: typeof eos === "number" ? [eos] : eos,
  };
  checkLayers(config, text);
  checkHeads(config);
  return config;
}

function checkLayers({ layerKinds }: Qwen36Config, text: z.output<typeof textSchema>): void {
  if (layerKinds.length !== text.num_hidden_layers) {
    fail(`layer_types has ${layerKinds.length} entries for ${text.num_hidden_layers} layers`);
  }
  const { full_attention_interval: interval } = text;
  if (interval === undefined) return;
  const odd = layerKinds.findIndex(
    (kind, layer) => (kind === "full") !== ((layer + 1) % interval === 0),
  );
  if (odd >= 0)
    fail(`layer_types and full_attention_interval ${interval} disagree on layer ${odd}`);
}

function checkHeads(config: Qwen36Config): void {
  const { topKExperts, numExperts, eosTokenIds, vocabSize } = config;
  if (topKExperts > numExperts) {
    fail(`num_experts_per_tok is ${topKExperts}, of ${numExperts} experts`);
  }
  const outside = eosTokenIds.find((id) => id >= vocabSize);
  if (outside !== undefined) fail(`token ${outside} is outside the vocabulary of ${vocabSize}`);
  const shared = [
    [config.numAttentionHeads, config.numKeyValueHeads, "attention"],
    [config.linearValueHeads, config.linearKeyHeads, "linear value"],
  ] as const;
  for (const [heads, keys, name] of shared) {
    if (heads % keys !== 0) fail(`${heads} ${name} heads cannot share ${keys} key heads`);
  }
  if (config.headDim % 16 !== 0) fail(`head_dim is ${config.headDim}, not a multiple of 16`);
  const { linearKeyHeadDim, linearValueHeadDim } = config;
  if (linearKeyHeadDim % 16 !== 0 || linearValueHeadDim % 4 !== 0) {
    fail(
      `linear heads of ${linearKeyHeadDim} and ${linearValueHeadDim}; expected multiples of 16 and 4`,
    );
  }
  if (rotaryPairs(config) < 1) fail("no component of a head rotates");
  const columns = {
    hidden_size: config.hiddenSize,
    moe_intermediate_size: config.moeIntermediateSize,
    shared_expert_intermediate_size: config.sharedIntermediateSize,
    "num_attention_heads * head_dim": config.numAttentionHeads * config.headDim,
    "linear_num_value_heads * linear_value_head_dim": valueWidth(config),
  };
  for (const [name, size] of Object.entries(columns)) {
    if (size % GROUP !== 0) fail(`${name} is ${size}, not a multiple of the group of ${GROUP}`);
  }
}

/** Pairs of a head that rotate: the leading components only. */
export const rotaryPairs = ({ headDim, partialRotaryFactor }: Qwen36Config): number =>
  Math.floor((headDim * partialRotaryFactor) / 2);

/**
 * Angle per position of each rotary pair; the exponent runs over the rotating components only.
 *
 * @returns `[N]` float32
 */
export function ropeFrequencies(config: Qwen36Config): Float32Array {
  const pairs = rotaryPairs(config);
  return Float32Array.from({ length: pairs }, (_, pair) => config.ropeTheta ** (-pair / pairs));
}

/** Width of all linear keys, and of all linear values. */
export const keyWidth = (config: Qwen36Config): number =>
  config.linearKeyHeads * config.linearKeyHeadDim;
export const valueWidth = (config: Qwen36Config): number =>
  config.linearValueHeads * config.linearValueHeadDim;
/** Channels of the convolution: queries, keys, values. */
export const channels = (config: Qwen36Config): number => 2 * keyWidth(config) + valueWidth(config);

/** What the engine sizes its memory by. */
export function shapeOf(config: Qwen36Config): ModelShape {
  const kv = { kvHeads: config.numKeyValueHeads, headDim: config.headDim };
  const recurrent = {
    tailRows: config.linearConvKernel - 1,
    channels: channels(config),
    heads: config.linearValueHeads,
    valueDim: config.linearValueHeadDim,
    keyDim: config.linearKeyHeadDim,
  };
  return {
    vocabSize: config.vocabSize,
    hiddenSize: config.hiddenSize,
    contextMax: config.maxPositionEmbeddings,
    kvLayers: config.layerKinds.map((kind) => (kind === "full" ? kv : undefined)),
    recurrentLayers: config.layerKinds.map((kind) => (kind === "linear" ? recurrent : undefined)),
    expertWidth: config.moeIntermediateSize,
    expertCount: config.numExperts,
    expertsPerToken: config.topKExperts,
    activation: "silu",
    finalSoftcap: 0,
    stopIds: config.eosTokenIds,
    bosId: undefined,
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
  rmsNormEps: 1e-6,
  maxPositionEmbeddings: 262_144,
  eosTokenIds: [248_046, 248_044],
});
