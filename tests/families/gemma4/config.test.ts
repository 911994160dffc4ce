import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { parseConfig, ropeFrequencies } from "../../../src/families/gemma4/config.ts";
import { gemma4 } from "../../../src/families/gemma4/index.ts";
import type { JsonValue } from "../../../src/format/json.ts";
import { DEMO, GOLDEN } from "../../fixtures/checkpoints.ts";

type Json = any;
const load = (folder: string): Json =>
  JSON.parse(fs.readFileSync(path.join(folder, "config.json"), "utf8"));
const demo = () => load(DEMO);

describe("parseConfig", () => {
  test("reads the demo's config", () => {
    const config = parseConfig(demo() as JsonValue);
    expect(config.hiddenSize).toBe(384);
    expect(config.layerKinds.filter((kind) => kind === "full")).toHaveLength(2);
    expect(config.eosTokenIds).toEqual([1, 106, 50]);
    expect(config.fullPartialRotaryFactor).toBe(0.25);
    expect(gemma4.archOf(config)).toMatchObject({
      numFullKVHeads: 1,
      fullHeadDim: 128,
      ropeTheta: 10_000,
    });
  });

  test.each(["gemma4-a", "gemma4-a-h320", "gemma4-a-e16"])("reads %s", (fixture) => {
    parseConfig(load(path.join(GOLDEN, fixture)) as JsonValue);
  });

  const needed = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "layer_types",
    "num_attention_heads",
    "num_key_value_heads",
    "num_global_key_value_heads",
    "head_dim",
    "global_head_dim",
    "sliding_window",
    "rope_parameters",
    "rms_norm_eps",
    "final_logit_softcapping",
    "enable_moe_block",
    "num_experts",
    "top_k_experts",
    "hidden_activation",
    "attention_k_eq_v",
    "attention_bias",
    "num_kv_shared_layers",
    "hidden_size_per_layer_input",
    "use_double_wide_mlp",
    "use_bidirectional_attention",
    "max_position_embeddings",
  ];
  test.each(needed)("has no default for %s", (key) => {
    const config = demo();
    delete config.text_config[key];
    expect(() => parseConfig(config)).toThrow(key);
  });

  test.each(["bos_token_id", "pad_token_id", "eos_token_id", "tie_word_embeddings"])(
    "takes %s from either place, and from one of them",
    (key) => {
      const config = demo();
      delete config[key];
      parseConfig(config);
      delete config.text_config[key];
      expect(() => parseConfig(config)).toThrow(key);
    },
  );

  const text = (change: Record<string, unknown>) => (config: Json) =>
    Object.assign(config.text_config, change);
  test.each<[string, (config: Json) => unknown, string]>([
    ["shared KV layers", text({ num_kv_shared_layers: 4 }), "num_kv_shared_layers"],
    [
      "per-layer embeddings",
      text({ hidden_size_per_layer_input: 256 }),
      "hidden_size_per_layer_input",
    ],
    ["a double-wide MLP", text({ use_double_wide_mlp: true }), "use_double_wide_mlp"],
    ["no experts", text({ enable_moe_block: false }), "enable_moe_block"],
    ["values apart from keys", text({ attention_k_eq_v: false }), "attention_k_eq_v"],
    ["attention bias", text({ attention_bias: true }), "attention_bias"],
    ["an attention softcap", text({ attn_logit_softcapping: 50 }), "attn_logit_softcapping"],
    ["another activation", text({ hidden_activation: "silu" }), "hidden_activation"],
    [
      "bidirectional text",
      text({ use_bidirectional_attention: "all" }),
      "use_bidirectional_attention",
    ],
    ["an untied head", text({ tie_word_embeddings: false }), "tie_word_embeddings"],
    [
      "an untied head at the root",
      (config) => (config.tie_word_embeddings = false),
      "tie_word_embeddings",
    ],
    ["no softcap", text({ final_logit_softcapping: null }), "final_logit_softcapping"],
    [
      "an unknown layer type",
      (config) => (config.text_config.layer_types[0] = "linear_attention"),
      "layer_types",
    ],
    [
      "too few layer types",
      (config) => config.text_config.layer_types.shift(),
      "7 entries for 8 layers",
    ],
    [
      "a sliding last layer",
      (config) => (config.text_config.layer_types[7] = "sliding_attention"),
      "last layer",
    ],
    [
      "a scaled sliding rope",
      (config) => (config.text_config.rope_parameters.sliding_attention.rope_type = "linear"),
      "rope_type",
    ],
    [
      "a full rope that is not proportional",
      (config) => (config.text_config.rope_parameters.full_attention.rope_type = "default"),
      "rope_type",
    ],
    [
      "no rotary factor",
      (config) => delete config.text_config.rope_parameters.full_attention.partial_rotary_factor,
      "partial_rotary_factor",
    ],
    [
      "a rotary factor above 1",
      (config) => (config.text_config.rope_parameters.full_attention.partial_rotary_factor = 2),
      "partial_rotary_factor",
    ],
    [
      "no full rope",
      (config) => delete config.text_config.rope_parameters.full_attention,
      "full_attention",
    ],
    ["a fractional width", text({ hidden_size: 384.5 }), "hidden_size"],
    ["a width of text", text({ hidden_size: "384" }), "hidden_size"],
    ["a boolean width", text({ hidden_size: true }), "hidden_size"],
    ["a width of no group", text({ hidden_size: 100 }), "not a multiple of the group"],
    ["an immense width", text({ hidden_size: 2 ** 40 }), "hidden_size"],
    ["no layers", text({ num_hidden_layers: 0 }), "num_hidden_layers"],
    ["more experts a token than there are", text({ top_k_experts: 33 }), "top_k_experts"],
    ["heads that cannot share", text({ num_key_value_heads: 4 }), "cannot share 4"],
    [
      "a stop token outside the vocabulary",
      (config) => (config.eos_token_id = [1, 8192]),
      "outside the vocabulary",
    ],
    ["no text_config", (config) => delete config.text_config, "text_config"],
  ])("refuses %s", (_, damage, sentence) => {
    const config = demo();
    damage(config);
    expect(() => parseConfig(config)).toThrow(sentence);
    expect(() => parseConfig(config)).toThrow(expect.objectContaining({ code: "format.config" }));
  });
});

describe("ropeFrequencies", () => {
  const config = parseConfig(demo() as JsonValue);

  test("rotates every pair of a sliding layer", () => {
    const found = ropeFrequencies(config, "sliding");
    expect(found).toHaveLength(32);
    expect(found[0]).toBe(1);
    expect(found[31]).toBe(Math.fround(10_000 ** (-62 / 64)));
  });

  test("rotates a quarter of a full layer's pairs, with the exponent over the whole head", () => {
    const found = ropeFrequencies(config, "full");
    expect(found).toHaveLength(64);
    expect(found[15]).toBe(Math.fround(1_000_000 ** (-30 / 128)));
    expect([...found.subarray(16)]).toEqual(Array.from({ length: 48 }, () => 0));
  });
});
