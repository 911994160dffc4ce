import { MferenceError, type ErrorCode } from "../util/errors.ts";

/**
 * Products and sums of numbers that came out of a file. A result beyond 2^53 - 1 is an error and
 * never a wrong size.
 */
export interface Arithmetic {
  readonly product: (...factors: readonly number[]) => number;
  readonly sum: (...terms: readonly number[]) => number;
}

/** Checked arithmetic whose error carries `code` and names `what` overflowed. */
export function checkedArithmetic(code: ErrorCode, what: string): Arithmetic {
  const check = (value: number): number => {
    if (Number.isSafeInteger(value) && value >= 0) return value;
    throw new MferenceError(code, `${what}: a size or an offset is beyond 2^53 - 1`);
  };
  return {
    product: (...factors) => factors.reduce((left, right) => check(left * right), 1),
    sum: (...terms) => terms.reduce((left, right) => check(left + right), 0),
  };
}
