// Measures decode and prefill of an installed model, and what a first answer costs a whole process:
//   bun bench/decode.ts [--model DIR] [--tokens N] [--runs N] [--slots N] [--threads N] [--json]
//                       [--device metal|cpu]
// Runs of both precisions alternate, so that a machine whose speed drifts treats them alike; medians are
// printed. Without --model the bundled demo checkpoint is installed into a temporary folder.
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { complete } from "../src/engine/generate.ts";
import { defaultDevice, deviceLibrary } from "../src/engine/libraries.ts";
import { loadModel, type Model } from "../src/engine/model.ts";
import type { GenerateStats } from "../src/engine/protocol.ts";
import { Session } from "../src/engine/session.ts";
import { installDemo } from "../src/install/demo.ts";
import { median } from "./median.ts";

const { values } = parseArgs({
  options: {
    model: { type: "string" },
    tokens: { type: "string", default: "256" },
    prompt: { type: "string", default: "512" },
    runs: { type: "string", default: "7" },
    slots: { type: "string", default: "32" },
    threads: { type: "string", default: "0" },
    json: { type: "boolean", default: false },
    device: { type: "string", default: defaultDevice() },
  },
});

const PRECISIONS = ["fast", "exact"] as const;
type Precision = (typeof PRECISIONS)[number];

interface Sample {
  readonly decodeTokensPerSecond: number;
  readonly prefillTokensPerSecond: number;
  /** Of the decode time: not in a native wait (where the waiting thread computes too) nor in reads. */
  readonly scriptShare: number;
  readonly hitRate: number;
}

async function generate(
  session: Session,
  promptIds: readonly number[],
  maxNew: number,
): Promise<GenerateStats> {
  const { stats } = await complete(session, {
    promptIds,
    sampling: { temperature: 0 },
    maxNew,
    stop: [],
    stopReason: () => undefined,
    onEvent: () => {},
    isCancelled: () => false,
  });
  return stats;
}

/** Ids of no meaning, the same at every run; what they are does not change the speed. */
function promptOf({ shape }: Model, length: number): number[] {
  return Array.from({ length }, (_, i) => (i * 7919 + 13) % shape.vocabSize);
}

async function sample(session: Session): Promise<Sample> {
  const { model } = session;
  session.reset();
  const prefill = await generate(session, promptOf(model, Number(values.prompt)), 1);
  session.reset();
  const decode = await generate(session, promptOf(model, 16), Number(values.tokens));
  const steps = decode.newTokens - 1;
  const script = decode.decodeSeconds - decode.deviceWaitSeconds - decode.readSeconds;
  return {
    decodeTokensPerSecond: steps / decode.decodeSeconds,
    prefillTokensPerSecond: prefill.promptTokens / prefill.prefillSeconds,
    scriptShare: script / decode.decodeSeconds,
    hitRate: decode.hits / (decode.hits + decode.misses),
  };
}

async function measure(directory: string, library: string): Promise<Record<Precision, Sample[]>> {
  const samples: Record<Precision, Sample[]> = { fast: [], exact: [] };
  const sessions = new Map<Precision, Session>();
  for (const precision of PRECISIONS) {
    const model = await loadModel({
      directory,
      library,
      precision,
      slots: Number(values.slots),
      threads: Number(values.threads),
    });
    sessions.set(precision, new Session(model));
    await sample(sessions.get(precision)!);
  }
  for (let run = 0; run < Number(values.runs); run += 1) {
    for (const precision of PRECISIONS) {
      samples[precision].push(await sample(sessions.get(precision)!));
    }
  }
  for (const session of sessions.values()) {
    session.close();
    session.model.close();
  }
  return samples;
}

interface Start {
  readonly firstTokenSeconds: number;
  readonly peakBytes: number;
}

/** A whole process, from its start to the first byte of the answer, and the peak that it reports itself. */
async function start(command: readonly string[], home: string): Promise<Start> {
  const begin = performance.now();
  const child = Bun.spawn([...command], {
    env: { ...process.env, MFERENCE_HOME: home },
    stdout: "pipe",
    stderr: "ignore",
  });
  const reader = child.stdout.getReader();
  const first = await reader.read();
  const firstTokenSeconds = (performance.now() - begin) / 1000;
  let text = new TextDecoder().decode(first.value);
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    text += new TextDecoder().decode(next.value);
  }
  await child.exited;
  // The kernel's account of a child begins with its parent's memory, so the child reads its own.
  const peakBytes = Number(/"peakMemoryBytes":\s*(\d+)/.exec(text)?.[1]);
  return { firstTokenSeconds, peakBytes };
}

const BARE = `
  const { peakMemoryBytes } = await import(${JSON.stringify(join(import.meta.dir, "../src/util/memory.ts"))});
  console.log(JSON.stringify({ peakMemoryBytes: peakMemoryBytes() }));
`;

async function measureStart(
  home: string,
): Promise<{ chat: Start[]; json: Start[]; bare: Start[] }> {
  const main = join(import.meta.dir, "../src/cli/main.ts");
  const question = ["--prompt", "What is the capital of France?", "--device", values.device];
  const chat = [process.execPath, main, "chat", ...question];
  await start(chat, home);
  const found = { chat: [] as Start[], json: [] as Start[], bare: [] as Start[] };
  for (let run = 0; run < Number(values.runs); run += 1) {
    found.chat.push(await start(chat, home));
    found.json.push(await start([...chat, "--json"], home));
    found.bare.push(await start([process.execPath, "-e", BARE], home));
  }
  return found;
}

function summarize(samples: readonly Sample[]) {
  const of = (key: keyof Sample): number => median(samples.map((each) => each[key]));
  return {
    decodeTokensPerSecond: of("decodeTokensPerSecond"),
    prefillTokensPerSecond: of("prefillTokensPerSecond"),
    scriptShare: of("scriptShare"),
    hitRate: of("hitRate"),
  };
}

const home = mkdtempSync(join(tmpdir(), "mference-bench-"));
try {
  const device = values.device === "metal" ? "metal" : "cpu";
  const library = await deviceLibrary(device);
  const demo = (await installDemo({ models: join(home, "models") })).directory;
  const samples = await measure(values.model ?? demo, library);
  const starts = await measureStart(home);
  const result = {
    machine: `${cpus()[0]?.model} x ${cpus().length}`,
    runs: Number(values.runs),
    fast: summarize(samples.fast),
    exact: summarize(samples.exact),
    firstTokenSeconds: median(starts.chat.map((each) => each.firstTokenSeconds)),
    peakBytes: median(starts.json.map((each) => each.peakBytes)),
    bareBunBytes: median(starts.bare.map((each) => each.peakBytes)),
  };
  if (values.json) console.log(JSON.stringify(result));
  else console.log(Bun.inspect(result, { depth: 3 }));
} finally {
  rmSync(home, { recursive: true, force: true });
}
