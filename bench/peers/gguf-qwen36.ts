/**
 * Qwen 3.6 35B-A3B as a GGUF file. Such files hold the value heads of linear layers in another order than
 * ours; of random values that is no difference.
 */
import { ARCH_35B } from "../../src/families/qwen36/config.ts";
import { BRANCH } from "../synthetic/qwen36.ts";
import { fractions } from "../weights.ts";
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

const A = ARCH_35B;
const D = A.hiddenSize;
const FULL_INTERVAL = 4;
const linear = (key: string): number => A[key] as number;
const [keyHeads, valueHeads] = [linear("linearNumKHeads"), linear("linearNumVHeads")];
const [keyDim, valueDim] = [linear("linearKeyHeadDim"), linear("linearValueHeadDim")];
const kernelRows = linear("linearConvKernelSize");
const valueWidth = valueHeads * valueDim;
const channels = 2 * keyHeads * keyDim + valueWidth;

/** What a layer adds to the residual stream comes out of these. */
const branch = (name: string, ...shape: number[]): Tensor => ({
  ...matrix(name, ...shape),
  gain: BRANCH,
});

function fullTensors(b: string): Tensor[] {
  const [width, kvWidth] = [A.numHeads * A.headDim, A.numKVHeads * A.headDim];
  return [
    // Each head's query is followed by its gate.
    matrix(`${b}attn_q`, D, 2 * width),
    matrix(`${b}attn_k`, D, kvWidth),
    matrix(`${b}attn_v`, D, kvWidth),
    branch(`${b}attn_output`, width, D),
    vector(`${b}attn_q_norm`, A.headDim),
    vector(`${b}attn_k_norm`, A.headDim),
  ];
}

function linearTensors(b: string): Tensor[] {
  return [
    matrix(`${b}attn_qkv`, D, channels),
    matrix(`${b}attn_gate`, D, valueWidth),
    plain(`${b}ssm_conv1d.weight`, [kernelRows, channels], 0.5),
    plain(`${b}ssm_dt.bias`, [valueHeads], -2),
    // The negative exponential of A_log.
    plain(`${b}ssm_a`, [valueHeads], -1),
    matrix(`${b}ssm_beta`, D, valueHeads),
    matrix(`${b}ssm_alpha`, D, valueHeads),
    vector(`${b}ssm_norm`, valueDim),
    branch(`${b}ssm_out`, valueWidth, D),
  ];
}

/** One row whose product with normal values is normal. */
function gateRow(name: string): Float32Array {
  const random = fractions(name);
  return Float32Array.from({ length: D }, () => (2 * random() - 1) * Math.sqrt(3 / D));
}

function layerTensors(layer: number, routerOf: RouterOf): Tensor[] {
  const b = `blk.${layer}.`;
  const { moeIntermediateSize: width, ffnIntermediate: sharedWidth, numExperts } = A;
  const sharedGate = `${b}ffn_gate_inp_shexp.weight`;
  return [
    vector(`${b}attn_norm`, D),
    ...(layer % FULL_INTERVAL === FULL_INTERVAL - 1 ? fullTensors(b) : linearTensors(b)),
    vector(`${b}post_attention_norm`, D),
    plain(`${b}ffn_gate_inp.weight`, [D, numExperts], () => routerOf(layer)),
    matrix(`${b}ffn_gate_up_exps`, D, 2 * width, numExperts),
    branch(`${b}ffn_down_exps`, width, D, numExperts),
    plain(sharedGate, [D], () => gateRow(sharedGate)),
    matrix(`${b}ffn_gate_shexp`, D, sharedWidth),
    matrix(`${b}ffn_up_shexp`, D, sharedWidth),
    branch(`${b}ffn_down_shexp`, sharedWidth, D),
  ];
}

function keys(layerCount: number): Record<string, Value> {
  const rotating = A.headDim * A.partialRotaryFactor;
  return {
    context_length: u32(262_144),
    embedding_length: u32(D),
    block_count: u32(layerCount),
    "attention.head_count": u32(A.numHeads),
    "attention.head_count_kv": u32(A.numKVHeads),
    "attention.layer_norm_rms_epsilon": f32(1e-6),
    "attention.key_length": u32(A.headDim),
    "attention.value_length": u32(A.headDim),
    "rope.freq_base": f32(A.ropeTheta),
    "rope.dimension_count": u32(rotating),
    // Pairs that turn with time, height and width: of text all three are the position.
    "rope.dimension_sections": { type: "i32[]", value: [11, 11, 10, 0] },
    full_attention_interval: u32(FULL_INTERVAL),
    "ssm.conv_kernel": u32(kernelRows),
    "ssm.inner_size": u32(valueWidth),
    "ssm.state_size": u32(keyDim),
    "ssm.time_step_rank": u32(valueHeads),
    "ssm.group_count": u32(keyHeads),
    expert_count: u32(A.numExperts),
    expert_used_count: u32(A.topKExperts),
    expert_feed_forward_length: u32(A.moeIntermediateSize),
    expert_shared_feed_forward_length: u32(A.ffnIntermediate),
  };
}

/** A character for each byte: itself where it can be seen, else one from 256 on. */
function byteCharacters(): string[] {
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const isSeen = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    return String.fromCodePoint(isSeen ? byte : next++);
  });
}

const vocabulary = (): Record<string, Value> => ({
  "tokenizer.ggml.model": text("gpt2"),
  "tokenizer.ggml.pre": text("qwen35"),
  ...tokenKeys(A.vocabSize, [
    ["<|endoftext|>", "control"],
    ...byteCharacters().map((character) => [character, "normal"] as const),
  ]),
  "tokenizer.ggml.eos_token_id": u32(0),
  "tokenizer.ggml.padding_token_id": u32(0),
});

export const peerQwen36: PeerFamily = {
  architecture: "qwen35moe",
  keys,
  vocabulary,
  tensors: (layerCount, routerOf) => [
    { ...matrix("token_embd", D, A.vocabSize), fill: "embedding", gain: Math.sqrt(D) },
    vector("output_norm", D),
    matrix("output", D, A.vocabSize),
    ...Array.from({ length: layerCount }, (_, layer) => layerTensors(layer, routerOf)).flat(),
  ],
};
