import { tableRole, type FamilyTensors, type ResidentSpec, type RoleTable } from "../family.ts";
import { channels, type Qwen36Config, valueWidth } from "./config.ts";

/**
 * The tensors of a Qwen 3.6 checkpoint: what each name is for, in which order the common file holds
 * them, and which shapes they must have.
 */
const TEXT = "language_model.model.";

const TABLE: RoleTable = {
  dropped: ["vision_tower.", "embed_vision.", "audio_tower.", "model.visual.", "model.audio."],
  text: ["language_model."],
  embedding: [`${TEXT}embed_tokens.weight`],
  norm: `${TEXT}norm.weight`,
  head: "language_model.lm_head.weight",
  layers: `${TEXT}layers.`,
  experts: ".mlp.switch_mlp.",
  order: [
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "linear_attn.in_proj_qkv.weight",
    "linear_attn.in_proj_z.weight",
    "linear_attn.in_proj_a.weight",
    "linear_attn.in_proj_b.weight",
    "linear_attn.conv1d.weight",
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "linear_attn.norm.weight",
    "linear_attn.out_proj.weight",
    "mlp.gate.weight",
    "mlp.shared_expert_gate.weight",
    "mlp.shared_expert.gate_proj.weight",
    "mlp.shared_expert.up_proj.weight",
    "mlp.shared_expert.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
  ],
};

function residentSpecs(config: Qwen36Config): readonly ResidentSpec[] {
  const { hiddenSize, vocabSize } = config;
  const shape = [vocabSize, hiddenSize];
  return [
    { name: TABLE.embedding[0]!, shape, bits: [4], slot: "embedding" },
    ...config.layerKinds.flatMap((_, layer) => layerSpecs(config, layer)),
    { name: TABLE.norm, shape: [hiddenSize] },
    { name: TABLE.head, shape, bits: [4] },
  ];
}

function layerSpecs(config: Qwen36Config, layer: number): readonly ResidentSpec[] {
  const { hiddenSize, numExperts, sharedIntermediateSize } = config;
  const prefix = `${TABLE.layers}${layer}.`;
  const shared = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}mlp.shared_expert.${name}_proj.weight`,
    shape,
    bits: [4, 8],
    slot: "sharedExpert",
  });
  const mixer = config.layerKinds[layer] === "full" ? fullSpecs : linearSpecs;
  return [
    ...mixer(config, prefix),
    {
      name: `${prefix}mlp.gate.weight`,
      shape: [numExperts, hiddenSize],
      bits: [8],
      slot: "router",
    },
    { name: `${prefix}mlp.shared_expert_gate.weight`, shape: [1, hiddenSize], bits: [8] },
    shared("gate", [sharedIntermediateSize, hiddenSize]),
    shared("up", [sharedIntermediateSize, hiddenSize]),
    shared("down", [hiddenSize, sharedIntermediateSize]),
    { name: `${prefix}input_layernorm.weight`, shape: [hiddenSize] },
    { name: `${prefix}post_attention_layernorm.weight`, shape: [hiddenSize] },
  ];
}

function fullSpecs(config: Qwen36Config, prefix: string): readonly ResidentSpec[] {
  const { hiddenSize, headDim } = config;
  const queryWidth = config.numAttentionHeads * headDim;
  const kvWidth = config.numKeyValueHeads * headDim;
  const matrix = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}self_attn.${name}_proj.weight`,
    shape,
    bits: [4],
    slot: "attention",
  });
  return [
    // Each head's query is followed by its gate.
    matrix("q", [2 * queryWidth, hiddenSize]),
    matrix("k", [kvWidth, hiddenSize]),
    matrix("v", [kvWidth, hiddenSize]),
    matrix("o", [hiddenSize, queryWidth]),
    { name: `${prefix}self_attn.q_norm.weight`, shape: [headDim] },
    { name: `${prefix}self_attn.k_norm.weight`, shape: [headDim] },
  ];
}

function linearSpecs(config: Qwen36Config, prefix: string): readonly ResidentSpec[] {
  const { hiddenSize, linearValueHeads } = config;
  const width = valueWidth(config);
  const matrix = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}linear_attn.${name}.weight`,
    shape,
    bits: [4],
    slot: "attention",
  });
  const plain = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}linear_attn.${name}`,
    shape,
  });
  return [
    matrix("in_proj_qkv", [channels(config), hiddenSize]),
    matrix("in_proj_z", [width, hiddenSize]),
    matrix("in_proj_a", [linearValueHeads, hiddenSize]),
    matrix("in_proj_b", [linearValueHeads, hiddenSize]),
    plain("conv1d.weight", [channels(config), config.linearConvKernel, 1]),
    plain("A_log", [linearValueHeads]),
    plain("dt_bias", [linearValueHeads]),
    plain("norm.weight", [config.linearValueHeadDim]),
    matrix("out_proj", [hiddenSize, width]),
  ];
}

export const tensors: FamilyTensors<Qwen36Config> = {
  roleOf: (name, config) => tableRole(name, TABLE, config.layerKinds.length),
  resident: residentSpecs,
  experts: ({ hiddenSize, moeIntermediateSize }) => ({
    shapes: {
      gate: [moeIntermediateSize, hiddenSize],
      up: [moeIntermediateSize, hiddenSize],
      down: [hiddenSize, moeIntermediateSize],
    },
    bits: [2, 4],
  }),
};
