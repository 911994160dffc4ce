// Runs golden fixture folders through install, load and engine:
//   bun scripts/check-golden.ts DIR... [--device metal|cpu] [--slots N|resident] [--simd NAME] [--threads N]
// Prints the largest difference of each stage and way of feeding it; exits 0 only when every stage is within tolerance.
import { parseArgs } from "node:util";
import { deviceLibrary } from "../src/engine/libraries.ts";
import { sentenceOf } from "../src/util/errors.ts";
import { checkFixture, type GoldenOptions, printReport } from "../tests/golden/check.ts";

const FLAGS = {
  device: { type: "string", default: "cpu" },
  slots: { type: "string" },
  simd: { type: "string" },
  threads: { type: "string" },
} as const;

function slotsOf(text: string): number | "resident" {
  return text === "resident" ? text : Number(text);
}

async function run(): Promise<boolean> {
  const { values, positionals } = parseArgs({ allowPositionals: true, options: FLAGS });
  if (positionals.length === 0) throw new Error("name at least one fixture folder");
  const { device } = values;
  if (device !== "cpu" && device !== "metal") {
    throw new Error(`unknown device ${device}: expected metal or cpu`);
  }
  if (!/^[1-9]\d{0,3}$/.test(values.threads ?? "1")) {
    throw new Error(`--threads must be a whole number of at least 1, not "${values.threads}"`);
  }
  const options: GoldenOptions = {
    library: await deviceLibrary(device),
    ...(values.slots === undefined ? {} : { slots: slotsOf(values.slots) }),
    ...(values.simd === undefined ? {} : { simd: values.simd }),
    ...(values.threads === undefined ? {} : { threads: Number(values.threads) }),
  };
  let passed = true;
  for (const directory of positionals) {
    const report = await checkFixture(directory, options);
    console.log(printReport(report));
    passed &&= report.passed;
  }
  return passed;
}

let passed = false;
try {
  passed = await run();
} catch (error) {
  console.error(sentenceOf(error));
}
console.log(passed ? "passed" : "failed");
process.exit(passed ? 0 : 1);
