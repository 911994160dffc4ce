/**
 * Cases cut into their rows: the same work as T dispatches of one token each. Works from the shapes of
 * the declarations, whose first axis says whether a buffer has a row for each token.
 */
import { type AnyKernel, ELEMENT_BYTES, elementCount } from "../../src/kernels/spec.ts";
import type { CaseData, ConformanceCase, Elements } from "./cases.ts";

/** One token of a case. */
export interface CaseRow {
  readonly conformanceCase: ConformanceCase;
  /** Its outputs: the buffer's position, and where the row begins in the whole case's buffer. */
  readonly outputs: readonly { readonly index: number; readonly firstByte: number }[];
}

/** Whether a token's output is also another's input: buffers that are updated without a row for each. */
const hasMemory = ({ buffers }: AnyKernel): boolean =>
  Object.values(buffers).some(
    ({ access, shape }) => access === "update" && !shape.startsWith("[T"),
  );

/**
 * The tokens of a case with several of them; none where a token's output is also another's input, or
 * where lists say what is to be done for which token.
 */
export function* rowsOf(conformanceCase: ConformanceCase, data: CaseData): Generator<CaseRow> {
  const { kernel } = conformanceCase;
  const { T = 1 } = data.params;
  if (T === 1 || hasMemory(kernel)) return;
  if (kernel.buffers["groups"] !== undefined) return;
  const specs = Object.entries(kernel.buffers);
  for (let t = 0; t < T; t++) {
    const params: Record<string, number> = { ...data.params, T: 1 };
    if (params["position"] !== undefined) params["position"] += t;
    const inputs: Record<string, Elements> = {};
    const expected: Record<string, ArrayLike<number>> = {};
    const outputs: { index: number; firstByte: number }[] = [];
    for (const [index, [name, spec]] of specs.entries()) {
      const count = elementCount(spec, params);
      const first = spec.shape.startsWith("[T") ? t * count : 0;
      const given = data.inputs[name];
      const wanted = data.expected[name];
      if (given !== undefined) inputs[name] = given.slice(first, first + count);
      if (wanted === undefined) continue;
      expected[name] = Array.from(wanted).slice(first, first + count);
      outputs.push({ index, firstByte: first * ELEMENT_BYTES[spec.dtype] });
    }
    const row: CaseData = { params, inputs, expected };
    yield { conformanceCase: { ...conformanceCase, build: () => row }, outputs };
  }
}
