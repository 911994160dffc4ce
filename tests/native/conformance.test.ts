/** Every conformance case on every path of the device under test. */
import { afterAll, describe, expect, test } from "bun:test";
import { Device, type SharedBuffer } from "../../src/native/device.ts";
import {
  compareOutput,
  type ConformanceCase,
  defineCase,
  type Deviation,
  titleOf,
} from "../conformance/cases.ts";
import { type EncodedCase, encodeCase } from "../conformance/encode.ts";
import { allCases } from "../conformance/index.ts";
import { recordCase } from "../conformance/report.ts";
import { type CaseRow, rowsOf } from "../conformance/rows.ts";
import { isMetal, library, openPaths } from "../fixtures/devices.ts";
import { attentionF32 } from "../../src/kernels/attention.ts";
import { routerTopk, slotLookup } from "../../src/kernels/moe.ts";
import { candidates, gumbel, penalize } from "../../src/kernels/sampling.ts";

const THREADS = [1, 2, 3];
const paths = openPaths(THREADS);

afterAll(() => {
  for (const { devices } of paths) for (const device of devices) device.close();
});

/** Runs an encoded case; the bytes of every buffer afterwards. */
function run(device: Device, { buffers, commands }: EncodedCase): Uint8Array[] {
  const created: SharedBuffer[] = buffers.map(({ bytes }) => device.createBuffer(bytes.length));
  for (const [i, { bytes }] of buffers.entries()) created[i]!.bytes.set(bytes);
  try {
    device.submit(commands(created.map(({ id }) => id)));
    device.finish();
  } catch (error) {
    // The next case meets a device that works again.
    device.resume();
    throw error;
  }
  const after = created.map(({ bytes }) => bytes.slice());
  for (const buffer of created) device.destroyBuffer(buffer);
  return after;
}

test.skipIf(isMetal)("this processor has the portable path, and each names itself", () => {
  const found = paths.filter(({ devices }) => devices.length > 0);
  expect(found.map(({ simd }) => simd)).toContain("portable");
  for (const { simd, devices } of found) {
    expect(devices.map(({ info }) => info.simd)).toEqual(devices.map(() => simd));
    expect(devices.map(({ info }) => info.threads)).toEqual(THREADS);
  }
});

for (const { simd, reason } of paths.filter(({ reason }) => reason !== undefined)) {
  test.skip(`the ${simd} path (${reason})`, () => {});
}

/** The differences of every output; what a kernel only reads must be as before. */
function deviationsOf(encoded: EncodedCase, after: readonly Uint8Array[]): Deviation[] {
  const { buffers, conformanceCase, data } = encoded;
  return buffers.flatMap(({ name, bytes, offsetBytes, boundBytes, expected }, i) => {
    const kept = expected === undefined ? bytes.length : offsetBytes;
    expect(after[i]!.subarray(0, kept)).toEqual(bytes.subarray(0, kept));
    if (expected === undefined) return [];
    const bound = after[i]!.subarray(offsetBytes, offsetBytes + boundBytes);
    return [compareOutput(conformanceCase, data, name, bound)];
  });
}

/** What a kernel writes is near the reference. */
function expectNear(title: string, deviations: readonly Deviation[]): void {
  const far = deviations.find(({ difference, allowed }) => !(difference <= allowed));
  if (far !== undefined) throw new Error(`${title}: ${JSON.stringify(far)}`);
}

/** A token alone gives the bits that it gives among others. */
function expectSameRows(
  device: Device,
  { conformanceCase, data }: EncodedCase,
  together: readonly Uint8Array[],
): void {
  for (const row of rowsOf(conformanceCase, data)) {
    const encoded = encodeCase(row.conformanceCase);
    const alone = run(device, encoded);
    // Metal has other kernels for many rows: equal within the tolerance, not bit for bit.
    if (isMetal) expectNear("a row alone", deviationsOf(encoded, alone));
    else expectRows(row, alone, together);
  }
}

function expectRows(row: CaseRow, alone: readonly Uint8Array[], together: readonly Uint8Array[]) {
  for (const { index, firstByte } of row.outputs) {
    const bytes = alone[index]!;
    expect(bytes).toEqual(together[index]!.subarray(firstByte, firstByte + bytes.length));
  }
}

/** Runs a case on every path; the differences of all outputs are added to `deviations`. */
function expectConformance(conformanceCase: ConformanceCase, deviations: Deviation[]): void {
  const encoded = encodeCase(conformanceCase);
  for (const { simd, devices } of paths) {
    const results = devices.map((device) => run(device, encoded));
    for (const result of results) {
      const found = deviationsOf(encoded, result);
      deviations.push(...found);
      expectNear(simd, found);
      expect(result).toEqual(results[0]!);
    }
    const device = devices.at(-1);
    if (device !== undefined && !conformanceCase.isHeavy) {
      expectSameRows(device, encoded, results[0]!);
    }
  }
}

describe("near the reference, with the same bits for any threads and any other tokens", () => {
  for (const conformanceCase of allCases) {
    test(titleOf(conformanceCase), () => {
      const deviations: Deviation[] = [];
      let hasPassed = false;
      try {
        expectConformance(conformanceCase, deviations);
        hasPassed = true;
      } finally {
        recordCase(conformanceCase.kernel.name, deviations, hasPassed);
      }
    });
  }
});

if (isMetal) test.skip("what makes no sense ends in a sentence (a GPU cannot say one)", () => {});
describe("what makes no sense ends in a sentence", () => {
  if (isMetal) return;
  const floats = (count: number, value = 1): Float32Array => new Float32Array(count).fill(value);
  const head = { T: 2, H: 2, Hkv: 1, Dh: 32, scale: 1 };
  const attend = (params: { R: number; position: number; window: number; Dh?: number }) =>
    defineCase(attentionF32, JSON.stringify(params), () => {
      const all = { ...head, ...params };
      const kv = floats(all.R * all.Hkv * all.Dh);
      const q = floats(all.T * all.H * all.Dh);
      return { params: all, inputs: { q, keys: kv, values: kv }, expected: { y: q } };
    });
  const route = (E: number, K: number, scores: Float32Array) =>
    defineCase(routerTopk, `${K} of ${E}`, () => ({
      params: { T: 1, E, K },
      inputs: { scores, expertScale: new Uint16Array(E) },
      expected: { ids: new Uint32Array(K), weights: floats(K) },
    }));
  const lookUp = (id: number, slot: number) =>
    defineCase(slotLookup, `expert ${id} in slot ${slot}`, () => ({
      params: { P: 2, E: 4, S: 3 },
      inputs: { ids: Uint32Array.of(0, id), table: Uint32Array.of(0, 1, slot, 2) },
      expected: { groups: new Uint32Array(8) },
    }));
  const faults = [
    [lookUp(4, 0), "pair 1 names expert 4, the layer has 4"],
    [lookUp(2, 3), "expert 2 of pair 1 is in none of 3 slots"],
    [lookUp(2, 0xffff_ffff), "expert 2 of pair 1 is in none of 3 slots"],
    [attend({ R: 9, position: 8, window: 0 }), "need 10 cache rows, there are 9"],
    [attend({ R: 8, position: 100, window: 8 }), "need 9 cache rows, there are 8"],
    [attend({ R: 8, position: 4, window: 0, Dh: 24 }), "multiple of 16"],
    [route(4, 2, Float32Array.of(1, Number.NaN, 2, 3)), "a score of token 0 is not finite"],
    [route(2, 3, floats(2)), "3 of 2 experts"],
    [
      defineCase(penalize, "an id beyond the vocabulary", () => ({
        params: { V: 4, N: 1, penalty: 1.1 },
        inputs: { logits: floats(4), ids: Uint32Array.of(4) },
        expected: { logits: floats(4) },
      })),
      "id 4 is not in a vocabulary of 4",
    ],
    [
      defineCase(gumbel, "temperature 0", () => ({
        params: { V: 4, temperature: 0, keyLow: 1, keyHigh: 1 },
        inputs: { logits: floats(4) },
        expected: { result: [0, 0] },
      })),
      "temperature 0 is not above 0",
    ],
    [
      defineCase(candidates, "too many", () => ({
        params: { V: 4, C: 257 },
        inputs: { logits: floats(4) },
        expected: { ids: floats(257), values: floats(257), mass: floats(3) },
      })),
      "at most 256",
    ],
  ] as const;

  for (const [conformanceCase, sentence] of faults) {
    test(titleOf(conformanceCase), () => {
      for (const threads of [1, 2]) {
        const device = new Device({ library, threads });
        expect(() => run(device, encodeCase(conformanceCase))).toThrow(sentence);
        device.close();
      }
    });
  }
});
