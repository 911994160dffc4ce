import { MferenceError } from "../util/errors.ts";
import { logicalShape, quantOf, type Quantization } from "../format/quant.ts";
import type { ShardTensor } from "./source.ts";
import type { Transform } from "./transform.ts";

/**
 * A tensor of a checkpoint together with its companions, in the form in which the package keeps it. A
 * matrix is quantized when it is packed in words and named `.weight`; anything else is copied as it is.
 */
export interface Matrix {
  readonly weight: Part;
  readonly scales?: Part;
  readonly biases?: Part;
  /** Logical. */
  readonly shape: readonly number[];
  /** Width of the codes in the package. */
  readonly bits?: number;
}

/** A tensor and what becomes of it. */
export interface Part {
  readonly tensor: ShardTensor;
  readonly transform?: Transform;
  /** In the package. */
  readonly bytes: number;
  /** In the package. */
  readonly shape: readonly number[];
}

export interface MatrixInput {
  readonly tensors: ReadonlyMap<string, ShardTensor>;
  readonly quantization: Quantization;
  /** Whether the family has ternary matrices, whose one companion is a value for each row. */
  readonly hasRowAlpha: boolean;
}

export const ROW_ALPHA = ".row_alpha";
const COMPANION = /\.(scales|biases)$/;
/** Values that share a scale in what ternary matrices become. */
const GROUP = 64;

/** Whether a tensor belongs to another one. */
export function isCompanion(name: string, { hasRowAlpha }: MatrixInput): boolean {
  return COMPANION.test(name) || (hasRowAlpha && name.endsWith(ROW_ALPHA));
}

/**
 * Checks that a companion has its matrix.
 *
 * @throws MferenceError "install.source"
 */
export function checkHasWeight(tensor: ShardTensor, { tensors }: MatrixInput): void {
  const weight = `${tensor.name.slice(0, tensor.name.lastIndexOf("."))}.weight`;
  if (tensors.get(weight)?.dtype === "U32") return;
  fail(`${tensor.name} has no quantized ${weight} beside it`);
}

/**
 * The matrix of a tensor; `isExpert` where it is a stack of routed experts.
 *
 * @throws MferenceError "install.source", "format.config"
 */
export function matrixOf(weight: ShardTensor, input: MatrixInput, isExpert: boolean): Matrix {
  if (weight.dtype !== "U32" || !weight.name.endsWith(".weight")) {
    return { weight: asItIs(weight), shape: weight.shape };
  }
  const module = weight.name.slice(0, -".weight".length);
  const alpha = input.hasRowAlpha ? input.tensors.get(module + ROW_ALPHA) : undefined;
  if (alpha !== undefined) return ternary(weight, { alpha, input, isExpert });
  const scales = companion(input, module, ".scales");
  const biases = companion(input, module, ".biases");
  const spec = quantOf(input.quantization, weight.name);
  const shape = logicalShape(
    { name: weight.name, weight: weight.shape, scales: scales.shape, biases: biases.shape },
    spec,
  );
  const parts = { weight: asItIs(weight), scales: asItIs(scales), biases: asItIs(biases) };
  return { ...parts, shape, bits: spec.bits };
}

function asItIs(tensor: ShardTensor): Part {
  return { tensor, bytes: tensor.bytes, shape: tensor.shape };
}

function companion(input: MatrixInput, module: string, suffix: string): ShardTensor {
  const tensor = input.tensors.get(module + suffix);
  if (tensor === undefined)
    return fail(`${module}.weight is quantized, but ${module}${suffix} is missing`);
  if (tensor.dtype !== "BF16") fail(`${tensor.name} is ${tensor.dtype}; expected BF16`);
  return tensor;
}

/**
 * Codes 0, 1, 2 mean -alpha, 0, +alpha: an affine matrix with the scale alpha and the bias -alpha in
 * every group. Experts keep their two bits; the common matrices get four, for which there are kernels.
 */
function ternary(
  weight: ShardTensor,
  options: {
    readonly alpha: ShardTensor;
    readonly input: MatrixInput;
    readonly isExpert: boolean;
  },
): Matrix {
  const { alpha, input, isExpert } = options;
  const module = weight.name.slice(0, -".weight".length);
  const other = [".scales", ".biases"].find((suffix) => input.tensors.has(module + suffix));
  if (other !== undefined) fail(`${module} has both ${ROW_ALPHA} and ${other}`);
  const rows = weight.shape.slice(0, -1);
  const words = weight.shape.at(-1) ?? 0;
  if (words === 0 || words % 4 !== 0) {
    fail(`${weight.name} has rows of ${words} words; expected a multiple of 4`);
  }
  const isFit = alpha.dtype === "BF16" && alpha.shape.join() === rows.join();
  if (!isFit) {
    fail(
      `${alpha.name} is ${alpha.dtype} [${alpha.shape.join(", ")}]; expected BF16 [${rows.join(", ")}]`,
    );
  }
  const columns = 16 * words;
  const count = columns / GROUP;
  const repeated = (isNegated: boolean): Part => ({
    tensor: alpha,
    transform: { kind: "repeatBf16", count, isNegated },
    bytes: alpha.bytes * count,
    shape: [...rows, count],
  });
  const codes: Part = isExpert
    ? asItIs(weight)
    : {
        tensor: weight,
        transform: { kind: "unpackInt2ToInt4" },
        bytes: 2 * weight.bytes,
        shape: [...rows, 2 * words],
      };
  return {
    weight: codes,
    scales: repeated(false),
    biases: repeated(true),
    shape: [...rows, columns],
    bits: isExpert ? 2 : 4,
  };
}

function fail(problem: string): never {
  throw new MferenceError("install.source", problem);
}
