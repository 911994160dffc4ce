// Runs a plan of phases on our CPU path: the counterpart of llama.c. compare.ts starts it.
//   bun bench/peers/ours.ts --package DIR --library FILE --plan FILE --slots N --threads N --context N
//                           [--precision NAME] [--chunk ROWS]
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { loadModel } from "../../src/engine/model.ts";
import { Session } from "../../src/engine/session.ts";
import { type Precision, PRECISIONS } from "../../src/ops/ops.ts";
import { peakMemoryBytes } from "../../src/util/memory.ts";
import { bytesPerToken, compute, countersOf, fill } from "../forced.ts";
import { parsePlan, type Report } from "./phases.ts";

const { values: flags } = parseArgs({
  options: {
    package: { type: "string" },
    library: { type: "string" },
    plan: { type: "string" },
    slots: { type: "string", default: "128" },
    threads: { type: "string", default: "2" },
    context: { type: "string", default: "4096" },
    precision: { type: "string", default: "fast" },
    chunk: { type: "string" },
  },
});

const numberOf = (file: string, key: string): number =>
  Number(new RegExp(`^${key}:\\s+(\\d+)`, "m").exec(readFileSync(file, "utf8"))?.[1] ?? 0);

/** What the system counts for this process. */
const countNow = () => ({
  at: performance.now(),
  readBytes: numberOf("/proc/self/io", "read_bytes"),
  majorFaults: process.resourceUsage().majorPageFault,
});

function report(
  name: string,
  tokens: number,
  before: ReturnType<typeof countNow>,
  more: Partial<Report> = {},
): void {
  const now = countNow();
  const line: Report = {
    name,
    tokens,
    seconds: (now.at - before.at) / 1000,
    readBytes: now.readBytes - before.readBytes,
    majorFaults: now.majorFaults - before.majorFaults,
    privateBytes: 1024 * numberOf("/proc/self/status", "RssAnon"),
    peakBytes: peakMemoryBytes(),
    ...more,
  };
  console.log(JSON.stringify(line));
}

const begin = countNow();
if (!(flags.precision in PRECISIONS)) throw new Error(`no precision ${flags.precision}`);
const model = await loadModel({
  directory: flags.package!,
  library: flags.library!,
  policy: "trusted-receipt",
  precision: flags.precision as Precision["name"],
  slots: Number(flags.slots),
  threads: Number(flags.threads),
  contextRows: Number(flags.context),
  ...(flags.chunk === undefined ? {} : { chunkRows: Number(flags.chunk) }),
});
const session = new Session(model);
await fill(session);
session.reset();
report("load", 0, begin, { bytesPerToken: bytesPerToken(model) });

for (const { name, ids } of parsePlan(readFileSync(flags.plan!, "utf8"))) {
  const isDecode = name.startsWith("decode");
  if (!isDecode) session.reset();
  const [before, then] = [countersOf(session), countNow()];
  if (isDecode) for (const id of ids) await compute(session, Uint32Array.of(id));
  else await compute(session, ids);
  const after = countersOf(session);
  const [hits, misses] = [after.hits - before.hits, after.misses - before.misses];
  report(name, ids.length, then, {
    hitRate: hits / (hits + misses),
    missedBytes: after.bytesRead - before.bytesRead,
    waitSeconds: after.waitSeconds - before.waitSeconds,
    readSeconds: after.readSeconds - before.readSeconds,
  });
}
session.close();
model.close();
