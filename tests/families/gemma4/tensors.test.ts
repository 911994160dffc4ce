import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { parseConfig } from "../../../src/families/gemma4/config.ts";
import { tensors } from "../../../src/families/gemma4/tensors.ts";
import type { JsonValue } from "../../../src/format/json.ts";
import { DEMO } from "../../fixtures/checkpoints.ts";

const config = parseConfig(
  JSON.parse(fs.readFileSync(path.join(DEMO, "config.json"), "utf8")) as JsonValue,
);
const roleOf = (name: string) => tensors.roleOf(name, config);
const LAYER = "language_model.model.layers.3.";

describe("roleOf", () => {
  test.each([
    [`${LAYER}experts.switch_glu.gate_proj.weight`, "gate"],
    [`${LAYER}experts.switch_glu.up_proj.scales`, "up"],
    [`${LAYER}experts.switch_glu.down_proj.biases`, "down"],
  ])("gives %s to the experts", (name, projection) => {
    expect(roleOf(name)).toEqual({ kind: "expert", layer: 3, projection: projection as "gate" });
  });

  test.each([
    "vision_tower.x.weight",
    "embed_vision.y",
    "audio_tower.z.experts.switch_glu.up_proj.weight",
  ])("drops %s", (name) => {
    expect(roleOf(name)).toEqual({ kind: "dropped" });
  });

  test.each([
    "model.layers.0.self_attn.q_proj.weight",
    "lm_head.weight",
    "language_model.lm_head.weight",
    "language_model.model.layers.8.self_attn.q_proj.weight",
    "mtp.fc.weight",
  ])("does not know %s", (name) => {
    expect(roleOf(name)).toBeUndefined();
  });

  test("orders the common file", () => {
    const names = tensors.resident(config).map(({ name }) => name);
    const place = (name: string) => {
      const role = roleOf(name);
      if (role?.kind !== "resident") throw new Error(name);
      return [role.group, role.layer, role.slot];
    };
    const sorted = names.toSorted((left, right) => {
      const [a, b] = [place(left), place(right)];
      return a[0]! - b[0]! || a[1]! - b[1]! || a[2]! - b[2]!;
    });
    expect(sorted[0]).toBe("language_model.model.embed_tokens.weight");
    expect(sorted.at(-1)).toBe("language_model.model.norm.weight");
    const layer = sorted
      .filter((name) => name.startsWith(LAYER))
      .map((name) => name.slice(LAYER.length));
    expect(layer).toEqual([
      "self_attn.q_proj.weight",
      "self_attn.k_proj.weight",
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
    ]);
  });
});

test("full layers have no values of their own and wider heads", () => {
  const shape = (name: string) =>
    tensors.resident(config).find((spec) => spec.name === name)?.shape;
  expect(shape("language_model.model.layers.2.self_attn.v_proj.weight")).toEqual([128, 384]);
  expect(shape(`${LAYER}self_attn.v_proj.weight`)).toBeUndefined();
  expect(shape(`${LAYER}self_attn.q_proj.weight`)).toEqual([768, 384]);
  expect(shape(`${LAYER}self_attn.o_proj.weight`)).toEqual([384, 768]);
  expect(tensors.experts(config, 3)!.shapes.down).toEqual([384, 128]);
});
