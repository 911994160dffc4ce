import { describe, expect, test } from "bun:test";
import { familyOfConfig, familyOfManifest } from "../../src/families/index.ts";
import { checkResident } from "../../src/families/rules.ts";
import type { ResidentTensor } from "../../src/format/package.ts";

describe("checkResident", () => {
  const spec = { name: "m.weight", shape: [2, 64], bits: [4, 8] };
  const matrix: ResidentTensor = {
    name: "m.weight",
    dtype: "U32",
    shape: [2, 64],
    offset: 16_384,
    bytes: 64,
    scales: { offset: 16_448, bytes: 4 },
    biases: { offset: 16_452, bytes: 4 },
    bits: 4,
    groupSize: 64,
  };
  const { scales: _scales, biases: _biases, bits: _bits, groupSize: _group, ...bare } = matrix;

  test("accepts every declared width", () => {
    checkResident(matrix, spec);
    checkResident({ ...matrix, bytes: 128, bits: 8 }, spec);
    checkResident({ ...bare, dtype: "BF16", bytes: 256 }, { name: "m.weight", shape: [2, 64] });
  });

  test.each<[string, ResidentTensor | undefined, Partial<typeof spec>, string]>([
    ["an absent tensor", undefined, {}, "lacks the tensor m.weight"],
    ["another shape", matrix, { shape: [64, 2] }, "has the shape [2, 64]; expected [64, 2]"],
    ["another width", { ...matrix, bytes: 32, bits: 2 }, {}, "expected 4 or 8 bits"],
    ["no companions", bare, {}, "not a quantized matrix"],
    [
      "short scales",
      { ...matrix, scales: { offset: 16_448, bytes: 2 } },
      {},
      "2 and 4 bytes of scales",
    ],
    [
      "short biases",
      { ...matrix, biases: { offset: 16_452, bytes: 2 } },
      {},
      "4 and 2 bytes of scales",
    ],
    ["an odd offset", { ...matrix, offset: 16_385 }, {}, "odd offset"],
  ])("refuses %s", (_, found, change, sentence) => {
    expect(() => checkResident(found, { ...spec, ...change })).toThrow(sentence);
  });

  test.each<[string, ResidentTensor, string]>([
    ["words", bare, "is U32; expected BF16"],
    ["companions", { ...matrix, dtype: "BF16" }, "not quantized"],
    ["another size", { ...bare, dtype: "BF16", bytes: 254 }, "254 bytes; expected 256"],
  ])("refuses a plain tensor with %s", (_, found, sentence) => {
    expect(() => checkResident(found, { name: "m.weight", shape: [2, 64] })).toThrow(sentence);
  });
});

describe("the registry", () => {
  test("finds a family by model type and by manifest", () => {
    expect(familyOfConfig({ model_type: "gemma4" }).id).toBe("gemma4");
    expect(familyOfManifest(undefined).id).toBe("gemma4");
  });

  test.each([[{ model_type: "llama" }], [{}], [[]], ["x"], [null]])(
    "refuses the config %j",
    (config) => {
      expect(() => familyOfConfig(config)).toThrow(
        expect.objectContaining({ code: "model.family" }),
      );
    },
  );
});
