import { describe, expect, test } from "bun:test";
import {
  encodeLayout,
  packSubTensors,
  parseLayout,
  SUB_TENSOR_NAMES,
  type Layout,
  type SubTensor,
  type SubTensorName,
} from "../../src/format/layout.ts";

const STRIDE = 16_384;
const weight = { bytes: 1024, dtype: "U32", shape: [32, 64], bits: 4 } as const;
const companion = { bytes: 64, dtype: "BF16", shape: [32, 1] } as const;
const parts = Object.fromEntries(
  SUB_TENSOR_NAMES.map((name) => [name, name.includes("_") ? companion : weight]),
) as unknown as Record<SubTensorName, Omit<SubTensor, "offset">>;
const { table } = packSubTensors(parts);

const layout: Layout = {
  strideBytes: STRIDE,
  expertCount: 2,
  layers: [0, 1].map((index) => ({
    index,
    file: `layer_0${index}.bin`,
    expertOffsets: [0, STRIDE],
    subTensors: table,
  })),
};
const EXPECTED = { strideBytes: STRIDE, layerCount: 2, expertCount: 2, denseLayerCount: 0 };
const encode = (value: Layout) => [...encodeLayout(value)].join("");
const parse = (json: unknown, expected = EXPECTED) =>
  parseLayout(new TextEncoder().encode(JSON.stringify(json)), expected, "layout.json");
const text = encode(layout);

describe("parseLayout", () => {
  test("round trips", () => {
    expect(parse(JSON.parse(text))).toEqual(layout);
  });

  test("packs the nine parts from offset 0", () => {
    expect(SUB_TENSOR_NAMES.map((name) => table[name].offset)).toEqual([
      0, 1024, 1088, 1152, 2176, 2240, 2304, 3328, 3392,
    ]);
  });

  test("takes layers in any order, ids by position, and physical ranks", () => {
    const json = JSON.parse(text);
    json.layers.reverse();
    for (const expert of json.layers[0].experts) delete expert.expert;
    const [first, second] = json.layers[1].experts;
    Object.assign(first, { physicalRank: 1, offset: STRIDE });
    Object.assign(second, { physicalRank: 0, offset: 0 });
    const parsed = parse(json);
    expect(parsed.layers[0]!.expertOffsets).toEqual([STRIDE, 0]);
    expect(parsed.layers[1]!.expertOffsets).toEqual([0, STRIDE]);
  });

  test("takes a table whose keys are in another order for the same table", () => {
    const json = JSON.parse(text);
    const [, second] = json.layers[0].experts;
    second.tensors = Object.fromEntries(Object.entries(second.tensors).toReversed());
    expect(parse(json)).toEqual(layout);
  });

  test("lets only layers of the dense prefix be empty", () => {
    const json = JSON.parse(text);
    json.layers[0].experts = [];
    expect(parse(json, { ...EXPECTED, denseLayerCount: 1 }).layers[0]!.subTensors).toBeUndefined();
    expect(() => parse(json)).toThrow("layer 0 has no experts");
  });

  type Json = any;
  const expert = (json: Json, layer = 0, index = 0) => json.layers[layer].experts[index];
  test.each<[string, (json: Json) => void, string]>([
    ["another stride", (json) => (json.expertStride = 32_768), "expertStride is 32768"],
    ["another layer count", (json) => (json.numLayers = 3), "numLayers is 3"],
    ["another expert count", (json) => (json.expertsPerLayer = 3), "expertsPerLayer is 3"],
    ["a missing layer", (json) => json.layers.pop(), "number of layers is 1"],
    ["a layer twice", (json) => (json.layers[1].layer = 0), "appears twice"],
    ["a layer out of range", (json) => (json.layers[1].layer = 7), "layer 1 is missing"],
    ["a missing expert", (json) => json.layers[1].experts.pop(), "expert count of layer 1 is 1"],
    ["an expert twice", (json) => (expert(json, 0, 1).expert = 0), "offset is 16384; expected 0"],
    ["an expert id out of range", (json) => (expert(json, 0, 1).expert = 2), "ids end at 1"],
    ["mixed id styles", (json) => delete expert(json, 0, 1).expert, "numbers some experts"],
    [
      "a rank twice",
      (json) => Object.assign(expert(json, 0, 1), { physicalRank: 0, offset: 0 }),
      "two experts at offset 0",
    ],
    ["a rank out of range", (json) => (expert(json, 0, 1).physicalRank = 2), "rank 2 of 2"],
    [
      "an offset that is not the rank's",
      (json) => (expert(json, 0, 1).offset = 100),
      "offset is 100",
    ],
    ["a size that is not the stride", (json) => (expert(json).size = 100), "size is 100"],
    ["a negative offset", (json) => (expert(json).offset = -1), "offset"],
    ["a fractional offset", (json) => (expert(json).offset = 0.5), "offset"],
    ["an escaping file", (json) => (json.layers[0].file = "../x.bin"), ". or .."],
    ["a file in a folder", (json) => (json.layers[0].file = "a/x.bin"), "bare file name"],
    ["a reserved file", (json) => (json.layers[0].file = "Layout.json"), "reserved"],
    ["two layers in one file", (json) => (json.layers[1].file = "LAYER_00.bin"), "share the file"],
    ["a missing part", (json) => delete expert(json).tensors.up_scales, "up_scales"],
    ["an unknown part", (json) => (expert(json).tensors.extra = { ...weight }), "extra"],
    [
      "a part outside the expert",
      (json) => (expert(json).tensors.gate.offset = STRIDE - 1000),
      "beyond the stride",
    ],
    ["overlapping parts", (json) => (expert(json).tensors.up.offset = 1000), "overlap"],
    ["an odd offset", (json) => (expert(json).tensors.down_biases.offset += 1), "odd offset"],
    ["an empty part", (json) => (expert(json).tensors.gate.size = 0), "size"],
    ["an unknown dtype", (json) => (expert(json).tensors.gate.dtype = "F32"), "dtype"],
    [
      "weights that are not packed",
      (json) =>
        Object.assign(expert(json).tensors.gate, { dtype: "BF16", size: 4096, offset: 8192 }),
      "expected U32",
    ],
    [
      "packed scales",
      (json) => Object.assign(expert(json).tensors.gate_scales, { dtype: "U32", bits: 16 }),
      "expected BF16",
    ],
    ["weights without bits", (json) => delete expert(json).tensors.gate.bits, "has no bits"],
    ["33 bits", (json) => (expert(json).tensors.gate.bits = 33), "bits"],
    [
      "bits that the size contradicts",
      (json) => (expert(json).tensors.gate.bits = 8),
      "size is 1024; expected 2048",
    ],
    ["a dimension of 0", (json) => (expert(json).tensors.gate.shape = [0, 64]), "shape"],
    [
      "a shape that wraps",
      (json) => (expert(json).tensors.gate.shape = [2 ** 40, 2 ** 40]),
      "2^53",
    ],
    [
      "scales of other rows",
      (json) => (expert(json).tensors.gate_scales.shape = [16, 2]),
      "gate_scales is [16, 2]",
    ],
    [
      "biases of another shape",
      (json) =>
        Object.assign(expert(json).tensors.gate_biases, {
          shape: [32, 2],
          size: 128,
          offset: 8192,
        }),
      "differ in shape",
    ],
    [
      "a second expert with another table",
      (json) => (expert(json, 0, 1).tensors.gate.offset = 8192),
      "differs from the first",
    ],
    [
      "a second expert with other bits",
      (json) => (expert(json, 0, 1).tensors.gate.bits = 2),
      "differs from the first",
    ],
  ])("refuses %s", (_, damage, sentence) => {
    const json = JSON.parse(text);
    damage(json);
    expect(() => parse(json)).toThrow(sentence);
  });

  test("refuses an expert that ends beyond 2^32", () => {
    const strideBytes = 2 ** 31 + STRIDE;
    const offsets = [0, strideBytes];
    const layers = [{ ...layout.layers[0]!, expertOffsets: offsets }];
    const json = JSON.parse(encode({ strideBytes, expertCount: 2, layers }));
    const expected = { ...EXPECTED, strideBytes, layerCount: 1 };
    expect(() => parse(json, expected)).toThrow("beyond 2^32");
  });
});
