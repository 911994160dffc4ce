import { describe, expect, test } from "bun:test";
import path from "node:path";
import { gemma4 } from "../../src/families/gemma4/index.ts";
import type { JsonValue } from "../../src/format/json.ts";
import { parseQuantization } from "../../src/format/quant.ts";
import { planInstall, type InstallPlan } from "../../src/install/plan.ts";
import { openCheckpoint, type ShardTensor } from "../../src/install/source.ts";
import { failureOf } from "../fixtures/failures.ts";
import {
  copyOfGolden,
  editTensors,
  editJson,
  GOLDEN,
  type RawTensor,
} from "../fixtures/checkpoints.ts";

/** The released 26B-A4B as headers only: every tensor with its size, no bytes. */
function released(): { config: JsonValue; tensors: Map<string, ShardTensor> } {
  const text = {
    vocab_size: 262_144,
    hidden_size: 2816,
    intermediate_size: 2112,
    moe_intermediate_size: 704,
    num_hidden_layers: 30,
    layer_types: Array.from({ length: 30 }, (_, layer) =>
      layer % 6 === 5 ? "full_attention" : "sliding_attention",
    ),
    num_attention_heads: 16,
    num_key_value_heads: 8,
    num_global_key_value_heads: 2,
    head_dim: 256,
    global_head_dim: 512,
    sliding_window: 1024,
    rope_parameters: {
      sliding_attention: { rope_type: "default", rope_theta: 10_000 },
      full_attention: {
        rope_type: "proportional",
        rope_theta: 1_000_000,
        partial_rotary_factor: 0.25,
      },
    },
    rms_norm_eps: 1e-6,
    final_logit_softcapping: 30,
    enable_moe_block: true,
    num_experts: 128,
    top_k_experts: 8,
    hidden_activation: "gelu_pytorch_tanh",
    attention_k_eq_v: true,
    attention_bias: false,
    num_kv_shared_layers: 0,
    hidden_size_per_layer_input: 0,
    use_double_wide_mlp: false,
    use_bidirectional_attention: "vision",
    tie_word_embeddings: true,
    max_position_embeddings: 262_144,
  };
  const routers = Array.from({ length: 30 }, (_, layer) => [
    `language_model.model.layers.${layer}.router.proj`,
    { bits: 8, group_size: 64 },
  ]);
  const config = {
    model_type: "gemma4",
    text_config: text,
    bos_token_id: 2,
    pad_token_id: 0,
    eos_token_id: [1, 106, 50],
    quantization: { bits: 4, group_size: 64, mode: "affine", ...Object.fromEntries(routers) },
  } as unknown as JsonValue;
  return { config, tensors: releasedTensors() };
}

/** The inventory of the published checkpoint, written out from its table of tensors. */
function releasedTensors(): Map<string, ShardTensor> {
  const tensors = new Map<string, ShardTensor>();
  let offset = 0;
  const add = (name: string, dtype: "U32" | "BF16", shape: number[]): void => {
    const bytes = shape.reduce((a, b) => a * b, 1) * (dtype === "U32" ? 4 : 2);
    tensors.set(name, { name, dtype, shape, offset, bytes, shard: "model-1.safetensors" });
    offset += bytes;
  };
  const matrix = (name: string, shape: number[], bits = 4): void => {
    const [columns, rows] = [shape.at(-1)!, shape.slice(0, -1)];
    add(`${name}.weight`, "U32", [...rows, (columns * bits) / 32]);
    for (const companion of ["scales", "biases"])
      add(`${name}.${companion}`, "BF16", [...rows, columns / 64]);
  };
  const D = 2816;
  matrix("language_model.model.embed_tokens", [262_144, D]);
  add("language_model.model.norm.weight", "BF16", [D]);
  add("vision_tower.patch.weight", "BF16", [100, 100]);
  for (let layer = 0; layer < 30; layer += 1) {
    const isFull = layer % 6 === 5;
    const prefix = `language_model.model.layers.${layer}`;
    const kv = isFull ? 1024 : 2048;
    const q = isFull ? 8192 : 4096;
    matrix(`${prefix}.self_attn.q_proj`, [q, D]);
    matrix(`${prefix}.self_attn.k_proj`, [kv, D]);
    if (!isFull) matrix(`${prefix}.self_attn.v_proj`, [kv, D]);
    matrix(`${prefix}.self_attn.o_proj`, [D, q]);
    for (const norm of ["q_norm", "k_norm"])
      add(`${prefix}.self_attn.${norm}.weight`, "BF16", [isFull ? 512 : 256]);
    matrix(`${prefix}.router.proj`, [128, D], 8);
    add(`${prefix}.router.scale`, "BF16", [D]);
    add(`${prefix}.router.per_expert_scale`, "BF16", [128]);
    matrix(`${prefix}.mlp.gate_proj`, [2112, D]);
    matrix(`${prefix}.mlp.up_proj`, [2112, D]);
    matrix(`${prefix}.mlp.down_proj`, [D, 2112]);
    for (const norm of ["input", "post_attention", "pre_feedforward", "post_feedforward"]) {
      add(`${prefix}.${norm}_layernorm.weight`, "BF16", [D]);
    }
    for (const norm of [
      "pre_feedforward_layernorm_2",
      "post_feedforward_layernorm_1",
      "post_feedforward_layernorm_2",
    ]) {
      add(`${prefix}.${norm}.weight`, "BF16", [D]);
    }
    add(`${prefix}.layer_scalar`, "BF16", [1]);
    matrix(`${prefix}.experts.switch_glu.gate_proj`, [128, 704, D]);
    matrix(`${prefix}.experts.switch_glu.up_proj`, [128, 704, D]);
    matrix(`${prefix}.experts.switch_glu.down_proj`, [128, D, 704]);
  }
  return tensors;
}

describe("the released 26B-A4B", () => {
  const { config, tensors } = released();
  const quantization = parseQuantization(config, "config.json");
  const plan = planInstall({ family: gemma4, config, quantization, tensors });

  test("has the published sizes", () => {
    expect(plan.resident.entries.size).toBe(597);
    expect(plan.resident.indexBytes).toBe(81_920);
    expect(plan.resident.residentBytes).toBe(1_353_689_148);
    expect(plan.outputs[0]).toEqual({ path: "model_weights.bin", bytes: 1_353_771_068 });
    expect(plan.layout.strideBytes).toBe(3_358_720);
    expect(plan.outputs).toHaveLength(31);
    expect(plan.outputs[1]).toEqual({ path: "packed_experts/layer_00.bin", bytes: 429_916_160 });
    expect(plan.droppedCount).toBe(1);
  });

  test("has the published offsets inside an expert", () => {
    const table = plan.layout.layers[29]!.subTensors!;
    expect(Object.values(table).map(({ offset }) => offset)).toEqual([
      0, 991_232, 1_053_184, 1_115_136, 2_106_368, 2_168_320, 2_230_272, 3_221_504, 3_283_456,
    ]);
    expect(table.gate).toEqual({
      offset: 0,
      bytes: 991_232,
      dtype: "U32",
      shape: [704, 2816],
      bits: 4,
    });
  });

  test("must be the released architecture wholly", () => {
    const other = structuredClone(config) as any;
    other.text_config.sliding_window = 512;
    const input = { family: gemma4, config: other as JsonValue, quantization, tensors };
    expect(() => planInstall(input)).toThrow(
      "arch.slidingWindow is 512; the released gemma4 checkpoint says 1024",
    );
  });

  test("equals the family's baseline and summarises the widths", () => {
    expect(plan.arch).toEqual(gemma4.baselines[0]!);
    expect(Object.values(plan.quant).map(({ weightBits }) => weightBits)).toEqual([4, 4, 8, 4, 4]);
  });
});

async function planOf(folder: string): Promise<InstallPlan> {
  const checkpoint = await openCheckpoint(folder);
  try {
    return planInstall(checkpoint);
  } finally {
    checkpoint.close();
  }
}

describe("planInstall", () => {
  test("moves every wanted byte of a fixture exactly once", async () => {
    const checkpoint = await openCheckpoint(path.join(GOLDEN, "gemma4-a"));
    const plan = planInstall(checkpoint);
    checkpoint.close();
    const wanted = [...checkpoint.tensors.values()].reduce((total, { bytes }) => total + bytes, 0);
    expect(plan.copies.reduce((total, { bytes }) => total + bytes, 0)).toBe(wanted);
    const sources = new Set(plan.copies.map(({ sourceOffset }) => sourceOffset));
    expect(sources.size).toBe(plan.copies.length);
  });

  test("does not depend on the order of tensors in the checkpoint", async () => {
    const folder = copyOfGolden("gemma4-a");
    const before = await planOf(folder);
    editTensors(folder, (tensors) => {
      const reversed = [...tensors].toReversed();
      tensors.clear();
      for (const [name, tensor] of reversed) tensors.set(name, tensor);
    });
    const after = await planOf(folder);
    expect([...after.resident.entries]).toEqual([...before.resident.entries]);
    expect(after.layout).toEqual(before.layout);
  });

  const q = "language_model.model.layers.0.self_attn.q_proj";
  const experts = "language_model.model.layers.1.experts.switch_glu";
  const like = (tensors: Map<string, RawTensor>, name: string): RawTensor => ({
    ...tensors.get(name)!,
  });
  test.each<[string, (tensors: Map<string, RawTensor>) => unknown, string]>([
    [
      "a missing matrix",
      (t) => [".weight", ".scales", ".biases"].map((end) => t.delete(q + end)),
      `lacks the tensor ${q}.weight`,
    ],
    ["missing scales", (t) => t.delete(`${q}.scales`), `${q}.scales is missing`],
    ["missing biases", (t) => t.delete(`${q}.biases`), `${q}.biases is missing`],
    ["scales alone", (t) => t.delete(`${q}.weight`), `no quantized ${q}.weight`],
    ["scales of F16", (t) => (t.get(`${q}.scales`)!.dtype = "F16"), "is F16; expected BF16"],
    [
      "a missing norm",
      (t) => t.delete("language_model.model.norm.weight"),
      "lacks the tensor language_model.model.norm.weight",
    ],
    [
      "a norm of F16",
      (t) => (t.get("language_model.model.norm.weight")!.dtype = "F16"),
      "is F16; expected BF16",
    ],
    [
      "a missing projection of the experts",
      (t) => [".weight", ".scales", ".biases"].map((end) => t.delete(`${experts}.up_proj${end}`)),
      "layer 1 lacks quantized experts for up",
    ],
    [
      "a tensor of another family",
      (t) => t.set("model.layers.0.x", like(t, "language_model.model.norm.weight")),
      "no tensor of the gemma4 family",
    ],
    [
      "a tensor without a use",
      (t) =>
        t.set("language_model.model.layers.0.extra", like(t, "language_model.model.norm.weight")),
      "has no use",
    ],
    [
      "a layer beyond the last",
      (t) =>
        t.set(
          "language_model.model.layers.6.layer_scalar",
          like(t, "language_model.model.norm.weight"),
        ),
      "no tensor of the gemma4 family",
    ],
    [
      "experts of another shape",
      (t) => {
        for (const end of [".weight", ".scales", ".biases"]) {
          const tensor = t.get(experts + ".gate_proj" + end)!;
          tensor.shape = [4, 2 * tensor.shape[1]!, tensor.shape[2]!];
        }
      },
      "config.json says [8, 64, 128]",
    ],
  ])("refuses %s", async (_, damage, sentence) => {
    const folder = copyOfGolden("gemma4-a");
    editTensors(folder, damage);
    expect((await failureOf(() => planOf(folder))).message).toContain(sentence);
  });

  test("refuses bits that the shapes contradict", async () => {
    const folder = copyOfGolden("gemma4-a");
    editJson(path.join(folder, "config.json"), (config) => {
      config["quantization"][q] = { bits: 8, group_size: 64 };
    });
    const { message } = await failureOf(() => planOf(folder));
    expect(message).toContain(`${q}.weight: config.json declares 8 bits`);
  });

  test("reads a fixture's golden config with its own widths", async () => {
    const plan = await planOf(path.join(GOLDEN, "gemma4-a-h320"));
    expect(plan.quant.sharedExpert.weightBits).toBe(8);
  });
});
