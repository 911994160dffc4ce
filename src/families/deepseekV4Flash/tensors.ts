import { tableRole, type FamilyTensors, type ResidentSpec, type RoleTable } from "../family.ts";
import type { DeepseekV4Config } from "./config.ts";

/**
 * The tensors of a DeepSeek V4 Flash checkpoint: what each name is for, in which order the common file
 * holds them, and which shapes they must have.
 */
const TABLE: RoleTable = {
  dropped: ["vision_tower.", "embed_vision.", "audio_tower.", "model.visual.", "model.audio."],
  text: ["model.", "lm_head."],
  embedding: ["model.embed_tokens.weight"],
  norm: "model.norm.weight",
  head: "lm_head.weight",
  layers: "model.layers.",
  experts: ".ffn.switch_mlp.",
  order: [
    "attn.wq_a.weight",
    "attn.q_norm.weight",
    "attn.wq_b.weight",
    "attn.wkv.weight",
    "attn.kv_norm.weight",
    "attn.attn_sink",
    "attn.wo_a.weight",
    "attn.wo_b.weight",
    "attn.compressor.wkv.weight",
    "attn.compressor.wgate.weight",
    "attn.compressor.norm.weight",
    "attn.compressor.ape",
    "attn.indexer.compressor.wkv.weight",
    "attn.indexer.compressor.wgate.weight",
    "attn.indexer.compressor.norm.weight",
    "attn.indexer.compressor.ape",
    "attn.indexer.wq_b.weight",
    "attn.indexer.weights_proj.weight",
    "ffn.gate.weight",
    "ffn.gate.e_score_correction_bias",
    "ffn.gate.tid2eid",
    "ffn.shared_experts.gate_proj.weight",
    "ffn.shared_experts.up_proj.weight",
    "ffn.shared_experts.down_proj.weight",
    "attn_norm.weight",
    "ffn_norm.weight",
    "attn_hc.fn",
    "attn_hc.base",
    "attn_hc.scale",
    "ffn_hc.fn",
    "ffn_hc.base",
    "ffn_hc.scale",
  ],
};

function residentSpecs(config: DeepseekV4Config): readonly ResidentSpec[] {
  const { hiddenSize, vocabSize, hcMult } = config;
  const shape = [vocabSize, hiddenSize];
  const float = (name: string, size: readonly number[]): ResidentSpec => ({
    name: `model.hc_head.${name}`,
    shape: size,
    dtype: "F32",
  });
  return [
    { name: TABLE.embedding[0]!, shape, bits: [4], slot: "embedding" },
    ...config.layerKinds.flatMap((_, layer) => layerSpecs(config, layer)),
    float("base", [hcMult]),
    float("fn", [hcMult, hcMult * hiddenSize]),
    float("scale", [1]),
    { name: TABLE.norm, shape: [hiddenSize] },
    { name: TABLE.head, shape, bits: [4] },
  ];
}

function layerSpecs(config: DeepseekV4Config, layer: number): readonly ResidentSpec[] {
  const prefix = `${TABLE.layers}${layer}.`;
  const { hiddenSize } = config;
  return [
    ...attentionSpecs(config, `${prefix}attn.`),
    ...compressorSpecs(config, layer, `${prefix}attn.`),
    ...feedForwardSpecs(config, layer, `${prefix}ffn.`),
    { name: `${prefix}attn_norm.weight`, shape: [hiddenSize] },
    { name: `${prefix}ffn_norm.weight`, shape: [hiddenSize] },
    ...connectionSpecs(config, `${prefix}attn_hc.`),
    ...connectionSpecs(config, `${prefix}ffn_hc.`),
  ];
}

const matrix = (name: string, shape: readonly number[]): ResidentSpec => ({
  name: `${name}.weight`,
  shape,
  bits: [4],
  slot: "attention",
});

function attentionSpecs(config: DeepseekV4Config, prefix: string): readonly ResidentSpec[] {
  const { hiddenSize, headDim, numAttentionHeads, qLoraRank, oGroups, oLoraRank } = config;
  const width = numAttentionHeads * headDim;
  return [
    matrix(`${prefix}wq_a`, [qLoraRank, hiddenSize]),
    { name: `${prefix}q_norm.weight`, shape: [qLoraRank] },
    matrix(`${prefix}wq_b`, [width, qLoraRank]),
    matrix(`${prefix}wkv`, [headDim, hiddenSize]),
    { name: `${prefix}kv_norm.weight`, shape: [headDim] },
    { name: `${prefix}attn_sink`, shape: [numAttentionHeads], dtype: "F32" },
    matrix(`${prefix}wo_a`, [oGroups * oLoraRank, width / oGroups]),
    matrix(`${prefix}wo_b`, [hiddenSize, oGroups * oLoraRank]),
  ];
}

/** A sparse layer's compressor overlaps its windows and so is twice as wide; it alone has an index. */
function compressorSpecs(
  config: DeepseekV4Config,
  layer: number,
  prefix: string,
): readonly ResidentSpec[] {
  const { hiddenSize, headDim, indexHeadDim, indexHeads, sparseRate, heavyRate } = config;
  const kind = config.layerKinds[layer];
  if (kind === "sliding") return [];
  const compressor = (
    place: string,
    size: { width: number; dim: number; rate: number },
  ): ResidentSpec[] => [
    matrix(`${place}compressor.wkv`, [size.width, hiddenSize]),
    matrix(`${place}compressor.wgate`, [size.width, hiddenSize]),
    { name: `${place}compressor.norm.weight`, shape: [size.dim] },
    { name: `${place}compressor.ape`, shape: [size.rate, size.width] },
  ];
  if (kind === "heavy") {
    return compressor(prefix, { width: headDim, dim: headDim, rate: heavyRate });
  }
  const indexer = `${prefix}indexer.`;
  const rate = sparseRate;
  return [
    ...compressor(prefix, { width: 2 * headDim, dim: headDim, rate }),
    ...compressor(indexer, { width: 2 * indexHeadDim, dim: indexHeadDim, rate }),
    matrix(`${indexer}wq_b`, [indexHeads * indexHeadDim, config.qLoraRank]),
    matrix(`${indexer}weights_proj`, [indexHeads, hiddenSize]),
  ];
}

function feedForwardSpecs(
  config: DeepseekV4Config,
  layer: number,
  prefix: string,
): readonly ResidentSpec[] {
  const { hiddenSize, numExperts, ffnIntermediate, vocabSize, topKExperts } = config;
  const shared = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}shared_experts.${name}_proj.weight`,
    shape,
    bits: [4, 8],
    slot: "sharedExpert",
  });
  const choice: ResidentSpec =
    layer < config.hashLayers
      ? { name: `${prefix}gate.tid2eid`, shape: [vocabSize, topKExperts], dtype: "I64" }
      : { name: `${prefix}gate.e_score_correction_bias`, shape: [numExperts], dtype: "F32" };
  return [
    { name: `${prefix}gate.weight`, shape: [numExperts, hiddenSize] },
    choice,
    shared("gate", [ffnIntermediate, hiddenSize]),
    shared("up", [ffnIntermediate, hiddenSize]),
    shared("down", [hiddenSize, ffnIntermediate]),
  ];
}

/** Before and after a block, and among the streams: 2 n + n^2 weights of n streams. */
function connectionSpecs(
  { hcMult, hiddenSize }: DeepseekV4Config,
  prefix: string,
): readonly ResidentSpec[] {
  const rows = (2 + hcMult) * hcMult;
  return [
    { name: `${prefix}fn`, shape: [rows, hcMult * hiddenSize], dtype: "F32" },
    { name: `${prefix}base`, shape: [rows], dtype: "F32" },
    { name: `${prefix}scale`, shape: [3], dtype: "F32" },
  ];
}

export const tensors: FamilyTensors<DeepseekV4Config> = {
  roleOf: (name, config) => tableRole(name, TABLE, config.layerKinds.length),
  resident: residentSpecs,
  experts: ({ hiddenSize, moeIntermediateSize }) => ({
    shapes: {
      gate: [moeIntermediateSize, hiddenSize],
      up: [moeIntermediateSize, hiddenSize],
      down: [hiddenSize, moeIntermediateSize],
    },
    bits: [2, 4],
    groupSizes: { gate: [32, 64] },
  }),
};
