import { tableRole, type FamilyTensors, type ResidentSpec, type RoleTable } from "../family.ts";
import type { InklingConfig } from "./config.ts";

/**
 * The tensors of an Inkling Small checkpoint: what each name is for, in which order the common file
 * holds them, and which shapes they must have.
 */
const TEXT = "model.llm.";

const TABLE: RoleTable = {
  dropped: ["vision_tower.", "embed_vision.", "audio_tower.", "model.visual.", "model.audio."],
  text: [TEXT],
  embedding: [`${TEXT}embed.weight`, `${TEXT}embed_norm.weight`],
  norm: `${TEXT}norm.weight`,
  head: `${TEXT}unembed.weight`,
  layers: `${TEXT}layers.`,
  experts: ".mlp.experts.",
  order: [
    "attn.wq_du.weight",
    "attn.wk_dv.weight",
    "attn.wv_dv.weight",
    "attn.wo_ud.weight",
    "attn.wr_du.weight",
    "attn.rel_logits_proj.proj",
    "attn.q_norm.weight",
    "attn.k_norm.weight",
    "attn.k_sconv.weight",
    "attn.v_sconv.weight",
    "mlp.gate.weight",
    "mlp.gate.bias",
    "mlp.gate.global_scale",
    "mlp.shared_experts.gate_proj.weight",
    "mlp.shared_experts.up_proj.weight",
    "mlp.shared_experts.down_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "mlp.global_scale",
    "attn_sconv.weight",
    "mlp_sconv.weight",
    "attn_norm.weight",
    "mlp_norm.weight",
  ],
};

function residentSpecs(config: InklingConfig): readonly ResidentSpec[] {
  const { hiddenSize, vocabSize } = config;
  const shape = [vocabSize, hiddenSize];
  return [
    { name: TABLE.embedding[0]!, shape, bits: [4], slot: "embedding" },
    { name: TABLE.embedding[1]!, shape: [hiddenSize] },
    ...config.layerKinds.flatMap((_, layer) => layerSpecs(config, layer)),
    { name: TABLE.norm, shape: [hiddenSize] },
    { name: TABLE.head, shape, bits: [4] },
  ];
}

function layerSpecs(config: InklingConfig, layer: number): readonly ResidentSpec[] {
  const prefix = `${TABLE.layers}${layer}.`;
  const { hiddenSize, convKernel } = config;
  const isDense = layer < config.denseLayers;
  return [
    ...attentionSpecs(config, layer, `${prefix}attn.`),
    ...(isDense ? denseSpecs : routedSpecs)(config, `${prefix}mlp.`),
    { name: `${prefix}attn_sconv.weight`, shape: [hiddenSize, convKernel, 1] },
    { name: `${prefix}mlp_sconv.weight`, shape: [hiddenSize, convKernel, 1] },
    { name: `${prefix}attn_norm.weight`, shape: [hiddenSize] },
    { name: `${prefix}mlp_norm.weight`, shape: [hiddenSize] },
  ];
}

function attentionSpecs(
  config: InklingConfig,
  layer: number,
  prefix: string,
): readonly ResidentSpec[] {
  const { hiddenSize, headDim, numAttentionHeads, relationDim, relationExtent } = config;
  const queryWidth = numAttentionHeads * headDim;
  const kvWidth = config.numKeyValueHeads * headDim;
  const matrix = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}${name}.weight`,
    shape,
    bits: [4],
    slot: "attention",
  });
  // A sliding layer needs no distance beyond its window.
  const extent =
    config.layerKinds[layer] === "full"
      ? relationExtent
      : Math.min(relationExtent, config.slidingWindow);
  return [
    matrix("wq_du", [queryWidth, hiddenSize]),
    matrix("wk_dv", [kvWidth, hiddenSize]),
    matrix("wv_dv", [kvWidth, hiddenSize]),
    matrix("wo_ud", [hiddenSize, queryWidth]),
    matrix("wr_du", [numAttentionHeads * relationDim, hiddenSize]),
    { name: `${prefix}rel_logits_proj.proj`, shape: [relationDim, extent] },
    { name: `${prefix}q_norm.weight`, shape: [headDim] },
    { name: `${prefix}k_norm.weight`, shape: [headDim] },
    { name: `${prefix}k_sconv.weight`, shape: [kvWidth, config.convKernel, 1] },
    { name: `${prefix}v_sconv.weight`, shape: [kvWidth, config.convKernel, 1] },
  ];
}

function denseSpecs(config: InklingConfig, prefix: string): readonly ResidentSpec[] {
  const { hiddenSize, denseIntermediateSize } = config;
  return [
    { name: `${prefix}gate_proj.weight`, shape: [denseIntermediateSize, hiddenSize], bits: [4] },
    { name: `${prefix}up_proj.weight`, shape: [denseIntermediateSize, hiddenSize], bits: [4] },
    { name: `${prefix}down_proj.weight`, shape: [hiddenSize, denseIntermediateSize], bits: [4] },
    { name: `${prefix}global_scale`, shape: [1] },
  ];
}

function routedSpecs(config: InklingConfig, prefix: string): readonly ResidentSpec[] {
  const { hiddenSize, expertIntermediateSize, numExperts, sharedExperts } = config;
  const shared = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}shared_experts.${name}_proj.weight`,
    shape: [sharedExperts, ...shape],
    bits: [4, 8],
    slot: "sharedExpert",
  });
  return [
    { name: `${prefix}gate.weight`, shape: [numExperts + sharedExperts, hiddenSize] },
    { name: `${prefix}gate.bias`, shape: [numExperts], dtype: "F32" },
    { name: `${prefix}gate.global_scale`, shape: [1], dtype: "F32" },
    shared("gate", [expertIntermediateSize, hiddenSize]),
    shared("up", [expertIntermediateSize, hiddenSize]),
    shared("down", [hiddenSize, expertIntermediateSize]),
  ];
}

export const tensors: FamilyTensors<InklingConfig> = {
  roleOf: (name, config) => tableRole(name, TABLE, config.layerKinds.length),
  resident: residentSpecs,
  experts({ hiddenSize, expertIntermediateSize, denseLayers }, layer) {
    if (layer < denseLayers) return undefined;
    return {
      shapes: {
        gate: [expertIntermediateSize, hiddenSize],
        up: [expertIntermediateSize, hiddenSize],
        down: [hiddenSize, expertIntermediateSize],
      },
      bits: [2, 4],
    };
  },
};
