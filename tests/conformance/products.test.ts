/**
 * What products promise beyond what every kernel does: an output has the same bits on every path, and
 * however the lists of routed experts are cut.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { routedGate } from "../../src/kernels/moe.ts";
import { Device } from "../../src/native/device.ts";
import { isMetal, library, openPaths } from "../fixtures/devices.ts";
import { buildCase, type CaseData, type ConformanceCase, titleOf } from "./cases.ts";
import { embedCases } from "./embed.ts";
import { encodeCase } from "./encode.ts";
import { matmulAffineCases } from "./matmul.ts";
import { moeCases } from "./moe.ts";

/** Portable first; a path that this processor lacks is left out, as tests/native says aloud. */
const devices = openPaths([2]).flatMap(({ devices: opened }) => opened);

afterAll(() => {
  for (const device of devices) device.close();
});

/** Runs the same case with other data, one dispatch after the other, over the outputs of the one before. */
function run(device: Device, conformanceCase: ConformanceCase, parts: readonly CaseData[]) {
  let output: Uint8Array<ArrayBuffer> | undefined;
  for (const part of parts) {
    const { buffers, commands } = encodeCase({ ...conformanceCase, build: () => part });
    const created = buffers.map(({ bytes }) => device.createBuffer(bytes.length));
    for (const [i, { bytes, expected }] of buffers.entries()) {
      created[i]!.bytes.set(expected !== undefined && output !== undefined ? output : bytes);
    }
    device.submit(commands(created.map(({ id }) => id)));
    device.finish();
    output = created[buffers.findIndex(({ expected }) => expected !== undefined)]!.bytes.slice();
    for (const buffer of created) device.destroyBuffer(buffer);
  }
  return output!;
}

if (isMetal) test.skip("every path gives the same bits (Metal has one)", () => {});
describe("every path gives the same bits", () => {
  if (isMetal) return;
  for (const conformanceCase of [...matmulAffineCases, ...moeCases, ...embedCases]) {
    test(titleOf(conformanceCase), () => {
      const data = buildCase(conformanceCase);
      const [first, ...others] = devices.map((device) => run(device, conformanceCase, [data]));
      for (const other of others) expect(other).toEqual(first!);
    });
  }
});

/** The same pairs in other lists. */
const withGroups = (data: CaseData, groups: readonly number[]): CaseData => ({
  ...data,
  params: { ...data.params, A: groups.length / 4 },
  inputs: { ...data.inputs, groups: Uint32Array.from(groups) },
});

describe("a pair has the same bits however the lists are cut", () => {
  test.each(moeCases.map((one) => [titleOf(one), one] as const))(
    "%s",
    (_title, conformanceCase) => {
      const data = buildCase(conformanceCase);
      const groups = Array.from(data.inputs["groups"]!);
      const whole = run(devices.at(-1)!, conformanceCase, [data]);
      const half = 4 * Math.ceil(groups.length / 8);
      const hitsThenMisses = [groups.slice(half), groups.slice(0, half)]
        .filter((part) => part.length > 0)
        .map((part) => withGroups(data, part));
      const singles: number[] = [];
      for (let i = 0; i < groups.length; i += 4) {
        for (let k = 0; k < groups[i + 2]!; k++) singles.push(groups[i]!, groups[i + 1]! + k, 1, 0);
      }
      for (const device of devices) {
        expect(run(device, conformanceCase, hitsThenMisses)).toEqual(whole);
        // Metal has other kernels for experts with many pairs; an expert's pairs are never cut in a run.
        if (isMetal) continue;
        expect(run(device, conformanceCase, [withGroups(data, singles)])).toEqual(whole);
      }
    },
  );
});

if (isMetal) test.skip("what makes no sense ends in a sentence (a GPU cannot say one)", () => {});
describe("what makes no sense ends in a sentence", () => {
  if (isMetal) return;
  const gate = moeCases.find(({ kernel }) => kernel.name === routedGate.name)!;
  const data = buildCase(gate);
  const groups = Array.from(data.inputs["groups"]!);
  const withParams = (params: Record<string, number>): CaseData => ({
    ...data,
    params: { ...data.params, ...params },
  });
  const { slotBytes, P } = data.params as { slotBytes: number; P: number };
  const wrongPair = Uint32Array.from(data.inputs["pairs"]!, (pair, i) => (i === 1 ? P : pair));
  const nan = (data.inputs["x"] as Float32Array).slice().fill(Number.NaN, 5, 6);

  test.each([
    [withGroups(data, groups.with(0, 9)), "group 0 names slot 9, the slab has 9"],
    [withGroups(data, groups.with(4 + 1, P)), `group 1 has pairs ${P} + `],
    [withGroups(data, groups.with(2, 2 ** 32 - 1)), `group 0 has pairs 0 + 4294967295`],
    [{ ...data, inputs: { ...data.inputs, pairs: wrongPair } }, `has pair ${P}`],
    [withParams({ upBiases: slotBytes - 2 }), `the biases of an expert reach beyond its slot`],
    [withParams({ activationBits: 24 }), "activations of 8, 16 or 32 bits, found 24"],
    [withParams({ activation: 7 }), "a gate activation of the catalogue, found 7"],
  ] as const)("%#", (wrong, sentence) => {
    const device = new Device({ library, threads: 2 });
    expect(() => run(device, gate, [wrong])).toThrow(sentence);
    device.close();
  });

  test("what is no number in an activation reaches every output of its token", () => {
    const spoilt: CaseData = { ...data, inputs: { ...data.inputs, x: nan } };
    for (const device of devices) {
      const hidden = new Float32Array(run(device, gate, [spoilt]).buffer);
      expect(hidden.every(Number.isNaN)).toBe(true);
    }
  });
});
