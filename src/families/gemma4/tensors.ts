import type { Projection } from "../../format/layout.ts";
import type { ExpertSpec, FamilyTensors, ResidentSpec, TensorRole } from "../family.ts";
import { headsOf, type Gemma4Config } from "./config.ts";

/**
 * The tensors of a Gemma 4 checkpoint: what each name is for, in which order the common file holds
 * them, and which shapes they must have. Used by installing and by loading.
 */
const TEXT = "language_model.model.";
/** The multimodal towers, which this program does not run. */
const DROPPED = ["vision_tower.", "embed_vision.", "audio_tower."];
const EXPERTS = ".experts.switch_glu.";

/** Order of a layer's tensors in the common file. */
const LAYER_ORDER = [
  "self_attn.q_proj.weight",
  "self_attn.k_proj.weight",
  "self_attn.v_proj.weight",
  "self_attn.o_proj.weight",
  "self_attn.q_norm.weight",
  "self_attn.k_norm.weight",
  "router.proj.weight",
  "router.scale",
  "router.per_expert_scale",
  "mlp.gate_proj.weight",
  "mlp.up_proj.weight",
  "mlp.down_proj.weight",
  "input_layernorm.weight",
  "post_attention_layernorm.weight",
  "pre_feedforward_layernorm.weight",
  "pre_feedforward_layernorm_2.weight",
  "post_feedforward_layernorm.weight",
  "post_feedforward_layernorm_1.weight",
  "post_feedforward_layernorm_2.weight",
  "layer_scalar",
];

const GROUP_EMBEDDING = 0;
const GROUP_LAYERS = 1;
const GROUP_OTHER = 2;
const GROUP_NORM = 3;

const LAYER_NAME = /^layers\.(0|[1-9][0-9]{0,3})\.(.+)$/;
const PROJECTION_NAME = /\.(gate|up|down)_proj\./;

function roleOf(name: string, config: Gemma4Config): TensorRole | undefined {
  if (DROPPED.some((prefix) => name.startsWith(prefix))) return { kind: "dropped" };
  if (!name.startsWith(TEXT)) return undefined;
  const rest = name.slice(TEXT.length);
  if (rest === "embed_tokens.weight") return resident(GROUP_EMBEDDING, 0, 0);
  if (rest === "norm.weight") return resident(GROUP_NORM, 0, 0);
  const match = LAYER_NAME.exec(rest);
  if (match === null) return resident(GROUP_OTHER, 0, 0);
  const layer = Number(match[1]);
  if (layer >= config.numHiddenLayers) return undefined;
  const projection = PROJECTION_NAME.exec(rest)?.[1];
  if (rest.includes(EXPERTS) && projection !== undefined) {
    return { kind: "expert", layer, projection: projection as Projection };
  }
  const slot = LAYER_ORDER.indexOf(match[2] ?? "");
  return resident(GROUP_LAYERS, layer, slot === -1 ? LAYER_ORDER.length : slot);
}

function resident(group: number, layer: number, slot: number): TensorRole {
  return { kind: "resident", group, layer, slot };
}

function residentSpecs(config: Gemma4Config): readonly ResidentSpec[] {
  const { hiddenSize, vocabSize } = config;
  const layers = config.layerKinds.flatMap((_, layer) => layerSpecs(config, layer));
  return [
    {
      name: `${TEXT}embed_tokens.weight`,
      shape: [vocabSize, hiddenSize],
      bits: [4],
      slot: "embedding",
    },
    ...layers,
    { name: `${TEXT}norm.weight`, shape: [hiddenSize] },
  ];
}

function layerSpecs(config: Gemma4Config, layer: number): readonly ResidentSpec[] {
  const isFull = config.layerKinds[layer] === "full";
  const { queryHeads, kvHeads, headDim } = headsOf(config, isFull ? "full" : "sliding");
  const queryWidth = queryHeads * headDim;
  const kvWidth = kvHeads * headDim;
  const { hiddenSize, intermediateSize, numExperts } = config;
  const prefix = `${TEXT}layers.${layer}.`;
  const attention = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}self_attn.${name}_proj.weight`,
    shape,
    bits: [4],
    slot: "attention",
  });
  // Older conversions keep the dense branch in 8 bits.
  const dense = (name: string, shape: readonly number[]): ResidentSpec => ({
    name: `${prefix}mlp.${name}_proj.weight`,
    shape,
    bits: [4, 8],
    slot: "sharedExpert",
  });
  const plain = (name: string, size: number): ResidentSpec => ({
    name: prefix + name,
    shape: [size],
  });
  const norms = LAYER_ORDER.filter((name) => name.includes("layernorm"));
  return [
    attention("q", [queryWidth, hiddenSize]),
    attention("k", [kvWidth, hiddenSize]),
    // A full layer's values are its keys before norm and rotation.
    ...(isFull ? [] : [attention("v", [kvWidth, hiddenSize])]),
    attention("o", [hiddenSize, queryWidth]),
    plain("self_attn.q_norm.weight", headDim),
    plain("self_attn.k_norm.weight", headDim),
    {
      name: `${prefix}router.proj.weight`,
      shape: [numExperts, hiddenSize],
      bits: [8],
      slot: "router",
    },
    plain("router.scale", hiddenSize),
    plain("router.per_expert_scale", numExperts),
    dense("gate", [intermediateSize, hiddenSize]),
    dense("up", [intermediateSize, hiddenSize]),
    dense("down", [hiddenSize, intermediateSize]),
    ...norms.map((name) => plain(name, hiddenSize)),
    plain("layer_scalar", 1),
  ];
}

function expertSpec(config: Gemma4Config): ExpertSpec {
  const { hiddenSize, moeIntermediateSize } = config;
  return {
    shapes: {
      gate: [moeIntermediateSize, hiddenSize],
      up: [moeIntermediateSize, hiddenSize],
      down: [hiddenSize, moeIntermediateSize],
    },
    bits: [2, 4],
  };
}

export const tensors: FamilyTensors<Gemma4Config> = {
  roleOf,
  resident: residentSpecs,
  experts: (config) => expertSpec(config),
};
