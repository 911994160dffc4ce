/**
 * Plants each fault of scripts/shader-faults.ts in the shaders, one at a time, and runs the conformance
 * cases of its kernel in checked mode: one of them has to fail. Nothing is built anew; the software Metal
 * plants the fault when it compiles. Prints a table of who noticed what, and last "N passed, N failed".
 *
 *   bun scripts/mutate-shaders.ts [--root FOLDER] [--only TEXT]
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { buildMetalLibrary } from "../src/native/build-metal.ts";
import { ROOT } from "../src/native/built.ts";
import { SHADER_FAULTS, type ShaderFault } from "./shader-faults.ts";
import { findSwift, inRoot } from "./swift-here.ts";

const { values } = parseArgs({
  options: {
    root: { type: "string" },
    only: { type: "string", default: "" },
    inside: { type: "boolean", default: false },
  },
});
const BUN = process.execPath;

interface Outcome {
  readonly fault: ShaderFault;
  /** Cases that failed, of those run. */
  readonly failed: number;
  readonly run: number;
  /** What the first of them said. */
  readonly sentence: string;
  /** Noticed by a check or by wrong numbers; a shader that does not compile proves nothing. */
  readonly isNoticed: boolean;
}

/** The sentences of a dispatch that was not run at all. */
const NOT_RUN = /do not compile|no such text|more than once|program_source|with constants/;

async function plant(fault: ShaderFault, scratch: string, library: string): Promise<Outcome> {
  const { after, original, replacement, kernel } = fault;
  const file = join(scratch, "fault");
  const parts = after === undefined ? [original, replacement] : [after, original, replacement];
  writeFileSync(file, parts.join("\n=>\n"));
  const command = [BUN, "test", "--timeout=600000", "tests/native/conformance.test.ts"];
  const child = Bun.spawn([...command, "-t", ` ${kernel}: `], {
    cwd: ROOT,
    env: {
      ...process.env,
      MFERENCE_LIBRARY: library,
      MFERENCE_TEST_DEVICE: "metal",
      MTL_SHADER_VALIDATION: "1",
      SOFTMETAL_FAULT: file,
    },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, errors] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return judge(fault, `${out}\n${errors}`);
}

function judge(fault: ShaderFault, output: string): Outcome {
  const count = (word: string): number =>
    Number(new RegExp(`^ *(\\d+) ${word}$`, "m").exec(output)?.[1] ?? 0);
  const failed = count("fail");
  const said = /^(?:error|MferenceError): (.*)$/m.exec(output)?.[1] ?? "nothing";
  const sentence = said.replace(/^.*a command list failed: /, "").replace(/ \(status -\d+\)$/, "");
  const isNoticed = failed > 0 && !NOT_RUN.test(said);
  return { fault, failed, run: failed + count("pass"), sentence, isNoticed };
}

function print({ fault, failed, run, sentence, isNoticed }: Outcome): void {
  const verdict = isNoticed ? "noticed" : "NOT NOTICED";
  console.log(`${verdict}: ${fault.title} (${fault.kernel}, ${failed} of ${run} cases)`);
  console.log(`    ${sentence.slice(0, 200)}`);
}

async function mutate(): Promise<boolean> {
  const library = await buildMetalLibrary({ onProgress: (text) => console.log(text) });
  const scratch = mkdtempSync(join(tmpdir(), "mference-faults-"));
  const faults = SHADER_FAULTS.filter(({ title }) => title.includes(values.only));
  let noticed = 0;
  try {
    for (const fault of faults) {
      const outcome = await plant(fault, scratch, library);
      if (outcome.isNoticed) noticed += 1;
      print(outcome);
    }
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
  console.log(`${noticed} passed, ${faults.length - noticed} failed`);
  return noticed === faults.length && noticed > 0;
}

async function main(): Promise<number> {
  const place = values.inside ? { kind: "here" as const } : await findSwift(values.root);
  if (place.kind === "none") throw new Error(place.reason);
  if (place.kind === "here") return (await mutate()) ? 0 : 1;
  const variables = [`MFERENCE_BUILD_DIR=${join(ROOT, "build/metal-half")}`];
  const script = ["scripts/mutate-shaders.ts", "--inside", "--only", values.only];
  const command = inRoot(place.root, [...variables, BUN, ...script]);
  return await Bun.spawn(command, { stdout: "inherit", stderr: "inherit" }).exited;
}

process.exit(await main());
