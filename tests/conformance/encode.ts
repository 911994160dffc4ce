/**
 * A conformance case as bytes: its buffers, and the command list of its one dispatch. The same encoding
 * runs on a device in this process and is written to files for a driver elsewhere.
 */
import { Commands } from "../../src/native/commands.ts";
import { type Dtype, extentBytes } from "../../src/kernels/spec.ts";
import { allowedDifference, buildCase, type CaseData, type ConformanceCase } from "./cases.ts";

/** Fills what a kernel must write, so that what it leaves out shows: a NaN in every type. */
const POISON = 0xff;

export interface EncodedBuffer {
  readonly name: string;
  readonly dtype: Dtype;
  /** Contents before the dispatch; `boundBytes` of them, from `offsetBytes` on, are bound. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly offsetBytes: number;
  readonly boundBytes: number;
  /** Values after the dispatch, of a buffer that the kernel writes. */
  readonly expected: ArrayLike<number> | undefined;
  readonly allowed: number;
}

export interface EncodedCase {
  readonly conformanceCase: ConformanceCase;
  readonly data: CaseData;
  readonly buffers: readonly EncodedBuffer[];
  /** The command list over buffers with these handles, in the order of `buffers`. */
  readonly commands: (handles: readonly number[]) => Uint8Array<ArrayBuffer>;
}

export function encodeCase(conformanceCase: ConformanceCase): EncodedCase {
  const { kernel } = conformanceCase;
  const data = buildCase(conformanceCase);
  const buffers = Object.entries(kernel.buffers).map(([name, spec]): EncodedBuffer => {
    const offsetBytes = data.offsetBytes?.[name] ?? 0;
    const boundBytes = extentBytes(spec, data.params);
    // A device refuses empty buffers; one byte more is bound by nobody.
    const bytes = new Uint8Array(Math.max(offsetBytes + boundBytes, 1)).fill(POISON);
    const given = data.inputs[name];
    if (given !== undefined) {
      bytes.set(new Uint8Array(given.buffer, given.byteOffset, given.byteLength), offsetBytes);
    }
    const expected = data.expected[name];
    const allowed = expected === undefined ? 0 : allowedDifference(conformanceCase, data, name);
    return { name, dtype: spec.dtype, bytes, offsetBytes, boundBytes, expected, allowed };
  });
  const commands = (handles: readonly number[]): Uint8Array<ArrayBuffer> => {
    const list = new Commands();
    const bound = buffers.map(({ name, offsetBytes }, i) => [
      name,
      { buffer: { id: handles[i]! }, offset: offsetBytes },
    ]);
    list.dispatch(kernel as never, Object.fromEntries(bound) as never, data.params);
    return list.bytes;
  };
  return { conformanceCase, data, buffers, commands };
}
