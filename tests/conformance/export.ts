/**
 * A conformance case as a file for cpu/driver/replay.c. All numbers are little-endian and every part
 * begins at a multiple of 8 bytes:
 *
 *   "MFCASE01"  catalogue hash u32, buffer count u32, command bytes u32, title bytes u32
 *   title, commands (a binding's handle is the position of its buffer, from 1 on)
 *   for each buffer: bytes f64, offset f64, values expected f64, allowed difference f64, type u32, 0 u32,
 *   then its contents, then the values as f64
 */
import { catalogueHash } from "../../src/kernels/index.ts";
import { type ConformanceCase, titleOf } from "./cases.ts";
import { encodeCase } from "./encode.ts";

const TYPES = ["f32", "f16", "bf16", "u32", "u8"] as const;

const padded = (bytes: Uint8Array): Uint8Array => {
  const whole = new Uint8Array((bytes.length + 7) & ~7);
  whole.set(bytes);
  return whole;
};

const asBytes = (values: Uint32Array | Float64Array): Uint8Array =>
  new Uint8Array(values.buffer, values.byteOffset, values.byteLength);

export function exportCase(conformanceCase: ConformanceCase): Uint8Array {
  const { buffers, commands } = encodeCase(conformanceCase);
  const title = new TextEncoder().encode(titleOf(conformanceCase));
  const list = commands(buffers.map((_, i) => i + 1));
  const parts = [
    new TextEncoder().encode("MFCASE01"),
    asBytes(Uint32Array.of(catalogueHash(), buffers.length, list.length, title.length)),
    padded(title),
    padded(list),
  ];
  for (const { bytes, offsetBytes, expected, allowed, dtype } of buffers) {
    parts.push(
      asBytes(Float64Array.of(bytes.length, offsetBytes, expected?.length ?? 0, allowed)),
      asBytes(Uint32Array.of(TYPES.indexOf(dtype), 0)),
      padded(bytes),
      asBytes(Float64Array.from(expected ?? [])),
    );
  }
  return new Uint8Array(Buffer.concat(parts));
}
