/** Seeded random test data. Knows element types, no kernel. The same seed gives the same numbers for ever. */
import { bf16FromFloat } from "./half.ts";

/** A generator of uniform 32-bit words (splitmix32). */
export function randomWords(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  };
}

/** Test data by element type; each call draws on from the same seed. */
export interface Random {
  /** Uniform in [low, high). */
  readonly uniform: (low: number, high: number) => number;
  /** A whole number in [0, count). */
  readonly below: (count: number) => number;
  /** `take` distinct whole numbers in [0, count), in random order. */
  readonly distinct: (count: number, take: number) => number[];
  /** `count` normal float32 values of standard deviation `deviation`. */
  readonly normals: (count: number, deviation?: number) => Float32Array<ArrayBuffer>;
  /** `count` uniform bfloat16 values, as bits. */
  readonly bf16: (count: number, low: number, high: number) => Uint16Array<ArrayBuffer>;
  /** `count` uniform bytes. */
  readonly bytes: (count: number) => Uint8Array<ArrayBuffer>;
}

export function createRandom(seed: number): Random {
  const next = randomWords(seed);
  const unit = (): number => (next() + 0.5) / 2 ** 32;
  const uniform = (low: number, high: number): number => low + (high - low) * unit();
  const normal = (): number => Math.sqrt(-2 * Math.log(unit())) * Math.cos(2 * Math.PI * unit());
  const below = (count: number): number => Math.floor(unit() * count);
  return {
    uniform,
    below,
    distinct: (count, take) => {
      const values = Array.from({ length: count }, (_, i) => i);
      for (let i = 0; i < take; i++) {
        const j = i + below(count - i);
        [values[i], values[j]] = [values[j]!, values[i]!];
      }
      return values.slice(0, take);
    },
    normals: (count, deviation = 1) => {
      const values = new Float32Array(count);
      for (let i = 0; i < count; i++) values[i] = deviation * normal();
      return values;
    },
    bf16: (count, low, high) => {
      const bits = new Uint16Array(count);
      for (let i = 0; i < count; i++) bits[i] = bf16FromFloat(uniform(low, high));
      return bits;
    },
    bytes: (count) => {
      const values = new Uint8Array(count);
      for (let i = 0; i < count; i++) values[i] = next() & 255;
      return values;
    },
  };
}
