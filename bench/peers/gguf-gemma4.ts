/** Gemma 4 26B-A4B as a GGUF file. */
import { ARCH_26B } from "../../src/families/gemma4/config.ts";
import {
  f32,
  matrix,
  type PeerFamily,
  plain,
  type RouterOf,
  type Tensor,
  text,
  tokenKeys,
  u32,
  vector,
} from "./gguf-family.ts";
import type { Value } from "./gguf-header.ts";

const A = ARCH_26B;
const isFull = (layer: number): boolean => layer % 6 === 5;
const layersOf = (count: number): number[] => Array.from({ length: count }, (_, layer) => layer);

function attentionTensors(layer: number): Tensor[] {
  const b = `blk.${layer}.`;
  const headDim = isFull(layer) ? A.fullHeadDim : A.headDim;
  const kvWidth = headDim * (isFull(layer) ? A.numFullKVHeads : A.numKVHeads);
  const width = headDim * A.numHeads;
  return [
    vector(`${b}attn_norm`, A.hiddenSize),
    matrix(`${b}attn_q`, A.hiddenSize, width),
    matrix(`${b}attn_k`, A.hiddenSize, kvWidth),
    // Full layers use their keys as values.
    ...(isFull(layer) ? [] : [matrix(`${b}attn_v`, A.hiddenSize, kvWidth)]),
    matrix(`${b}attn_output`, width, A.hiddenSize),
    vector(`${b}attn_q_norm`, headDim, headDim ** -0.5),
    vector(`${b}attn_k_norm`, headDim),
    vector(`${b}post_attention_norm`, A.hiddenSize, 0.15),
    vector(`${b}layer_output_scale`, 1),
  ];
}

function feedForwardTensors(layer: number, routerOf: RouterOf): Tensor[] {
  const b = `blk.${layer}.`;
  const { hiddenSize, ffnIntermediate, moeIntermediateSize, numExperts } = A;
  return [
    vector(`${b}ffn_norm`, hiddenSize),
    matrix(`${b}ffn_gate`, hiddenSize, ffnIntermediate),
    matrix(`${b}ffn_up`, hiddenSize, ffnIntermediate),
    matrix(`${b}ffn_down`, ffnIntermediate, hiddenSize),
    vector(`${b}post_ffw_norm_1`, hiddenSize, 0.15),
    plain(`${b}ffn_gate_inp.weight`, [hiddenSize, numExperts], () => routerOf(layer)),
    plain(`${b}ffn_gate_inp.scale`, [hiddenSize], 2 * Math.sqrt(hiddenSize)),
    vector(`${b}pre_ffw_norm_2`, hiddenSize),
    vector(`${b}post_ffw_norm_2`, hiddenSize, 0.15),
    matrix(`${b}ffn_gate_up_exps`, hiddenSize, 2 * moeIntermediateSize, numExperts),
    matrix(`${b}ffn_down_exps`, moeIntermediateSize, hiddenSize, numExperts),
    plain(`${b}ffn_down_exps.scale`, [numExperts], 1),
    vector(`${b}post_ffw_norm`, hiddenSize, 0.15),
  ];
}

/** Of a full layer's rotations only the first part turns; the others are divided by almost infinity. */
function rotations(): Float32Array {
  const count = A.fullHeadDim / 2;
  return new Float32Array(count).fill(1e30).fill(1, 0, count * A.partialRotaryFactor);
}

function keys(layerCount: number): Record<string, Value> {
  const layers = layersOf(layerCount);
  const windows = layers.map((layer) => Number(!isFull(layer)));
  const kvHeads = layers.map((layer) => (isFull(layer) ? A.numFullKVHeads : A.numKVHeads));
  return {
    context_length: u32(262_144),
    embedding_length: u32(A.hiddenSize),
    block_count: u32(layerCount),
    feed_forward_length: u32(A.ffnIntermediate),
    "attention.head_count": u32(A.numHeads),
    "attention.head_count_kv": { type: "u32[]", value: kvHeads },
    "attention.layer_norm_rms_epsilon": f32(1e-6),
    "attention.key_length": u32(A.fullHeadDim),
    "attention.value_length": u32(A.fullHeadDim),
    "attention.key_length_swa": u32(A.headDim),
    "attention.value_length_swa": u32(A.headDim),
    "attention.sliding_window": u32(A.slidingWindow),
    "attention.sliding_window_pattern": { type: "bool[]", value: windows },
    "attention.shared_kv_layers": u32(0),
    "rope.freq_base": f32(A.fullRopeTheta),
    "rope.freq_base_swa": f32(A.ropeTheta),
    "rope.dimension_count": u32(A.fullHeadDim),
    "rope.dimension_count_swa": u32(A.headDim),
    final_logit_softcapping: f32(A.finalLogitSoftcap),
    embedding_length_per_layer_input: u32(0),
    expert_count: u32(A.numExperts),
    expert_used_count: u32(A.topKExperts),
    expert_feed_forward_length: u32(A.moeIntermediateSize),
  };
}

function vocabulary(): Record<string, Value> {
  const specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"];
  const hex = (byte: number): string => byte.toString(16).toUpperCase().padStart(2, "0");
  return {
    "tokenizer.ggml.model": text("gemma4"),
    ...tokenKeys(A.vocabSize, [
      ...specials.map((name) => [name, "control"] as const),
      ...layersOf(256).map((byte) => [`<0x${hex(byte)}>`, "byte"] as const),
    ]),
    "tokenizer.ggml.padding_token_id": u32(0),
    "tokenizer.ggml.eos_token_id": u32(1),
    "tokenizer.ggml.bos_token_id": u32(2),
    "tokenizer.ggml.unknown_token_id": u32(3),
    "tokenizer.ggml.mask_token_id": u32(4),
  };
}

export const peerGemma4: PeerFamily = {
  architecture: "gemma4",
  keys,
  vocabulary,
  tensors: (layerCount, routerOf) => [
    { ...matrix("token_embd", A.hiddenSize, A.vocabSize), fill: "embedding" },
    vector("output_norm", A.hiddenSize),
    plain("rope_freqs.weight", [A.fullHeadDim / 2], rotations),
    ...layersOf(layerCount).flatMap((layer) =>
      attentionTensors(layer).concat(feedForwardTensors(layer, routerOf)),
    ),
  ],
};
