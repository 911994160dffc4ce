/**
 * What a conformance case is: inputs, and what a float64 reference says of the outputs. One list of
 * cases serves every device. This file knows no device; tolerances come from the kernels' declarations
 * and never from a case.
 */
import { type AnyKernel, type Dtype, elementCount } from "../../src/kernels/spec.ts";
import { assert } from "../../src/util/errors.ts";
import { floatFromBf16, floatFromF16 } from "../reference/half.ts";

/** Elements as a device stores them; f16 and bf16 as their bits. */
export type Elements = Float32Array | Uint32Array | Uint16Array | Uint8Array;

/** What a case gives to a kernel and expects of it, by the names of the declaration. */
export interface CaseData<P extends string = string, B extends string = string> {
  readonly params: Readonly<Record<P, number>>;
  /** Contents of every `read` and `update` buffer before the dispatch. */
  readonly inputs: Readonly<Partial<Record<B, Elements>>>;
  /** Values of every `write` and `update` buffer after it. */
  readonly expected: Readonly<Partial<Record<B, ArrayLike<number>>>>;
  /** Outputs that must be equal, not near; outputs of whole numbers always must. */
  readonly exact?: readonly B[];
  /** Distance of a binding from the start of its buffer, for alignments that a kernel must bear. */
  readonly offsetBytes?: Readonly<Partial<Record<B, number>>>;
}

export interface ConformanceCase {
  readonly kernel: AnyKernel;
  /** What is special about it, e.g. "a ring that wraps"; unique for its kernel. */
  readonly name: string;
  /** Too much arithmetic for an emulated or instrumented run. */
  readonly isHeavy: boolean;
  /** Makes the data anew, so that a long list costs no memory. */
  readonly build: () => CaseData;
}

type KeyOf<T> = Extract<keyof T, string>;

/** Declares a case; names of parameters and buffers are checked against the kernel's declaration. */
export function defineCase<K extends AnyKernel>(
  kernel: K,
  name: string,
  build: () => CaseData<KeyOf<K["params"]>, KeyOf<K["buffers"]>>,
  options: { readonly isHeavy?: boolean } = {},
): ConformanceCase {
  return { kernel, name, isHeavy: options.isHeavy ?? false, build };
}

/** `kernel: name`, the title of a test. */
export const titleOf = ({ kernel, name }: ConformanceCase): string => `${kernel.name}: ${name}`;

const isElementType = (dtype: Dtype, values: Elements): boolean =>
  ({ f32: Float32Array, f16: Uint16Array, bf16: Uint16Array, u32: Uint32Array, u8: Uint8Array })[
    dtype
  ] === values.constructor;

/** Builds a case and checks that it gives and expects exactly what the declaration says. */
export function buildCase(conformanceCase: ConformanceCase): CaseData {
  const { kernel } = conformanceCase;
  const title = titleOf(conformanceCase);
  const data = conformanceCase.build();
  for (const name of Object.keys(kernel.params)) {
    assert(data.params[name] !== undefined, `${title} lacks the parameter ${name}`);
  }
  for (const [name, buffer] of Object.entries(kernel.buffers)) {
    const count = elementCount(buffer, data.params);
    const given = data.inputs[name];
    const wanted = data.expected[name];
    assert((given === undefined) === (buffer.access === "write"), `${title}: input ${name}`);
    assert((wanted === undefined) === (buffer.access === "read"), `${title}: output ${name}`);
    assert(
      given === undefined || (given.length === count && isElementType(buffer.dtype, given)),
      `${title}: input ${name} must hold ${count} ${buffer.dtype}, has ${given?.length}`,
    );
    assert(
      wanted === undefined || wanted.length === count,
      `${title}: output ${name} must hold ${count} values, has ${wanted?.length}`,
    );
  }
  return data;
}

/** Elements of a buffer as numbers. */
export function decodeValues(dtype: Dtype, bytes: Uint8Array): ArrayLike<number> {
  const copy = bytes.slice();
  if (dtype === "f32") return new Float32Array(copy.buffer);
  if (dtype === "u32") return new Uint32Array(copy.buffer);
  if (dtype === "u8") return copy;
  const decode = dtype === "f16" ? floatFromF16 : floatFromBf16;
  return Float64Array.from(new Uint16Array(copy.buffer), decode);
}

/** Whether an output must be equal: whole numbers, and what the case says. */
export function isExact(conformanceCase: ConformanceCase, data: CaseData, name: string): boolean {
  const { dtype } = conformanceCase.kernel.buffers[name]!;
  return dtype === "u32" || dtype === "u8" || (data.exact?.includes(name) ?? false);
}

/** Largest allowed difference of an output: `atol + rtol * max|reference|`, 0 where it must be equal. */
export function allowedDifference(
  conformanceCase: ConformanceCase,
  data: CaseData,
  name: string,
): number {
  if (isExact(conformanceCase, data, name)) return 0;
  const { atol, rtol } = conformanceCase.kernel.tolerance(data.params as never);
  let largest = 0;
  for (const value of Array.from(data.expected[name]!)) {
    if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  }
  return atol + rtol * largest;
}

/** Distance of a result from its reference; values that are not finite must be the same. */
export function difference(result: number, reference: number): number {
  if (Object.is(result, reference) || result === reference) return 0;
  const distance = Math.abs(result - reference);
  return Number.isNaN(distance) ? Number.POSITIVE_INFINITY : distance;
}

/** The largest difference of one output and where it is. */
export interface Deviation {
  readonly buffer: string;
  readonly index: number;
  readonly result: number;
  readonly reference: number;
  readonly difference: number;
  readonly allowed: number;
}

/** Compares the bytes of an output with its reference. */
export function compareOutput(
  conformanceCase: ConformanceCase,
  data: CaseData,
  name: string,
  bytes: Uint8Array,
): Deviation {
  const values = decodeValues(conformanceCase.kernel.buffers[name]!.dtype, bytes);
  const reference = data.expected[name]!;
  let index = 0;
  let worst = -1;
  for (let i = 0; i < reference.length; i++) {
    const distance = difference(values[i]!, reference[i]!);
    if (distance > worst) {
      worst = distance;
      index = i;
    }
  }
  return {
    buffer: name,
    index,
    result: values[index] ?? Number.NaN,
    reference: reference[index] ?? Number.NaN,
    difference: Math.max(worst, 0),
    allowed: allowedDifference(conformanceCase, data, name),
  };
}
