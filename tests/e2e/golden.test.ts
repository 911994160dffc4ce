/** The forward pass against Hugging Face's logits and stages, on this device, in exact precision. */
import { describe, expect, test } from "bun:test";
import { cpSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { loadModel } from "../../src/engine/model.ts";
import { complete } from "../../src/engine/generate.ts";
import { Session } from "../../src/engine/session.ts";
import { checkFixture, printReport, withPackage } from "../golden/check.ts";
import { DEMO, FIXTURES, library } from "../golden/library.ts";
import { readFixture } from "../golden/fixture.ts";
import { patienceMs } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { isMetal } from "../fixtures/devices.ts";
import { sentenceOf } from "../../src/util/errors.ts";

const fixtures = readdirSync(FIXTURES, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map((entry) => entry.name);

test("the repository has golden fixtures", () => {
  expect(fixtures.length).toBeGreaterThanOrEqual(3);
});

test.each(fixtures)(
  "%s: every stage, whole, token by token and in split chunks",
  async (name) => {
    const report = await checkFixture(`${FIXTURES}/${name}`, { library });
    expect(report.stages.length).toBeGreaterThan(50);
    expect(report.passed ? "passed" : printReport(report)).toBe("passed");
  },
  patienceMs,
);

/** Where a tensor's data begins in a safetensors file, and the file. */
function locate(file: string, tensor: string): { bytes: Buffer; offset: number } {
  const bytes = readFileSync(file);
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString("utf8", 8, 8 + headerBytes)) as {
    [name: string]: { data_offsets: [number, number] };
  };
  return { bytes, offset: 8 + headerBytes + header[tensor]!.data_offsets[0] };
}

describe("a damaged fixture does not pass:", () => {
  const copy = (): string => {
    const folder = temporaryFolder();
    cpSync(`${FIXTURES}/gemma4-a-h320`, folder, { recursive: true });
    return folder;
  };

  test(
    "one weight of the checkpoint",
    async () => {
      const folder = copy();
      const file = `${folder}/model.safetensors`;
      const { bytes, offset } = locate(file, "language_model.model.norm.weight");
      bytes.writeUInt16LE(0x4000, offset);
      writeFileSync(file, bytes);
      const report = await checkFixture(folder, { library });
      expect(report.passed).toBe(false);
      const tooLarge = printReport(report)
        .split("\n")
        .filter((line) => line.endsWith("TOO LARGE"));
      expect(tooLarge.join()).toContain("logits");
      expect(tooLarge.join()).not.toContain("layer0");
    },
    patienceMs,
  );

  test(
    "a number of the truth that is none, also in the middle",
    async () => {
      const folder = copy();
      const file = `${folder}/golden.safetensors`;
      const { bytes, offset } = locate(file, "logits");
      bytes.writeFloatLE(Number.NaN, offset + 400);
      writeFileSync(file, bytes);
      const { passed, stages } = await checkFixture(folder, { library });
      expect(passed).toBe(false);
      expect(
        stages
          .filter(({ isWithin }) => !isWithin)
          .map(({ stage, difference }) => [stage, difference]),
      ).toContainEqual(["logits", Number.NaN]);
    },
    patienceMs,
  );

  test("truth that is listed and not there", async () => {
    const folder = copy();
    const header = Buffer.from("{}");
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(header.length));
    writeFileSync(`${folder}/golden.safetensors`, Buffer.concat([length, header]));
    const outcome = () => checkFixture(folder, { library }).then(() => "checked", sentenceOf);
    expect(await outcome()).toContain("golden.safetensors lacks");
    const file = `${folder}/golden.json`;
    const golden = JSON.parse(readFileSync(file, "utf8")) as object;
    writeFileSync(file, JSON.stringify({ ...golden, tensors: {} }));
    expect(await outcome()).toContain("lists no logits");
  });
});

const SLOTS = [1, 4, 8, 16, 32, "resident"] as const;

/** Ways to run that must not be seen in the answer: slots, direct reads, and on the CPU one thread. */
const WAYS = [
  ...SLOTS.map((slots) => ({ slots })),
  ...[3, 8, 16].map((slots) => ({ slots, directReads: true })),
  ...(isMetal ? [] : [1, 2].map((threads) => ({ slots: 8, directReads: true, threads }))),
];

/** 16 experts, where 32 slots are clamped, and the demo model's 32. */
const SOURCES = { "16 experts": `${FIXTURES}/gemma4-a-e16`, "32 experts": DEMO } as const;

test.each(
  (["16 experts", "32 experts"] as const).flatMap((name) =>
    (["exact", "fast"] as const).map((precision) => [precision, name] as const),
  ),
)(
  "%s, %s: the same continuation at any number of slots, however they are read, byte for byte",
  async (precision, name) => {
    const { inputs } = readFixture(`${FIXTURES}/gemma4-a-e16`);
    const promptIds = inputs.ids.slice(0, inputs.prompt);
    await withPackage(SOURCES[name], async (directory) => {
      const runs: { ids: string; logits: string }[] = [];
      for (const way of WAYS) {
        const model = await loadModel({ directory, library, precision, ...way, contextRows: 200 });
        const session = new Session(model);
        const result = await complete(session, {
          promptIds,
          sampling: { temperature: 0 },
          maxNew: 40,
          stop: [],
          stopReason: () => undefined,
          onEvent: () => {},
          isCancelled: () => false,
        });
        const { bytes } = model.forward.logits.buffer;
        runs.push({ ids: result.ids.join(" "), logits: Bun.hash(bytes).toString(16) });
        session.close();
        model.close();
      }
      expect(new Set(runs.map(({ ids }) => ids)).size).toBe(1);
      expect(new Set(runs.map(({ logits }) => logits)).size).toBe(1);
    });
  },
  600_000,
);

test(
  "the greedy continuation is Hugging Face's",
  async () => {
    for (const name of fixtures) {
      const { inputs } = readFixture(`${FIXTURES}/${name}`);
      if (!inputs.greedy) continue;
      await withPackage(`${FIXTURES}/${name}`, async (directory) => {
        const model = await loadModel({ directory, library, precision: "exact", contextRows: 200 });
        const session = new Session(model);
        const wanted = inputs.ids.slice(inputs.prompt);
        const result = await complete(session, {
          promptIds: inputs.ids.slice(0, inputs.prompt),
          sampling: { temperature: 0 },
          maxNew: wanted.length,
          stop: [],
          stopReason: () => undefined,
          onEvent: () => {},
          isCancelled: () => false,
        });
        expect(result.ids).toEqual(wanted);
        session.close();
        model.close();
      });
    }
  },
  patienceMs,
);
