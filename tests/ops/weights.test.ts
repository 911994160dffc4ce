import { afterAll, describe, expect, test } from "bun:test";
import type { ResidentEntry } from "../../src/format/resident.ts";
import { Device, type Memory } from "../../src/native/device.ts";
import { planRegions, Weights } from "../../src/ops/weights.ts";
import { open, packageOf } from "../fixtures/packages.ts";
import { library } from "../golden/library.ts";
import { createRandom } from "../reference/random.ts";

/** A tensor whose arrays have the given ranges. */
function entry(...ranges: readonly (readonly [offset: number, bytes: number])[]): ResidentEntry {
  const [codes, scales, biases] = ranges.map(([offset, bytes]) => ({ offset, bytes }));
  const shape = { name: "t", dtype: "U32" as const, shape: [1, 1] };
  return scales === undefined || biases === undefined
    ? { ...shape, ...codes! }
    : { ...shape, ...codes!, scales, biases };
}

describe("planRegions", () => {
  test("is the whole file where the device takes it", () => {
    const limits = { fileBytes: 10_001, pageBytes: 16, bufferBytesMax: 10_001 };
    expect(planRegions([entry([100, 50])], limits)).toEqual([{ offset: 0, bytes: 10_001 }]);
  });

  test("cuts between tensors, at pages that neighbours may share", () => {
    const entries = [entry([100, 100]), entry([200, 50]), entry([250, 150])];
    const limits = { fileBytes: 400, pageBytes: 16, bufferBytesMax: 256 };
    expect(planRegions(entries, limits)).toEqual([
      { offset: 0, bytes: 256 },
      { offset: 240, bytes: 160 },
    ]);
  });

  test("goes past a page only as far as the largest buffer allows", () => {
    const limits = { fileBytes: 400, pageBytes: 16, bufferBytesMax: 250 };
    expect(planRegions([entry([100, 150]), entry([250, 150])], limits)[0]).toEqual({
      offset: 0,
      bytes: 250,
    });
  });

  test("refuses one tensor that is too large, with both sizes", () => {
    const limits = { fileBytes: 1000, pageBytes: 16, bufferBytesMax: 256 };
    const plan = () =>
      planRegions([entry([0, 100]), entry([100, 300], [400, 20], [420, 20])], limits);
    expect(plan).toThrow(expect.objectContaining({ code: "native.memory" }));
    expect(plan).toThrow("a tensor of 340 bytes exceeds the device's largest buffer of 256");
  });

  test("covers every array of random files, interleaved ones too", () => {
    const random = createRandom(5);
    for (let round = 0; round < 200; round += 1) {
      const arrays: [number, number][] = [];
      let end = random.below(100);
      for (let i = 0; i < 30; i += 1) {
        const bytes = 1 + random.below(60);
        arrays.push([end, bytes]);
        end += bytes;
      }
      // Now and then the next tensor lies between the arrays of one.
      for (let i = 2; i + 3 < 30; i += 6) {
        if (random.below(10) < 5) [arrays[i], arrays[i + 3]] = [arrays[i + 3]!, arrays[i]!];
      }
      const entries = Array.from({ length: 10 }, (_, i) =>
        entry(...arrays.slice(3 * i, 3 * i + 3)),
      );
      const limits = { fileBytes: end, pageBytes: 16, bufferBytesMax: 400 };
      const regions = planRegions(entries, limits);
      for (const { offset, bytes } of regions) {
        expect(offset % 16).toBe(0);
        expect(bytes).toBeLessThanOrEqual(400);
        expect(offset + bytes).toBeLessThanOrEqual(end);
      }
      for (const [offset, bytes] of arrays) {
        const covers = regions.some(
          (region) => region.offset <= offset && offset + bytes <= region.offset + region.bytes,
        );
        expect(covers).toBe(true);
      }
    }
  });
});

/** A device that only remembers what part of the file each buffer is. */
function recordingDevice(bufferBytesMax: number, fileBytes: number) {
  const bound: number[] = [];
  const released: string[] = [];
  const device = {
    info: { pageBytes: 4096, bufferBytesMax },
    mapFile: (): Memory => ({ id: 1, byteLength: fileBytes, address: 0 }),
    bindMemory: (_: Memory, offset: number, byteLength: number) => {
      if (byteLength > bufferBytesMax) throw new Error("too large");
      return { id: bound.push(offset) - 1, byteLength };
    },
    destroyBuffer: ({ id }: { id: number }) => released.push(`buffer ${id}`),
    release: () => released.push("memory"),
  };
  return { device: device as unknown as Device, bound, released };
}

describe("weights", async () => {
  const model = await open(await packageOf());
  const device = new Device({ library, threads: 1 });
  const file = { path: model.weights.path, entries: model.resident };
  const weights = new Weights(device, file);
  afterAll(() => {
    weights.close();
    device.close();
  });
  const prefix = "language_model.model.layers.0";

  test("are found by name, with what the index says of them", () => {
    const q = weights.matrix(`${prefix}.self_attn.q_proj.weight`);
    expect([q.rows, q.columns, q.bits]).toEqual([128, 128, 4]);
    expect(weights.matrix(`${prefix}.router.proj.weight`).bits).toBe(8);
    expect(weights.vector(`${prefix}.input_layernorm.weight`).length).toBe(128);
    expect(weights.byteLength).toBe(model.weights.sizeBytes);
  });

  test.each([
    ["no.such.tensor", "matrix", "the package has no tensor no.such.tensor: install it again"],
    [`${prefix}.input_layernorm.weight`, "matrix", "BF16 [128], expected a quantised matrix"],
    [`${prefix}.self_attn.q_proj.weight`, "vector", "[128, 128], expected BF16 values"],
  ] as const)("%s is no %s", (name, kind, sentence) => {
    const bind = () => weights[kind](name);
    expect(bind).toThrow(expect.objectContaining({ code: "format.index" }));
    expect(bind).toThrow(sentence);
  });

  test("are the same bytes of the file however small the device's buffers are", () => {
    const largest = Math.max(...[...model.resident.values()].map(({ bytes }) => bytes));
    const small = recordingDevice(2 * largest, model.weights.sizeBytes);
    const cut = new Weights(small.device, file);
    expect(small.bound.length).toBeGreaterThan(4);
    const placeOf = ({ buffer, offset = 0 }: { buffer: { id: number }; offset?: number }) =>
      small.bound[buffer.id]! + offset;
    for (const [name, entry] of model.resident) {
      if (entry.scales === undefined) {
        expect(placeOf(cut.vector(name))).toBe(entry.offset);
        continue;
      }
      const { codes, scales, biases } = cut.matrix(name);
      const found = [placeOf(codes), placeOf(scales), placeOf(biases)];
      expect(found).toEqual([entry.offset, entry.scales.offset, entry.biases!.offset]);
    }
    cut.close();
    expect(small.released).toHaveLength(small.bound.length + 1);
  });

  test("leave nothing mapped when a tensor does not fit", () => {
    const small = recordingDevice(4096, model.weights.sizeBytes);
    expect(() => new Weights(small.device, file)).toThrow("largest buffer of 4096");
    expect(small.released).toEqual(["memory"]);
  });
});
