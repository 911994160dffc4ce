/**
 * What a kernel declaration is. The catalogue is pure data: this folder knows no device, no buffer and
 * no model; it says what a kernel reads, writes and computes, and how exact it must be.
 */
import { assert } from "../util/errors.ts";

/** Element types a kernel may bind. */
export type Dtype = "f32" | "f16" | "bf16" | "u32" | "u8";

/** One buffer argument; its index is its position in the declaration. */
export interface BufferSpec {
  readonly dtype: Dtype;
  readonly access: "read" | "write" | "update";
  /** Shape in the letters of docs/glossary.md, each a parameter of the kernel, e.g. `[T, D / 64]`. */
  readonly shape: string;
}

/** Scalar parameters are 4 bytes each, so no compiler ever pads the struct. */
export type ParamType = "u32" | "i32" | "f32";

export interface Grid {
  readonly groups: readonly [number, number, number];
  readonly threads: readonly [number, number, number];
}

/** Largest allowed difference from the reference: `atol + rtol * max|reference|`. */
export interface Tolerance {
  readonly atol: number;
  readonly rtol: number;
}

export type Buffers = Readonly<Record<string, BufferSpec>>;
export type Params = Readonly<Record<string, ParamType>>;
export type ParamValues<P extends Params = Params> = { readonly [K in keyof P]: number };

export interface KernelSpec<B extends Buffers = Buffers, P extends Params = Params> {
  /** Name of the function in `shaders/*.metal` and, prefixed `mf_k_`, in `cpu/kernels/*.c`. */
  readonly name: string;
  /** What it computes, as formulas. */
  readonly formula: string;
  readonly buffers: B;
  readonly params: P;
  /** Threadgroups of a grid device; a device with a thread pool divides the work itself. */
  readonly grid: (params: ParamValues<P>) => Grid;
  readonly tolerance: (params: ParamValues<P>) => Tolerance;
  /**
   * Parameters, all u32, that a device which compiles at run time may turn into constants of a pipeline of
   * their own: few values occur, and loops and branches depend on them.
   */
  readonly constants?: readonly (keyof P & string)[];
  /**
   * From which value of a parameter on a grid device runs a second function, `<name>_wide`, made for many
   * rows at a time: its registers and its threadgroup memory are its own. `grid` divides accordingly.
   */
  readonly wide?: Wide<keyof P & string>;
}

/** The parameter that counts a dispatch's rows, and how many make it wide. */
export interface Wide<P extends string = string> {
  readonly param: P;
  readonly least: number;
}

/** A kernel whose argument names are not known statically. */
export interface AnyKernel {
  readonly name: string;
  readonly formula: string;
  readonly buffers: Buffers;
  readonly params: Params;
  readonly grid: (params: never) => Grid;
  readonly tolerance: (params: never) => Tolerance;
  readonly constants?: readonly string[];
  readonly wide?: Wide;
}

export const ELEMENT_BYTES: Readonly<Record<Dtype, number>> = {
  f32: 4,
  f16: 2,
  bf16: 2,
  u32: 4,
  u8: 1,
};

/** A factor or a divisor of an axis. */
interface Term {
  readonly isDivisor: boolean;
  /** Name of a parameter, or the number itself. */
  readonly value: string | number;
}

/** Shapes are parsed once; a decode step evaluates hundreds of them. */
const parsed = new Map<string, readonly (readonly Term[])[]>();

/** The axes of a shape: letters and whole numbers joined by `*` and `/` from left to right. */
function axesOf(shape: string): readonly (readonly Term[])[] {
  let axes = parsed.get(shape);
  if (axes === undefined) {
    axes = shape.slice(1, -1).split(",").map(parseAxis);
    parsed.set(shape, axes);
  }
  return axes;
}

function parseAxis(axis: string): Term[] {
  const [first = "", ...rest] = axis.trim().split(/\s*([*/])\s*/);
  const terms: Term[] = [term(first, false)];
  for (let i = 0; i < rest.length; i += 2) terms.push(term(rest[i + 1]!, rest[i] === "/"));
  return terms;
}

const term = (text: string, isDivisor: boolean): Term => ({
  isDivisor,
  value: /^\d+$/.test(text) ? Number(text) : text,
});

/** Elements that a kernel may touch from a binding's offset; `/` rounds up. */
export function elementCount(
  { shape }: BufferSpec,
  params: Readonly<Record<string, number>>,
): number {
  let count = 1;
  for (const terms of axesOf(shape)) {
    let length = 1;
    for (const { isDivisor, value } of terms) {
      const factor = typeof value === "number" ? value : params[value];
      assert(factor !== undefined, SHAPE_UNKNOWN);
      length = isDivisor ? Math.ceil(length / factor) : length * factor;
    }
    count *= length;
  }
  return count;
}

const SHAPE_UNKNOWN = "a shape names a parameter that its kernel does not have";

/** Bytes that a kernel may touch from a binding's offset; every device checks them before it runs. */
export function extentBytes(buffer: BufferSpec, params: Readonly<Record<string, number>>): number {
  return ELEMENT_BYTES[buffer.dtype] * elementCount(buffer, params);
}

const NAME = /^[a-z][a-z0-9_]*$/;

export const read = (dtype: Dtype, shape: string): BufferSpec => ({ dtype, access: "read", shape });
export const write = (dtype: Dtype, shape: string): BufferSpec => ({
  dtype,
  access: "write",
  shape,
});
/** Read and written in place. */
export const update = (dtype: Dtype, shape: string): BufferSpec => ({
  dtype,
  access: "update",
  shape,
});

/** Declares a kernel once for every device; the C and Metal headers are generated from it. */
export function defineKernel<const B extends Buffers, const P extends Params>(
  spec: KernelSpec<B, P>,
): KernelSpec<B, P> {
  assert(NAME.test(spec.name), `kernel name ${spec.name} must be snake_case`);
  assert(
    Object.values(spec.buffers).some((buffer) => buffer.access !== "read"),
    `kernel ${spec.name} writes nothing`,
  );
  return spec;
}

/** One threadgroup of `threads` for each of `groups` units of work. */
export const perUnit = (groups: number, threads = 256): Grid => ({
  groups: [groups, 1, 1],
  threads: [threads, 1, 1],
});

/** One threadgroup of `threads` for each of `columns` times `rows` cells; columns are neighbours. */
export const perCell = (columns: number, rows: number, threads: number): Grid => ({
  groups: [columns, rows, 1],
  threads: [threads, 1, 1],
});

/**
 * How activations enter a product with quantised weights.
 * - 32: float32 or as exact (24-bit integers); the exact precision.
 * - 16: integers of 16 bits, one scale for each group of 64; the fast precision on a CPU.
 * - 8: integers of 8 bits, likewise; the quick precision.
 * A device whose float units are the fast path (a GPU) may compute exactly at all of them.
 */
export type ActivationBits = 32 | 16 | 8;

/** Gate activations, as the parameter `activation`. Source: arXiv 2002.05202. */
export const ACTIVATION = { geluTanh: 0, silu: 1 } as const;

/** Weights of one quantisation group share a scale and a bias. */
export const GROUP_SIZE = 64;

/**
 * Tolerance of a product with activations of `bits`: float32 accumulation, or the rounding of activations
 * (of 16 bits 2e-5 of the result's norm measured, of 8 bits 6e-3; docs/performance.md), each with a margin.
 */
export const productTolerance = (bits: number): Tolerance => ({
  atol: 1e-6,
  rtol: bits === 32 ? 2e-6 : bits === 16 ? 3e-4 : 6e-2,
});
