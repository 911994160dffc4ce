/**
 * The contents of a synthetic package: every byte a function of the seed, the tensor's name and the place
 * in it, so that files can be written in any order and in tiles. Knows which experts the embedding of an
 * id makes the routers choose. Knows no file.
 *
 * Values are well conditioned: norms in front of attention keep its scores near one, the norms behind each
 * half of a layer are small, so that thirty layers of random matrices neither explode nor decorrelate two
 * correct implementations.
 *
 * Routing: the first columns of the embedding, one for each expert, are high for the experts of an id and
 * zero else; a layer's router reads them in an order of its own. Following ids share experts, others do
 * not.
 */
import { createCipheriv, createHash } from "node:crypto";

/** Bytes of the largest tile that `write` is asked for. */
export const TILE_BYTES = 1 << 20;

/** Of the model whose weights are made; `bench/synthetic/` has them. */
export interface Recipe {
  readonly arch: Dims;
  /** How the names of routers end. */
  readonly router: string;
  readonly embeddingMultiplier: number;
  readonly scaleOf: (name: string) => number;
  readonly plainValue: (place: Place) => number;
}

export interface Dims {
  readonly hiddenSize: number;
  readonly vocabSize: number;
  readonly numExperts: number;
  readonly topKExperts: number;
}

/** Where the bytes belong. */
export interface Place {
  /** Of the checkpoint's tensor. */
  readonly name: string;
  readonly shape: readonly number[];
  /** In the tensor's bytes. */
  readonly offset: number;
}

/** A high column of the embedding, as the residual stream sees it. */
export const MARK = 8;
const CODE_MAX = 15;
/** Spread of the codes 0 to 15, all equally likely. */
const CODE_SPREAD = Math.sqrt((16 ** 2 - 1) / 12);
const GROUP = 64;
/** Half of 1 / 127: the score of a marked expert is about half the mark. */
const ROUTER_SCALE = 2 ** -8;
const ROUTER_ZERO = 128;
const ROUTER_HIGH = 255;
const ZEROS = new Uint8Array(TILE_BYTES);

/** A small generator of fractions in [0, 1): mulberry32, its state from a hash of the name. */
export function fractions(name: string): () => number {
  let state = createHash("sha256").update(name).digest().readUInt32LE(0);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The numbers 0 to `count - 1` in a random order. */
export function permutation(count: number, random: () => number): number[] {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

/** Fills `target` with a named sequence of random bytes from `offset` on, a multiple of 16. */
export function randomFill(name: string, offset: number, target: Uint8Array): void {
  // AES in counter mode is the fastest generator at hand, and can begin anywhere.
  const key = createHash("sha256").update(name).digest();
  const counter = new Uint8Array(16);
  new DataView(counter.buffer).setBigUint64(8, BigInt(offset / 16));
  const cipher = createCipheriv("aes-128-ctr", key.subarray(0, 16), counter);
  target.set(cipher.update(ZEROS.subarray(0, target.length)));
}

/** The BF16 bits of a number, rounded to the nearest. */
function bf16(value: number): number {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0]!;
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

export class SyntheticWeights {
  readonly #seed: string;
  readonly #recipe: Recipe;
  readonly #dims: Dims;
  /** `[V, K]`: the marked columns of each id. */
  readonly #marks: Uint16Array;

  /** @param overlap probability that an id keeps each of the experts of the id before it */
  constructor(recipe: Recipe, seed: string, overlap: number) {
    this.#recipe = recipe;
    this.#dims = recipe.arch;
    this.#seed = seed;
    this.#marks = markIds(recipe.arch, overlap, fractions(`${seed}/marks`));
  }

  /** Fills `target` with the tensor's bytes from `place.offset` on. */
  write(place: Place, target: Uint8Array): void {
    const { name } = place;
    if (name.endsWith(`${this.#recipe.router}.weight`)) return this.#router(place, target);
    if (isMatrix(name, place.shape)) {
      randomFill(`${this.#seed}/${name}`, place.offset, target);
      if (name.endsWith("embed_tokens.weight")) this.#mark(place, target);
      return undefined;
    }
    const values = new Uint16Array(target.buffer, target.byteOffset, target.byteLength / 2);
    values.fill(bf16(this.#constant(place)));
    if (name.includes("embed_tokens.")) this.#markScales(place, values);
    return undefined;
  }

  #mark({ offset }: Place, target: Uint8Array): void {
    const { hiddenSize, numExperts, topKExperts: topK } = this.#dims;
    const rowBytes = hiddenSize / 2;
    for (let at = 0; at < target.length; at += rowBytes) {
      const id = (offset + at) / rowBytes;
      target.fill(0, at, at + numExperts / 2);
      for (const column of this.#marks.subarray(id * topK, (id + 1) * topK)) {
        target[at + (column >> 1)]! |= CODE_MAX << (4 * (column & 1));
      }
    }
  }

  #markScales({ name, offset }: Place, values: Uint16Array): void {
    const { hiddenSize, numExperts } = this.#dims;
    const groups = hiddenSize / GROUP;
    const mark = MARK / CODE_MAX / this.#recipe.embeddingMultiplier;
    const high = name.endsWith(".scales") ? bf16(mark) : 0;
    for (let at = 0; at < values.length; at += 1) {
      if ((offset / 2 + at) % groups < numExperts / GROUP) values[at] = high;
    }
  }

  #router({ name, offset }: Place, target: Uint8Array): void {
    const { hiddenSize, numExperts } = this.#dims;
    const order = permutation(numExperts, fractions(`${this.#seed}/${name}`));
    target.fill(ROUTER_ZERO);
    for (const [expert, column] of order.entries()) {
      const at = expert * hiddenSize + column - offset;
      if (at >= 0 && at < target.length) target[at] = ROUTER_HIGH;
    }
  }

  /** The value of a tensor that is not random. */
  #constant(place: Place): number {
    const { name, shape } = place;
    const { router, scaleOf, plainValue } = this.#recipe;
    if (name.endsWith(`${router}.scales`)) return ROUTER_SCALE;
    if (name.endsWith(`${router}.biases`)) return -ROUTER_ZERO * ROUTER_SCALE;
    if (!name.endsWith(".scales") && !name.endsWith(".biases")) return plainValue(place);
    const columns = shape.at(-1)! * GROUP;
    const scale = scaleOf(name) / (CODE_SPREAD * Math.sqrt(columns));
    return name.endsWith(".scales") ? scale : (-CODE_MAX / 2) * scale;
  }
}

/** Whether a tensor is the codes of a matrix; a convolution's taps are none. */
const isMatrix = (name: string, shape: readonly number[]): boolean =>
  name.endsWith(".weight") && shape.length > 1 && !name.endsWith("conv1d.weight");

/**
 * The marked columns of every id, `[V, K]`: each id keeps each mark of the one before it with a probability
 * and draws the others anew.
 */
export function markIds(dims: Dims, overlap: number, random: () => number): Uint16Array {
  const { vocabSize, numExperts, topKExperts: topK } = dims;
  const marks = new Uint16Array(vocabSize * topK);
  let before: readonly number[] = permutation(numExperts, random).slice(0, topK);
  marks.set(before);
  for (let id = 1; id < vocabSize; id += 1) {
    const kept = before.filter(() => random() < overlap);
    const taken = new Set([...before, ...kept]);
    while (kept.length < topK) {
      const expert = Math.floor(random() * numExperts);
      if (taken.has(expert)) continue;
      taken.add(expert);
      kept.push(expert);
    }
    marks.set(kept, id * topK);
    before = kept;
  }
  return marks;
}
