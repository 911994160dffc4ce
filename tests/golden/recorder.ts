/** Collects the stages of a forward pass row by row, in the names and layouts of the fixtures. */
import type { Tap } from "../../src/families/family.ts";
import type { Model } from "../../src/engine/model.ts";
import type { Binding } from "../../src/native/commands.ts";
import type { Routes } from "../../src/ops/ops.ts";
import { floatsOf, integersOf, type Tensor } from "../../src/ops/tensor.ts";
import { floatFromF16 } from "../reference/half.ts";

/** Rows of one stage over all calls. */
export class Rows {
  readonly #parts: number[][] = [];

  push(row: ArrayLike<number>): void {
    this.#parts.push(Array.from(row));
  }

  /** The last `count` rows, flattened. */
  last(count: number): number[] {
    return this.#parts.slice(-count).flat();
  }

  get count(): number {
    return this.#parts.length;
  }
}

export class StageRecorder implements Tap {
  readonly #model: Model;
  readonly stages = new Map<string, Rows>();

  constructor(model: Model) {
    this.#model = model;
  }

  tensor(stage: string, tensor: Tensor, T: number): void {
    this.#model.stream.flush();
    const values = floatsOf(tensor, T);
    this.#append(stage, values, T);
    if (stage.endsWith(".prepared")) this.#prepared(stage, values, T);
  }

  /** Rows of queries, keys and values of the delta rule: the fixtures have the first two apart. */
  #prepared(stage: string, values: Float32Array, T: number): void {
    const layer = stage.slice(0, -".prepared".length);
    const { heads, valueDim, channels } = this.#model.shape.recurrentLayers!.find(
      (shape) => shape !== undefined,
    )!;
    const width = (channels - heads * valueDim) / 2;
    for (let t = 0; t < T; t += 1) {
      const row = values.subarray(t * channels, (t + 1) * channels);
      this.#rows(`${layer}.q_hat`).push(row.subarray(0, width));
      this.#rows(`${layer}.k_hat`).push(row.subarray(width, 2 * width));
    }
  }

  cache(layer: number, { T, position }: { T: number; position: number }): void {
    this.#model.stream.flush();
    for (let t = 0; t < T; t += 1) {
      const { keys, values } = this.cacheRow(layer, position + t);
      this.#rows(`layer${layer}.k`).push(keys);
      this.#rows(`layer${layer}.v`).push(values);
    }
  }

  routes(layer: number, routes: Routes, T: number): void {
    this.#model.stream.flush();
    const K = routes.perToken;
    const ids = integersOf(routes.ids, T * K);
    const weights = new Float32Array(routes.weights.bytes.buffer, 0, T * K);
    for (let t = 0; t < T; t += 1) {
      const order = Array.from({ length: K }, (_, rank) => t * K + rank).toSorted(
        (a, b) => ids[a]! - ids[b]!,
      );
      this.#rows(`layer${layer}.experts`).push(order.map((at) => ids[at]!));
      this.#rows(`layer${layer}.weights`).push(order.map((at) => weights[at]!));
    }
  }

  /** The recurrent states after all positions, as rows of the fixtures. */
  endOfStates(): Map<string, Rows> {
    const { kv, shape } = this.#model;
    const found = new Map<string, Rows>();
    for (const [layer, layerShape] of (shape.recurrentLayers ?? []).entries()) {
      if (layerShape === undefined) continue;
      const { tailRows, channels, heads, valueDim, keyDim } = layerShape;
      const { tail, state } = kv.recurrent(layer);
      const rows = (binding: Binding, count: number, width: number): Rows => {
        const { buffer, byteOffset } = kv.states().contents(binding);
        const values = new Float32Array(buffer, byteOffset, count * width);
        const all = new Rows();
        for (let row = 0; row < count; row += 1) {
          all.push(values.subarray(row * width, (row + 1) * width));
        }
        return all;
      };
      found.set(`layer${layer}.conv_end`, rows(tail, tailRows, channels));
      found.set(`layer${layer}.state_end`, rows(state, heads, valueDim * keyDim));
    }
    return found;
  }

  /** The rows of a layer's cache that a token after all positions would still see, oldest first. */
  endOfCache(layer: number): { keys: Rows; values: Rows } {
    const { kv, shape } = this.#model;
    const { window = 0 } = shape.kvLayers[layer] ?? {};
    const first = window === 0 ? 0 : Math.max(0, kv.cursor - window + 1);
    const found = { keys: new Rows(), values: new Rows() };
    for (let position = first; position < kv.cursor; position += 1) {
      const row = this.cacheRow(layer, position);
      found.keys.push(row.keys);
      found.values.push(row.values);
    }
    return found;
  }

  cacheRow(layer: number, position: number): { keys: Float32Array; values: Float32Array } {
    const { kv, shape, precision } = this.#model;
    const { kvHeads, headDim } = shape.kvLayers[layer]!;
    const width = kvHeads * headDim;
    const { keys, values, rows } = kv.contents(layer);
    const at = (position % rows) * width;
    const read = (bytes: Uint8Array<ArrayBuffer>): Float32Array =>
      precision.kvDtype === "f32"
        ? new Float32Array(bytes.buffer, 4 * at, width)
        : Float32Array.from(new Uint16Array(bytes.buffer, 2 * at, width), floatFromF16);
    return { keys: read(keys.bytes), values: read(values.bytes) };
  }

  #append(stage: string, values: Float32Array, T: number): void {
    const width = values.length / T;
    const rows = this.#rows(stage);
    for (let t = 0; t < T; t += 1) rows.push(values.subarray(t * width, (t + 1) * width));
  }

  #rows(stage: string): Rows {
    let rows = this.stages.get(stage);
    if (rows === undefined) {
      rows = new Rows();
      this.stages.set(stage, rows);
    }
    return rows;
  }
}
