import {
  tableRole,
  type FamilyTensors,
  type ResidentSpec,
  type RoleTable,
  type TensorRole,
} from "../family.ts";
import type { MapleConfig } from "./config.ts";

/**
 * The tensors of a Maple checkpoint: what each name is for, in which order the common file holds them,
 * and which shapes they must have. Its ternary matrices have a value for each row in place of scales.
 */
const FLASH = "lm_head_flash.";

const TABLE: RoleTable = {
  // The head in another order, which the head itself makes needless.
  dropped: [`${FLASH}cluster_scale`, `${FLASH}head.`],
  text: ["model.", "lm_head."],
  embedding: ["model.word_embeddings.weight"],
  norm: "model.norm.weight",
  head: "lm_head.weight",
  layers: "model.layers.",
  experts: ".mlp.switch_mlp.",
  order: [
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "mlp.gate.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
  ],
};
const FLASH_NAMES = new Set([
  `${FLASH}centroids.weight`,
  `${FLASH}centroids.scales`,
  `${FLASH}centroids.biases`,
  `${FLASH}token_map`,
]);
/** Behind the layers, before the norm. */
const GROUP_OTHER = 2;

function roleOf(name: string, config: MapleConfig): TensorRole | undefined {
  const role = tableRole(name, TABLE, config.layerKinds.length);
  if (role !== undefined || !name.startsWith(FLASH)) return role;
  if (config.flashHead === undefined) return { kind: "dropped" };
  if (!FLASH_NAMES.has(name)) return undefined;
  return { kind: "resident", group: GROUP_OTHER, layer: 0, slot: 0 };
}

function residentSpecs(config: MapleConfig): readonly ResidentSpec[] {
  const { hiddenSize, vocabSize, flashHead } = config;
  const shape = [vocabSize, hiddenSize];
  const flash: ResidentSpec[] =
    flashHead === undefined
      ? []
      : [
          {
            name: `${FLASH}centroids.weight`,
            shape: [flashHead.nClusters, hiddenSize],
            bits: [4],
          },
          {
            name: `${FLASH}token_map`,
            shape: [flashHead.nClusters, flashHead.clusterSize],
            dtype: "I32",
          },
        ];
  return [
    { name: TABLE.embedding[0]!, shape, bits: [4], slot: "embedding" },
    ...config.layerKinds.flatMap((_, layer) => layerSpecs(config, layer)),
    ...flash,
    { name: TABLE.norm, shape: [hiddenSize] },
    { name: TABLE.head, shape, bits: [4] },
  ];
}

function layerSpecs(config: MapleConfig, layer: number): readonly ResidentSpec[] {
  const { hiddenSize, headDim } = config;
  const prefix = `${TABLE.layers}${layer}.`;
  const queryWidth = config.numAttentionHeads * headDim;
  const kvWidth = config.numKeyValueHeads * headDim;
  const matrix = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}self_attn.${name}_proj.weight`,
    shape,
    bits: [4],
    slot: "attention",
  });
  return [
    matrix("q", [queryWidth, hiddenSize]),
    matrix("k", [kvWidth, hiddenSize]),
    matrix("v", [kvWidth, hiddenSize]),
    matrix("o", [hiddenSize, queryWidth]),
    { name: `${prefix}self_attn.q_norm.weight`, shape: [headDim] },
    { name: `${prefix}self_attn.k_norm.weight`, shape: [headDim] },
    { name: `${prefix}mlp.gate.weight`, shape: [config.numExperts, hiddenSize] },
    { name: `${prefix}input_layernorm.weight`, shape: [hiddenSize] },
    { name: `${prefix}post_attention_layernorm.weight`, shape: [hiddenSize] },
  ];
}

export const tensors: FamilyTensors<MapleConfig> = {
  roleOf,
  hasRowAlpha: true,
  resident: residentSpecs,
  experts: ({ hiddenSize, moeIntermediateSize }) => ({
    shapes: {
      gate: [moeIntermediateSize, hiddenSize],
      up: [moeIntermediateSize, hiddenSize],
      down: [hiddenSize, moeIntermediateSize],
    },
    bits: [2],
  }),
};
