// Measures what the fast and the quick precision cost in exactness:
//   bun bench/precision.ts [--prompts N]
// One product with random weights; logits of the golden fixtures against Hugging Face's; and the demo
// model's logits, both against exact, over recorded prompts and their answers.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { loadModel, type Model } from "../src/engine/model.ts";
import { Session } from "../src/engine/session.ts";
import { families } from "../src/families/index.ts";
import { demoSource } from "../src/install/demo.ts";
import { matmulAffine } from "../src/kernels/matmul.ts";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { Device, type SharedBuffer } from "../src/native/device.ts";
import type { Precision } from "../src/ops/ops.ts";
import { Stream } from "../src/ops/stream.ts";
import { floatsOf } from "../src/ops/tensor.ts";
import { findTextFiles, openText } from "../src/text/index.ts";
import { withPackage } from "../tests/golden/check.ts";
import { heldOut } from "../tests/golden/demo.ts";
import { readFixture } from "../tests/golden/fixture.ts";
import { createRandom } from "../tests/reference/random.ts";

const { values: flags } = parseArgs({ options: { prompts: { type: "string", default: "40" } } });
const FIXTURES = join(import.meta.dir, "../tests/fixtures/golden");
const library = await buildDeviceLibrary();

/** How far one set of logit rows is from another. */
class Distance {
  #squares = 0;
  #truthSquares = 0;
  #largest = 0;
  #divergence = 0;
  #rows = 0;
  #same = 0;

  add(row: Float32Array, truth: Float32Array): void {
    const [p, q] = [logSoftmax(truth), logSoftmax(row)];
    for (const [i, value] of row.entries()) {
      const difference = value - truth[i]!;
      this.#squares += difference * difference;
      this.#truthSquares += truth[i]! * truth[i]!;
      this.#largest = Math.max(this.#largest, Math.abs(difference));
      this.#divergence += Math.exp(p[i]!) * (p[i]! - q[i]!);
    }
    this.#rows += 1;
    if (argmax(row) === argmax(truth)) this.#same += 1;
  }

  describe(): string {
    const relative = Math.sqrt(this.#squares / this.#truthSquares).toExponential(1);
    const divergence = (this.#divergence / this.#rows).toExponential(1);
    return (
      `${relative} relative, ${this.#largest.toExponential(1)} at most, ` +
      `divergence ${divergence} nats, ${this.#same} of ${this.#rows} likeliest tokens the same`
    );
  }
}

function logSoftmax(row: Float32Array): Float64Array {
  const most = row.reduce((a, b) => Math.max(a, b), -Infinity);
  const sum = row.reduce((total, value) => total + Math.exp(value - most), 0);
  return Float64Array.from(row, (value) => value - most - Math.log(sum));
}

const argmax = (row: Float32Array): number =>
  row.reduce((best, value, i) => (value > row[best]! ? i : best), 0);

/** Raw logits of every position. */
async function logitsOf(model: Model, ids: readonly number[]): Promise<Float32Array[]> {
  const session = new Session(model);
  const rows: Float32Array[] = [];
  for (let first = 0; first < ids.length; first += model.chunkRows) {
    const chunk = Uint32Array.from(ids.slice(first, first + model.chunkRows));
    await session.extend(chunk, { head: "all" });
    model.stream.flush();
    const { columns } = model.forward.logits;
    const all = floatsOf(model.forward.logits);
    for (let t = 0; t < chunk.length; t += 1) {
      rows.push(all.slice(t * columns, (t + 1) * columns));
    }
  }
  session.reset();
  session.close();
  return rows;
}

const load = (directory: string, precision: Precision["name"]): Promise<Model> =>
  loadModel({ library, directory, precision, slots: "resident", chunkRows: 64, logitRows: 64 });

async function fixtures(): Promise<void> {
  for (const name of readdirSync(FIXTURES)) {
    if (name.endsWith(".md")) continue;
    const fixture = readFixture(join(FIXTURES, name));
    const truth = fixture.tensors.get("logits")!;
    const V = truth.shape.at(-1)!;
    await withPackage(fixture.directory, async (directory) => {
      for (const precision of ["exact", "fast", "quick"] as const) {
        const model = await load(directory, precision);
        const rows = await logitsOf(model, fixture.inputs.ids);
        model.close();
        const distance = new Distance();
        const first = rows.length - truth.shape[0]!;
        for (const [t, row] of rows.slice(first).entries()) {
          distance.add(row, Float32Array.from(truth.values.subarray(t * V, (t + 1) * V)));
        }
        console.log(`${name} ${precision}: ${distance.describe()}`);
      }
    });
  }
}

async function demo(): Promise<void> {
  await withPackage(demoSource(), async (directory) => {
    const { chat: dialect } = families.gemma4;
    const text = openText({ files: findTextFiles(`${directory}/tokenizer`)!, dialect });
    const exact = await load(directory, "exact");
    const rounded = [await load(directory, "fast"), await load(directory, "quick")];
    const distances = rounded.map(() => new Distance());
    for (const { prompt, want } of heldOut.slice(0, Number(flags.prompts))) {
      const ids = text.tokenizer.encode(prompt + want, { specials: true });
      const truth = await logitsOf(exact, ids);
      for (const [i, model] of rounded.entries()) {
        const rows = await logitsOf(model, ids);
        for (const [t, row] of rows.entries()) distances[i]!.add(row, truth[t]!);
      }
    }
    for (const [i, { precision }] of rounded.entries()) {
      console.log(`demo, ${precision.name} against exact: ${distances[i]!.describe()}`);
    }
    for (const part of [exact, ...rounded, text]) part.close();
  });
}

/** One product [rows, columns] with codes, scales and activations drawn at random. */
function product(rows: number, columns: number): void {
  const device = new Device({ library });
  const stream = new Stream(device);
  const random = createRandom(1);
  const create = (bytes: number): SharedBuffer => device.createBuffer(bytes);
  const [x, codes, y] = [create(4 * columns), create((rows * columns) / 2), create(4 * rows)];
  const groups = (rows * columns) / 64;
  const [scales, biases] = [create(2 * groups), create(2 * groups)];
  const floats = (buffer: SharedBuffer): Float32Array => new Float32Array(buffer.bytes.buffer);
  floats(x).set(random.normals(columns));
  codes.bytes.set(random.bytes(codes.byteLength));
  // 1 and -7.5 in BF16: codes around zero.
  new Uint16Array(scales.bytes.buffer).fill(0x3f80);
  new Uint16Array(biases.bytes.buffer).fill(0xc0f0);
  const run = (activationBits: number): Float32Array => {
    const buffers = { x, codes, scales, biases, y };
    const bound = Object.fromEntries(
      Object.entries(buffers).map(([name, buffer]) => [name, { buffer }]),
    );
    const params = { T: 1, I: columns, O: rows, bits: 4, activationBits };
    stream.dispatch(matmulAffine, bound as never, params);
    stream.flush();
    return floats(y).slice(0, rows);
  };
  const truth = run(32);
  const norm = (values: Float32Array): number => Math.hypot(...values);
  for (const bits of [16, 8]) {
    const error = norm(run(bits).map((value, i) => value - truth[i]!)) / norm(truth);
    console.log(
      `product [${rows}, ${columns}], ${bits} bits against exact: ${error.toExponential(1)}`,
    );
  }
  stream.close();
  device.close();
}

product(2816, 2816);
await fixtures();
await demo();
