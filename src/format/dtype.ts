/**
 * Element types of the tensors in checkpoints and packages, and the codes that the resident index
 * gives them. Packed integer codes of quantized matrices travel in `U32` words.
 */
export const DTYPES = ["U32", "BF16", "F16", "F32", "I64", "I32"] as const;

export type Dtype = (typeof DTYPES)[number];

const ELEMENT_BYTES: Readonly<Record<Dtype, number>> = {
  U32: 4,
  BF16: 2,
  F16: 2,
  F32: 4,
  I64: 8,
  I32: 4,
};

/** Bytes of one element. */
export function elementBytes(dtype: Dtype): number {
  return ELEMENT_BYTES[dtype];
}

/** The code of a dtype in a resident index entry. */
export function dtypeCode(dtype: Dtype): number {
  return DTYPES.indexOf(dtype);
}

/** The dtype of a code, or undefined for an unknown one. */
export function dtypeOfCode(code: number): Dtype | undefined {
  return DTYPES[code];
}
