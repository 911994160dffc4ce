// Measures a layer of Qwen 3.6 35B-A3B that has the gated delta rule, at its real shapes, over a prompt:
//   bun bench/delta.ts [--threads 1,2] [--runs N] [--rows 512] [--chunk 128] [--precision fast|exact]
// A row for each kernel of its linear attention and one for the matrix products, the experts' as if each
// row met eight of its own size in one dense product; medians of microseconds for each row.
import { cpus } from "node:os";
import { parseArgs } from "node:util";
import { causalConv, deltaPrepare, gatedDelta, gatedNorm } from "../src/kernels/delta.ts";
import { matmulAffine } from "../src/kernels/matmul.ts";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { Commands } from "../src/native/commands.ts";
import { Device, type SharedBuffer } from "../src/native/device.ts";

const { values: flags } = parseArgs({
  options: {
    threads: { type: "string", default: `1,${cpus().length}` },
    runs: { type: "string", default: "5" },
    rows: { type: "string", default: "512" },
    chunk: { type: "string", default: "128" },
    precision: { type: "string", default: "fast" },
  },
});
const [D, Hk, Hv, Dk, Dv, K] = [2048, 16, 32, 128, 128, 4];
const C = 2 * Hk * Dk + Hv * Dv;
const ROWS = Number(flags.rows);
const T = Number(flags.chunk);
const activationBits = flags.precision === "exact" ? 32 : 16;
/** Rows and columns of the layer's products; experts of 512, eight routed and one shared. */
const PRODUCTS = [
  [C, D],
  [Hv * Dv, D],
  [D, Hv * Dv],
  [2 * 9 * 512, D],
  [D, 9 * 512],
] as const;

type Record = (commands: Commands) => void;

/** Values of a usual size in every buffer: unit keys are about 0.09 in each place. */
function filled(device: Device, count: number, value: (i: number) => number): SharedBuffer {
  const buffer = device.createBuffer(4 * count);
  const floats = new Float32Array(buffer.bytes.buffer, buffer.bytes.byteOffset, count);
  for (let i = 0; i < count; i += 1) floats[i] = value(i);
  return buffer;
}

function steps(device: Device): Map<string, Record> {
  const wave = (scale: number) => (i: number) => scale * Math.sin(1.7 * i);
  const at = (count: number, value: (i: number) => number) => ({
    buffer: filled(device, count, value),
  });
  const [raw, mixed] = [at(T * C, wave(1)), at(T * C, wave(0.09))];
  const [alpha, beta] = [at(T * Hv, () => -0.05), at(T * Hv, () => 0.5)];
  const [tail, state] = [at(3 * C, wave(1)), at(Hv * Dv * Dk, wave(1))];
  const [y, gated] = [at(T * C, wave(1)), at(T * PRODUCTS[3][0], wave(1))];
  const words = (count: number) => {
    const buffer = device.createBuffer(2 * count);
    new Uint16Array(buffer.bytes.buffer, buffer.bytes.byteOffset, count).fill(0x3d00);
    return { buffer };
  };
  const [taps, perHead, perValue] = [words(C * K), words(Hv), words(Dv)];
  const [codes, scales, biases] = [words((C * D) / 2), words((C * D) / 32), words((C * D) / 32)];
  const shape = { T, C, Hk, Hv, Dk, Dv };
  const records: [string, Record][] = [
    [
      "causal_conv",
      (to) => to.dispatch(causalConv, { x: raw, weight: taps, tail, y }, { T, C, K, J: K - 1 }),
    ],
    [
      "delta_prepare",
      (to) =>
        to.dispatch(
          deltaPrepare,
          // Not what the rule reads: gates that are prepared again and again end as infinities.
          { mixed: raw, alpha: gated, beta: y, aLog: perHead, dtBias: perHead },
          { T, C, Hk, Hv, Dk, eps: 1e-6 },
        ),
    ],
    ["gated_delta", (to) => to.dispatch(gatedDelta, { mixed, alpha, beta, state, y }, shape)],
    [
      "gated_norm",
      (to) =>
        to.dispatch(
          gatedNorm,
          { x: mixed, gate: raw, weight: perValue, y: gated },
          { T, H: Hv, D: Dv, eps: 1e-6 },
        ),
    ],
    [
      "products",
      (to) => {
        for (const [O, I] of PRODUCTS) {
          const params = { T, I, O, bits: 4, activationBits };
          to.dispatch(matmulAffine, { x: mixed, codes, scales, biases, y: gated }, params);
        }
      },
    ],
  ];
  return new Map(records);
}

function measure(library: string, threads: number) {
  const device = new Device({ library, threads });
  const samples = new Map<string, number[]>();
  const records = steps(device);
  for (let run = 0; run <= Number(flags.runs); run += 1) {
    for (const [name, record] of records) {
      const commands = new Commands();
      for (let row = 0; row < ROWS; row += T) record(commands);
      const begin = performance.now();
      device.submit(commands.bytes);
      device.finish();
      // The first run only brings everything into being.
      const list = samples.get(name) ?? [];
      if (run > 0) list.push(((performance.now() - begin) * 1000) / ROWS);
      samples.set(name, list);
    }
  }
  device.close();
  const medians = [...samples].map(([name, list]) => {
    return [name, list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)]!] as const;
  });
  const sum = medians.reduce((total, [, us]) => total + us, 0);
  return medians.map(([kernel, us]) => ({
    threads,
    kernel,
    "us a row": us.toFixed(2),
    share: `${((100 * us) / sum).toFixed(1)} %`,
  }));
}

const library = await buildDeviceLibrary();
console.table(flags.threads.split(",").flatMap((threads) => measure(library, Number(threads))));
