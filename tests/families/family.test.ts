/** What every family declares of its checkpoints, against the published inventories. */
import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import type { Family } from "../../src/families/family.ts";
import { familyOfConfig, families } from "../../src/families/index.ts";
import { packageRules } from "../../src/families/rules.ts";
import type { JsonValue } from "../../src/format/json.ts";
import { planInstall, type InstallPlan } from "../../src/install/plan.ts";
import { installLocal } from "../../src/install/install.ts";
import { quantizationOf, type ShardTensor } from "../../src/install/source.ts";
import { decodeSafetensors, temporaryFolder } from "../fixtures/checkpoints.ts";
import { bytesOf, SNAPSHOTS, tensorsOf, writeSnapshot, type Size } from "../fixtures/snapshots.ts";
import type { Snapshot } from "../fixtures/snapshots/item.ts";

type Id = keyof typeof SNAPSHOTS;
type Json = Record<string, any>;
const IDS = Object.keys(SNAPSHOTS) as Id[];

const copyOf = (id: Id, size: Size): Snapshot => structuredClone(SNAPSHOTS[id](size));

function planOf(snapshot: Snapshot): InstallPlan {
  const config = JSON.parse(JSON.stringify(snapshot.config)) as JsonValue;
  const family = familyOfConfig(config);
  const tensors = new Map<string, ShardTensor>();
  let offset = 1000;
  for (const [name, tensor] of tensorsOf(snapshot)) {
    const bytes = bytesOf(tensor);
    tensors.set(name, { name, ...tensor, bytes, offset, shard: "model.safetensors" });
    offset += bytes;
  }
  const quantization = quantizationOf(family, config, "config.json");
  return planInstall({ family, config, quantization, tensors });
}

const plans = Object.fromEntries(IDS.map((id) => [id, planOf(copyOf(id, "tiny"))])) as Record<
  Id,
  InstallPlan
>;

/** Reads a configuration as far as a manifest needs it, without a tensor. */
function check(id: Id, config: JsonValue): void {
  const family = familyOfConfig(config) as unknown as Family<unknown>;
  const parsed = family.parseConfig(config);
  quantizationOf(families[id], config, "config.json");
  const flashHead = family.flashHeadOf?.(parsed);
  packageRules(family).checkManifest({
    arch: family.archOf(parsed),
    quant: plans[id].quant,
    flashHead,
  });
}

/** Every way to change one value of an object; arrays count as one. */
function* changes(json: Json, at: string[] = []): Generator<[string, (config: Json) => void]> {
  for (const [key, value] of Object.entries(json)) {
    const here = [...at, key];
    const set = (changed: unknown) => (config: Json) => {
      const holder = at.reduce((object, name) => object[name] as Json, config);
      holder[key] = changed;
    };
    if (typeof value === "number") {
      yield [`${here.join(".")} larger`, set(value * 2 + 1)];
      yield [`${here.join(".")} broken`, set(value + 0.5)];
      yield [`${here.join(".")} a boolean`, set(true)];
    } else if (typeof value === "boolean") yield [`${here.join(".")} turned`, set(!value)];
    else if (typeof value === "string") yield [`${here.join(".")} another`, set(`${value}x`)];
    else if (Array.isArray(value)) yield [`${here.join(".")} shorter`, set(value.slice(2))];
    else if (value !== null) yield* changes(value as Json, here);
  }
}

/**
 * What no field of the architecture holds; and the two by which a released size is known: with these
 * changed it is another model, which its tensors contradict.
 */
const FREE =
  /^(bos|pad|eos)_token_id|max_position_embeddings|^text_config.rms_norm_eps|^intermediate_size|hidden_size|num_hidden_layers|^flash_head.(n_probes|force_tokens)/;

describe.each(IDS)("the released configuration of %s", (id) => {
  test("is the compiled architecture", () => {
    check(id, copyOf(id, "full").config as JsonValue);
  });

  test("with one value changed is refused", () => {
    const unnoticed: string[] = [];
    // How tensors are packed is checked against the tensors; one family fixes it beforehand.
    const { quantization, ...others } = SNAPSHOTS[id]("full").config;
    for (const [what, change] of changes(id === "maple" ? { quantization, ...others } : others)) {
      const config = copyOf(id, "full").config;
      change(config);
      try {
        check(id, config as JsonValue);
        if (!FREE.test(what)) unnoticed.push(what);
      } catch (error) {
        expect(error).toMatchObject({ code: expect.stringMatching(/^(format|model)\./) as string });
      }
    }
    expect(unnoticed).toEqual([]);
  });
});

/** Names in the layers of a plan's common file, without the layer; each run of them once. */
function layerNames(id: Id, layer: number): readonly string[] {
  const within = new RegExp(`\\.layers\\.${layer}\\.(.*)$`);
  return [...plans[id].resident.entries.keys()].flatMap((name) => within.exec(name)?.[1] ?? []);
}

/** From a list as the published order gives it: words, with `{a,b}` for several. */
function names(text: string): string[] {
  return text
    .trim()
    .split(/\s+/)
    .flatMap((word) => {
      const [, before = "", list, after = ""] = /^(.*)\{(.*)\}(.*)$/.exec(word) ?? [];
      return list === undefined ? [word] : list.split(",").map((part) => before + part + after);
    });
}

const QWEN_END = `mlp.gate.weight mlp.shared_expert_gate.weight mlp.shared_expert.{gate,up,down}_proj.weight
  input_layernorm.weight post_attention_layernorm.weight`;
const DEEPSEEK_START = `attn.wq_a.weight attn.q_norm.weight attn.wq_b.weight attn.wkv.weight attn.kv_norm.weight
  attn.attn_sink attn.wo_{a,b}.weight`;
const COMPRESSOR = "compressor.{wkv.weight,wgate.weight,norm.weight,ape}";
const deepseekEnd = (table: string): string => `ffn.gate.weight ffn.gate.${table}
  ffn.shared_experts.{gate,up,down}_proj.weight attn_norm.weight ffn_norm.weight
  attn_hc.{fn,base,scale} ffn_hc.{fn,base,scale}`;
const INKLING_START = `attn.{wq_du,wk_dv,wv_dv,wo_ud,wr_du}.weight attn.rel_logits_proj.proj
  attn.{q_norm,k_norm,k_sconv,v_sconv}.weight`;
const INKLING_END = "{attn_sconv,mlp_sconv,attn_norm,mlp_norm}.weight";

describe("the order of the common file", () => {
  test.each<[Id, number, string]>([
    [
      "qwen36",
      0,
      `linear_attn.{in_proj_qkv,in_proj_z,in_proj_a,in_proj_b,conv1d}.weight
      linear_attn.{A_log,dt_bias,norm.weight,out_proj.weight} ${QWEN_END}`,
    ],
    ["qwen36", 3, `self_attn.{q,k,v,o}_proj.weight self_attn.{q,k}_norm.weight ${QWEN_END}`],
    ["deepseekV4Flash", 0, `${DEEPSEEK_START} ${deepseekEnd("tid2eid")}`],
    [
      "deepseekV4Flash",
      2,
      `${DEEPSEEK_START} attn.${COMPRESSOR} attn.indexer.${COMPRESSOR}
      attn.indexer.{wq_b,weights_proj}.weight ${deepseekEnd("tid2eid")}`,
    ],
    [
      "deepseekV4Flash",
      3,
      `${DEEPSEEK_START} attn.${COMPRESSOR} ${deepseekEnd("e_score_correction_bias")}`,
    ],
    [
      "inklingSmall",
      0,
      `${INKLING_START} mlp.{gate,up,down}_proj.weight mlp.global_scale ${INKLING_END}`,
    ],
    [
      "inklingSmall",
      2,
      `${INKLING_START} mlp.gate.{weight,bias,global_scale}
      mlp.shared_experts.{gate,up,down}_proj.weight ${INKLING_END}`,
    ],
    [
      "maple",
      3,
      `self_attn.{q,k,v,o}_proj.weight self_attn.{q,k}_norm.weight mlp.gate.weight
      {input,post_attention}_layernorm.weight`,
    ],
  ])("of %s, layer %i, is the published one", (id, layer, expected) => {
    expect(layerNames(id, layer)).toEqual(names(expected));
  });

  test.each<[Id, string[], string[]]>([
    ["gemma4", ["language_model.model.embed_tokens.weight"], ["language_model.model.norm.weight"]],
    [
      "qwen36",
      ["language_model.model.embed_tokens.weight"],
      ["language_model.model.norm.weight", "language_model.lm_head.weight"],
    ],
    [
      "deepseekV4Flash",
      ["model.embed_tokens.weight"],
      names("model.hc_head.{base,fn,scale} model.norm.weight lm_head.weight"),
    ],
    [
      "inklingSmall",
      names("model.llm.{embed,embed_norm}.weight"),
      names("model.llm.{norm,unembed}.weight"),
    ],
    [
      "maple",
      ["model.word_embeddings.weight"],
      names("lm_head_flash.{centroids.weight,token_map} model.norm.weight lm_head.weight"),
    ],
  ])("of %s begins and ends as published", (id, first, last) => {
    const all = [...plans[id].resident.entries.keys()];
    expect(all.slice(0, first.length)).toEqual(first);
    expect(all.slice(-last.length)).toEqual(last);
    const middle = all.slice(first.length, -last.length);
    expect(middle.filter((name) => !name.includes(".layers."))).toEqual([]);
    const layers = middle.map((name) => Number(/\.layers\.(\d+)\./.exec(name)![1]));
    expect(layers).toEqual(layers.toSorted((left, right) => left - right));
  });

  test("tables and plain tensors keep their types", () => {
    const dtypeOf = (id: Id, name: string) => plans[id].resident.entries.get(name)?.dtype;
    const deepseek = "model.layers.1.";
    expect(dtypeOf("deepseekV4Flash", `${deepseek}ffn.gate.tid2eid`)).toBe("I64");
    expect(dtypeOf("deepseekV4Flash", `${deepseek}attn.attn_sink`)).toBe("F32");
    expect(dtypeOf("deepseekV4Flash", `${deepseek}ffn.gate.weight`)).toBe("BF16");
    expect(dtypeOf("inklingSmall", "model.llm.layers.0.mlp.global_scale")).toBe("BF16");
    expect(dtypeOf("inklingSmall", "model.llm.layers.2.mlp.gate.global_scale")).toBe("F32");
    expect(dtypeOf("maple", "lm_head_flash.token_map")).toBe("I32");
  });
});

describe("manifests", () => {
  const affine = (weightBits: number) => ({
    weightBits,
    scheme: "affine",
    scaleType: "BF16",
    biasType: "BF16",
    groupSize: 64,
  });
  const none = { weightBits: 0, scheme: "none", scaleType: "none", biasType: "none", groupSize: 0 };
  const plain = { ...none, weightBits: 16, scheme: "unquantized" };
  const common = { embedding: affine(4), attention: affine(4), router: affine(8) };
  test.each<[Id, object]>([
    ["gemma4", { ...common, sharedExpert: affine(4), routedExpert: affine(4) }],
    ["qwen36", { ...common, sharedExpert: affine(4), routedExpert: affine(4) }],
    ["deepseekV4Flash", { ...common, sharedExpert: affine(4), routedExpert: affine(2) }],
    ["inklingSmall", { ...common, sharedExpert: affine(4), routedExpert: affine(4) }],
    ["maple", { ...common, router: plain, sharedExpert: none, routedExpert: affine(2) }],
  ])("of %s have the published five widths", (id, expected) => {
    expect(plans[id].quant).toEqual(expected as InstallPlan["quant"]);
  });

  test("hold the fields of their own family and no other's", () => {
    const keysOf = (id: Id): string[] => Object.keys(plans[id].arch);
    expect(keysOf("gemma4").length).toBe(21);
    expect(keysOf("gemma4")).not.toContain("family");
    const foreign = /^(ca|hc|rel)[A-Z]|numHashRoutedLayers|sconvKernelSize|logitsWidth/;
    expect(keysOf("qwen36").filter((key) => foreign.test(key))).toEqual([]);
    expect(keysOf("deepseekV4Flash").filter((key) => foreign.test(key)).length).toBe(18);
    expect(keysOf("inklingSmall").filter((key) => foreign.test(key)).length).toBe(7);
    // A reader must not have to assume any of these.
    for (const key of names(`family attnOutputGate attentionScale embeddingScaledBySqrtHidden
      routerScaled ffnSandwichNorms ropeNeoxSubdim routerScoringFunc routedScalingFactor swigluLimit
      numSharedExperts routerNormAfterTopK`)) {
      expect(keysOf("maple")).toContain(key);
    }
  });
});

describe("the kinds of layers", () => {
  const maskOf = (id: Id, change: (config: Json) => void = () => {}) => {
    const { config } = copyOf(id, "full");
    change(config);
    const family = families[id] as unknown as Family<unknown>;
    return family.archOf(family.parseConfig(config as JsonValue)).fullAttentionLayerMask;
  };

  test("of deepseek come from ratios, of which the last belongs to no layer, or from names", () => {
    const byRatio = maskOf("deepseekV4Flash");
    expect([byRatio.length, ...byRatio.slice(0, 5)]).toEqual([43, 0, 0, 3, 4, 3]);
    const kinds = ["sliding_attention", "", "", "compressed_sparse_attention"];
    const types = byRatio.map((mask) => kinds[mask] ?? "heavily_compressed_attention");
    const byName = maskOf("deepseekV4Flash", (config) => {
      config["layer_types"] = types;
    });
    expect(byName).toEqual(byRatio);
    const broken = (change: (config: Json) => void) => () => maskOf("deepseekV4Flash", change);
    expect(broken((config) => (config["layer_types"] = types.with(3, "global")))).toThrow(
      /layer_types/,
    );
    expect(broken((config) => (config["compress_ratios"][3] = 7))).toThrow(
      /compress_ratios holds 7/,
    );
  });

  test("of inkling are full where they are not listed as local", () => {
    const mask = maskOf("inklingSmall");
    const full = mask.flatMap((value, layer) => (value === 1 ? [layer] : []));
    expect(full).toEqual([5, 11, 17, 23, 29, 35, 41]);
    const outside = () =>
      maskOf("inklingSmall", (config) => config["text_config"].local_layer_ids.push(42));
    expect(outside).toThrow(/local_layer_ids holds 42, of 42 layers/);
  });
});

describe("ternary checkpoints", () => {
  const attention = "model.layers.0.self_attn.q_proj";
  const damages: [
    string,
    (tensors: Map<string, { dtype: string; shape: number[] }>) => void,
    RegExp,
  ][] = [
    ["no value for each row", (tensors) => tensors.delete(`${attention}.row_alpha`), /missing/],
    [
      "values of another type",
      (tensors) => (tensors.get(`${attention}.row_alpha`)!.dtype = "F16"),
      /expected BF16/,
    ],
    [
      "values for other rows",
      (tensors) => tensors.get(`${attention}.row_alpha`)!.shape.push(1),
      /expected BF16 \[/,
    ],
    [
      "values for rows and scales",
      (tensors) => tensors.set(`${attention}.scales`, { dtype: "BF16", shape: [128, 2] }),
      /both/,
    ],
    [
      "rows of three words",
      (tensors) => (tensors.get(`${attention}.weight`)!.shape[1] = 3),
      /multiple of 4/,
    ],
    [
      "codes of another type",
      (tensors) => (tensors.get(`${attention}.weight`)!.dtype = "I32"),
      /no quantized|dtype|is I32/,
    ],
    [
      "values beside a matrix of four bits",
      (tensors) => tensors.set("lm_head.row_alpha", { dtype: "BF16", shape: [128] }),
      /both|scales/,
    ],
    [
      "no map of its clusters",
      (tensors) => tensors.delete("lm_head_flash.token_map"),
      /lacks the tensor/,
    ],
    [
      "a map of floats",
      (tensors) => (tensors.get("lm_head_flash.token_map")!.dtype = "F32"),
      /expected I32/,
    ],
    [
      "an unknown part of its head",
      (tensors) => tensors.set("lm_head_flash.extra", { dtype: "F32", shape: [1] }),
      /no tensor of the maple family/,
    ],
  ];
  test.each(damages)("with %s are refused", (_, damage, sentence) => {
    const snapshot = copyOf("maple", "tiny");
    const config = snapshot.config as JsonValue;
    const plain = tensorsOf(snapshot) as Map<string, { dtype: string; shape: number[] }>;
    damage(plain);
    const tensors = new Map<string, ShardTensor>();
    let offset = 0;
    for (const [name, tensor] of plain as ReturnType<typeof tensorsOf>) {
      const bytes = bytesOf(tensor);
      tensors.set(name, { name, ...tensor, bytes, offset, shard: "s" });
      offset += bytes;
    }
    const quantization = quantizationOf(families.maple, config, "config.json");
    const plan = () => planInstall({ family: families.maple, config, quantization, tensors });
    expect(plan).toThrow(sentence);
  });

  test("without an approximate head leave its tensors behind", () => {
    const snapshot = copyOf("maple", "tiny");
    delete snapshot.config["flash_head"];
    const plan = planOf(snapshot);
    expect(plan.flashHead).toBeUndefined();
    expect([...plan.resident.entries.keys()].filter((name) => name.includes("flash"))).toEqual([]);
    expect(plan.droppedCount).toBe(plans.maple.droppedCount + 4);
  });

  test("keep their experts byte for byte, and say what they are", async () => {
    const source = writeSnapshot(copyOf("maple", "tiny"));
    const { directory } = await installLocal({ source, name: "m", models: temporaryFolder() });
    const manifest = JSON.parse(
      fs.readFileSync(path.join(directory, "manifest.json"), "utf8"),
    ) as Json;
    expect(manifest).toMatchObject({
      modelID: "unknown/snapshot",
      bitWidthOverridesHonored: 2,
      flashHead: { nClusters: 4, clusterSize: 32, forceTokens: [1, 7, 0] },
    });
    const name = "model.layers.1.mlp.switch_mlp.up_proj.weight";
    const shard = fs
      .readdirSync(source)
      .filter((file) => file.endsWith(".safetensors"))
      .map((file) => decodeSafetensors(fs.readFileSync(path.join(source, file))))
      .find((tensors) => tensors.has(name))!;
    const stack = shard.get(name)!;
    const { strideBytes, expertCount, layers } = plans.maple.layout;
    const file = fs.readFileSync(path.join(directory, "packed_experts", layers[1]!.file));
    const { offset, bytes } = layers[1]!.subTensors!.up;
    for (const expert of [0, expertCount - 1]) {
      const found = file.subarray(
        expert * strideBytes + offset,
        expert * strideBytes + offset + bytes,
      );
      expect(
        Buffer.compare(found, stack.bytes.subarray(expert * bytes, (expert + 1) * bytes)),
      ).toBe(0);
    }
    const sourceBytes = plans.maple.copies.reduce((total, copy) => total + copy.bytes, 0);
    const written = plans.maple.outputs.reduce((total, output) => total + output.bytes, 0);
    expect(written).toBeGreaterThan(sourceBytes);
  });
});
