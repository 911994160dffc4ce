// Measures every matrix product of a decode step of Gemma 4 26B-A4B against a plain reader of memory, and
// attention (of Qwen 3.6 35B-A3B too) at several lengths:
//   bun bench/kernels.ts [--threads 1,2] [--runs N] [--precision fast|exact] [--only NAME] [--json]
// Each product goes through some hundred megabytes of different matrices, at addresses that are even and
// no more, as files have them. A reader runs before each; medians of GB/s of weights are printed, and of the
// share of what the reader beside it read. Weights are of a normal size: subnormal scales would be slow.
// Attention goes through as many caches as fit; its bytes are those of the keys and values that are seen.
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { attentionF16 } from "../src/kernels/attention.ts";
import { gatedMatmulAffine, matmulAffine } from "../src/kernels/matmul.ts";
import { routedDown, routedGate } from "../src/kernels/moe.ts";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { Commands } from "../src/native/commands.ts";
import { type Buffer, Device, type SharedBuffer } from "../src/native/device.ts";
import { median } from "./median.ts";

const { values: flags } = parseArgs({
  options: {
    threads: { type: "string", default: `1,${cpus().length}` },
    runs: { type: "string", default: "5" },
    precision: { type: "string", default: "fast" },
    only: { type: "string", default: "" },
    json: { type: "boolean", default: false },
  },
});

const SLAB_BYTES = 512 * 2 ** 20;
/** Floats of inputs and of results: logits, and 512 rows of queries. */
const VALUES_MAX = 512 * 16 * 512;
const [D, F, EXPERTS] = [2816, 704, 8];
const activationBits = flags.precision === "exact" ? 32 : 16;

/** Where the three arrays of one matrix begin, and where the next one does. */
interface Place {
  readonly codes: number;
  readonly scales: number;
  readonly biases: number;
  readonly end: number;
}

function place(begin: number, rows: number, columns: number, bits: number): Place {
  const scales = begin + (rows * columns * bits) / 8;
  const biases = scales + (rows * columns) / 32;
  return { codes: begin, scales, biases, end: biases + (rows * columns) / 32 };
}

interface Bench {
  readonly slab: Buffer;
  readonly x: SharedBuffer;
  readonly y: SharedBuffer;
  readonly groups: SharedBuffer;
  readonly pairs: SharedBuffer;
  readonly commands: Commands;
}

interface Case {
  readonly name: string;
  /** Records dispatches over the whole slab; the bytes of weights that they read. */
  readonly record: (bench: Bench) => number;
}

/** Two bytes into the slab: an even address that is a multiple of nothing else. */
const FIRST = 2;

function matmul(name: string, O: number, I: number, bits = 4): Case {
  const record = ({ slab, x, y, commands }: Bench): number => {
    let at = FIRST;
    for (let next = place(at, O, I, bits); next.end <= SLAB_BYTES; next = place(at, O, I, bits)) {
      const buffers = {
        x: { buffer: x },
        codes: { buffer: slab, offset: next.codes },
        scales: { buffer: slab, offset: next.scales },
        biases: { buffer: slab, offset: next.biases },
        y: { buffer: y },
      };
      commands.dispatch(matmulAffine, buffers, { T: 1, I, O, bits, activationBits });
      at = next.end;
    }
    return at - FIRST;
  };
  return { name: `${name} [${O}, ${I}]${bits === 4 ? "" : `, ${bits} bits`}`, record };
}

function gated(name: string, rows: number, I: number): Case {
  const bits = 4;
  const record = ({ slab, x, y, commands }: Bench): number => {
    let at = FIRST;
    for (;;) {
      const gate = place(at, rows, I, bits);
      const up = place(gate.end, rows, I, bits);
      if (up.end > SLAB_BYTES) return at - FIRST;
      const of = (offset: number) => ({ buffer: slab, offset });
      const buffers = {
        x: { buffer: x },
        gateCodes: of(gate.codes),
        gateScales: of(gate.scales),
        gateBiases: of(gate.biases),
        upCodes: of(up.codes),
        upScales: of(up.scales),
        upBiases: of(up.biases),
        y: { buffer: y },
      };
      const params = { T: 1, I, F: rows, bits, activation: 0, activationBits };
      commands.dispatch(gatedMatmulAffine, buffers, params);
      at = up.end;
    }
  };
  return { name: `${name} 2 x [${rows}, ${I}]`, record };
}

/** Eight experts of a slot each; every dispatch takes the next eight, scattered. */
function routed(isDown: boolean): Case {
  const bits = 4;
  const [gate, up] = [place(0, F, D, bits), place(place(0, F, D, bits).end, F, D, bits)];
  const down = place(up.end, D, F, bits);
  const slotBytes = down.end;
  const S = Math.floor((SLAB_BYTES - FIRST) / slotBytes);
  const record = ({ slab, x, y, groups, pairs, commands }: Bench): number => {
    const rows = new Uint32Array(groups.bytes.buffer, groups.bytes.byteOffset);
    const turns = Math.floor(S / EXPERTS);
    for (let turn = 0; turn < turns; turn += 1) {
      for (let i = 0; i < EXPERTS; i += 1) {
        const slot = (turn * EXPERTS + i) * 37;
        rows.set([slot % S, i, 1, 0], (turn * EXPERTS + i) * 4);
      }
      const at = { buffer: groups, offset: turn * EXPERTS * 16 };
      const lists = { slab: { buffer: slab, offset: FIRST }, groups: at, pairs: { buffer: pairs } };
      const common = { S, slotBytes, T: 1, K: EXPERTS, D, F, A: EXPERTS, P: EXPERTS, bits };
      if (isDown) {
        const { codes, scales, biases } = down;
        const buffers = { ...lists, hidden: { buffer: x }, y: { buffer: y } };
        commands.dispatch(routedDown, buffers, {
          ...common,
          codes,
          scales,
          biases,
          activationBits,
        });
      } else {
        const buffers = { ...lists, x: { buffer: x }, hidden: { buffer: y } };
        commands.dispatch(routedGate, buffers, {
          ...common,
          gateCodes: gate.codes,
          gateScales: gate.scales,
          gateBiases: gate.biases,
          upCodes: up.codes,
          upScales: up.scales,
          upBiases: up.biases,
          activation: 0,
          activationBits,
        });
      }
    }
    return turns * EXPERTS * (isDown ? slotBytes - up.end : up.end);
  };
  const shape = isDown ? `[${D}, ${F}]` : `2 x [${F}, ${D}]`;
  return { name: `experts ${isDown ? "down" : "gate, up"} 8 x ${shape}`, record };
}

interface Heads {
  readonly H: number;
  readonly Hkv: number;
  readonly Dh: number;
  readonly window: number;
}

const FULL = { H: 16, Hkv: 2, Dh: 512, window: 0 };
const SLIDING = { H: 16, Hkv: 8, Dh: 256, window: 1024 };
const QWEN = { H: 16, Hkv: 2, Dh: 256, window: 0 };

/** The last T positions of `end`. */
function attention(name: string, heads: Heads, end: number, T = 1): Case {
  const seen = heads.window === 0 ? end : Math.min(end, heads.window + T - 1);
  const cacheBytes = seen * heads.Hkv * heads.Dh * 2;
  const record = ({ slab, x, y, commands }: Bench): number => {
    const dispatches = T > 1 ? 1 : Math.floor(SLAB_BYTES / (2 * cacheBytes));
    for (let i = 0; i < dispatches; i += 1) {
      const buffers = {
        q: { buffer: x },
        keys: { buffer: slab, offset: 2 * i * cacheBytes },
        values: { buffer: slab, offset: (2 * i + 1) * cacheBytes },
        y: { buffer: y },
      };
      const params = { ...heads, T, R: seen, position: end - T, scale: 1 / 16 };
      commands.dispatch(attentionF16, buffers, params);
    }
    return 2 * cacheBytes * dispatches;
  };
  const rows = T === 1 ? "" : `, ${T} rows`;
  return { name: `attention ${name}, ${end} positions${rows}`, record };
}

const LAYERS: readonly (readonly [string, Heads])[] = [
  ["full", FULL],
  ["sliding", SLIDING],
  ["qwen", QWEN],
];

const CASES: readonly Case[] = [
  matmul("q", 4096, D),
  matmul("k, v", 2048, D),
  matmul("o", D, 4096),
  gated("gate, up", 2112, D),
  matmul("down", D, 2112),
  routed(false),
  routed(true),
  matmul("head", 262_144, D),
  matmul("q", 4096, D, 8),
  matmul("down", D, 2112, 8),
  ...LAYERS.flatMap(([name, heads]) => [
    attention(name, heads, 1024),
    attention(name, heads, 4096),
    attention(name, heads, 16_384),
    attention(name, heads, 512, 512),
    attention(name, heads, 4096, 512),
  ]),
].filter(({ name }) => name.includes(flags.only));

const folder = mkdtempSync(path.join(tmpdir(), "mference-bench-"));
const reader = path.join(folder, "reader");

function buildReader(): void {
  const source = path.join(import.meta.dir, "reader.c");
  const command = ["cc", "-O3", "-march=native", "-pthread", "-o", reader, source];
  if (Bun.spawnSync(command, { stderr: "inherit" }).exitCode !== 0)
    throw new Error("cc could not build bench/reader.c");
}

const readerSpeed = (threads: number): number =>
  Number(Bun.spawnSync([reader, "memory", String(threads)]).stdout.toString());

/** Words of which each half is a BF16 number of a usual size; one block of them, again and again. */
function fill(bytes: Uint8Array): void {
  const block = new Uint32Array(2 ** 18);
  crypto.getRandomValues(new Uint8Array(block.buffer, 0, 65_536));
  for (let i = 0; i < block.length; i += 1)
    block[i] = ((block[i % 16_384]! & 0x81ff81ff) | 0x3c003c00) >>> 0;
  const source = new Uint8Array(block.buffer);
  for (let at = 0; at < bytes.length; at += source.length) bytes.set(source, at);
}

interface Row {
  readonly threads: number;
  readonly name: string;
  readonly weightGBs: number;
  readonly readerGBs: number;
  readonly share: number;
  /** Milliseconds of one dispatch. */
  readonly ms: number;
}

function measure(library: string, threads: number): Row[] {
  const device = new Device({ library, threads });
  const memory = device.allocate(SLAB_BYTES);
  fill(device.view(memory, 0, SLAB_BYTES));
  const bench = {
    slab: device.bindMemory(memory),
    x: device.createBuffer(4 * VALUES_MAX),
    y: device.createBuffer(4 * VALUES_MAX),
    groups: device.createBuffer(2 ** 16),
    pairs: device.createBuffer(4 * EXPERTS),
  };
  const x = new Float32Array(bench.x.bytes.buffer, bench.x.bytes.byteOffset, VALUES_MAX);
  for (let i = 0; i < x.length; i += 1) x[i] = Math.sin(i);
  new Uint32Array(bench.pairs.bytes.buffer, bench.pairs.bytes.byteOffset, EXPERTS).set(
    Array.from({ length: EXPERTS }, (_, i) => i),
  );
  const samples = CASES.map(() => ({
    speeds: [] as number[],
    readers: [] as number[],
    ms: [] as number[],
  }));
  for (let run = 0; run <= Number(flags.runs); run += 1) {
    for (const [i, { record }] of CASES.entries()) {
      const commands = new Commands();
      const bytes = record({ ...bench, commands });
      const dispatches = commands.count;
      // The first run only brings everything into being.
      const readerGBs = run === 0 ? 0 : readerSpeed(threads);
      const begin = performance.now();
      device.submit(commands.bytes);
      device.finish();
      const ms = performance.now() - begin;
      if (run === 0) continue;
      samples[i]!.ms.push(ms / dispatches);
      samples[i]!.speeds.push(bytes / ms / 1e6);
      samples[i]!.readers.push(readerGBs);
    }
  }
  device.close();
  return CASES.map(({ name }, i) => {
    const { speeds, readers, ms } = samples[i]!;
    const share = median(speeds.map((speed, run) => speed / readers[run]!));
    const [weightGBs, readerGBs] = [median(speeds), median(readers)];
    return { threads, name, weightGBs, readerGBs, share, ms: median(ms) };
  });
}

try {
  buildReader();
  const library = await buildDeviceLibrary();
  const rows = flags.threads.split(",").flatMap((threads) => measure(library, Number(threads)));
  if (flags.json) console.log(JSON.stringify(rows));
  else
    console.table(
      rows.map(({ threads, name, weightGBs, readerGBs, share, ms }) => ({
        threads,
        product: name,
        ms: ms.toFixed(3),
        "GB/s": weightGBs.toFixed(1),
        reader: readerGBs.toFixed(1),
        share: `${(100 * share).toFixed(0)} %`,
      })),
    );
} finally {
  rmSync(folder, { recursive: true, force: true });
}
