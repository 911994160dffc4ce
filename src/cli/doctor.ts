/**
 * `mference doctor`: what this machine can run, and what is in the way. A part that cannot be found out
 * is a finding like any other; only a device that cannot be had makes the exit code non-zero.
 */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import type { DeviceKind } from "../engine/libraries.ts";
import type { DeviceInfo, DiskSpeed, ModelNeeds } from "../engine/machine.ts";
import { embedded } from "../util/embedded.ts";
import { environmentVariables, shownEnv, type VariableName } from "../util/env.ts";
import { sentenceOf } from "../util/errors.ts";
import { memoryFacts, type MemoryFacts } from "../util/limits.ts";
import { formatBytes } from "../util/units.ts";
import { declareCommand } from "./command.ts";
import { EXIT, exitCodeOf, type ExitCode } from "./exit.ts";
import { modelArgs, outputArgs, type Values } from "./options.ts";
import { columns } from "./models.ts";
import { withProgress, type WorkContext } from "./run.ts";

export const doctor = declareCommand({
  name: "doctor",
  description: "Say what this machine can run.",
  args: { device: modelArgs.device, json: outputArgs.json },
  run: runDoctor,
});

/** Everything that the doctor found. */
export interface Findings {
  readonly version: string;
  readonly bun: string;
  /** What a compiled program needs of its system, in words. */
  readonly needs?: string;
  readonly system: string;
  readonly cpu: { readonly model: string; readonly cores: number };
  readonly memory: MemoryFacts;
  readonly device?: DeviceInfo & { readonly kind: DeviceKind; readonly library: string };
  readonly deviceError?: string;
  /** Path of the tokenizer library, or "script". */
  readonly tokenizer: string;
  readonly disk?: DiskSpeed & { readonly folder: string };
  readonly diskError?: string;
  readonly home: string;
  readonly models: readonly ModelFinding[];
  readonly environment: Readonly<Partial<Record<VariableName, string>>>;
  readonly notices: readonly string[];
}

export interface ModelFinding {
  readonly name: string;
  readonly status: string;
  /** Why it cannot be used. */
  readonly reason?: string;
  readonly needs?: ModelNeeds;
  /** Slots of each layer that fit into the memory at hand; 0: the model does not fit at all. */
  readonly slotsThatFit?: number;
}

async function runDoctor(values: Values): Promise<ExitCode> {
  return await withProgress(values, async (context) => {
    const { findings, exitCode } = await examine(context, values["device"] as DeviceKind);
    const { out } = context.terminal;
    if (values["json"] === true) out.write(`${JSON.stringify(findings)}\n`);
    else out.write(report(findings));
    return exitCode;
  });
}

async function examine(
  context: WorkContext,
  device: DeviceKind | undefined,
): Promise<{ readonly findings: Findings; readonly exitCode: ExitCode }> {
  const { default: manifest } = await import("../../package.json");
  const { mferenceHome } = await import("../install/home.ts");
  const memory = memoryFacts();
  const native = await examineLibraries(context, device);
  const home = mferenceHome();
  const { models, notices } = await examineModels(memory.usableBytes);
  const disk = await examineDisk(native.library, home);
  const needs = embedded()?.needs;
  const findings: Findings = {
    version: manifest.version,
    bun: Bun.version,
    ...(needs === undefined ? {} : { needs }),
    system: `${process.platform} ${process.arch} ${os.release()}`,
    cpu: { model: os.cpus()[0]?.model.trim() ?? "unknown", cores: os.availableParallelism() },
    memory,
    ...native.findings,
    notices: [...native.findings.notices, ...notices],
    ...disk,
    home,
    models,
    environment: environment(),
  };
  return { findings, exitCode: native.exitCode };
}

async function examineLibraries(
  { terminal, progress }: WorkContext,
  wanted: DeviceKind | undefined,
): Promise<{
  readonly library?: string;
  readonly findings: Pick<Findings, "device" | "deviceError" | "tokenizer" | "notices">;
  readonly exitCode: ExitCode;
}> {
  try {
    const { defaultDevice, prepareLibraries } = await import("../engine/libraries.ts");
    const kind = wanted ?? defaultDevice();
    const { probeDevice } = await import("../engine/machine.ts");
    const { library, tokenizerLibrary, notices } = await prepareLibraries({
      device: kind,
      onProgress: (sentence) => terminal.err.write(`${sentence}\n`),
    });
    progress.update("examining the machine");
    const device = { ...probeDevice(library), kind, library };
    const tokenizer = tokenizerLibrary ?? "script";
    return { library, findings: { device, tokenizer, notices }, exitCode: EXIT.ok };
  } catch (error) {
    const findings = { deviceError: sentenceOf(error), tokenizer: "unknown", notices: [] };
    return { findings, exitCode: exitCodeOf(error) };
  }
}

async function examineModels(
  usableBytes: number,
): Promise<{ readonly models: ModelFinding[]; readonly notices: string[] }> {
  const { listModels } = await import("../install/models.ts");
  const { modelNeeds, slotsThatFit } = await import("../engine/machine.ts");
  let entries: ReturnType<typeof listModels>;
  try {
    entries = listModels();
  } catch (error) {
    return { models: [], notices: [sentenceOf(error)] };
  }
  const models = entries.map(({ name, status, reason, directory }): ModelFinding => {
    if (status !== "installed") return { name, status, reason: reason ?? "not complete" };
    try {
      const needs = modelNeeds(directory);
      return { name, status, needs, slotsThatFit: slotsThatFit(needs, usableBytes) };
    } catch (error) {
      return { name, status: "unusable", reason: sentenceOf(error) };
    }
  });
  return { models, notices: [] };
}

/** A short read of an installed model's largest file, else of a file made for it. */
async function examineDisk(
  library: string | undefined,
  home: string,
): Promise<Pick<Findings, "disk" | "diskError">> {
  if (library === undefined) return {};
  const probe = { folder: nearestFolder(home), made: undefined as string | undefined };
  try {
    const { listModels } = await import("../install/models.ts");
    const { measureDisk } = await import("../engine/machine.ts");
    const model = listModels().find(({ status }) => status === "installed");
    if (model === undefined) probe.made = makeProbeFile(probe.folder);
    else probe.folder = model.directory;
    const speed = measureDisk(library, probe.made ?? largestFile(probe.folder));
    return speed === undefined ? {} : { disk: { ...speed, folder: probe.folder } };
  } catch (error) {
    return { diskError: sentenceOf(error) };
  } finally {
    if (probe.made !== undefined) fs.rmSync(probe.made, { force: true });
  }
}

/** The folder itself or the first above it that exists. */
function nearestFolder(folder: string): string {
  return fs.existsSync(folder) ? folder : nearestFolder(path.dirname(folder));
}

const PROBE_BYTES = 32 * 1024 * 1024;

function makeProbeFile(folder: string): string {
  const file = path.join(folder, `.mference-probe-${process.pid}`);
  // Not zeros: a file system might keep none of them.
  fs.writeFileSync(file, Buffer.alloc(PROBE_BYTES, "mference"), { flush: true });
  return file;
}

function largestFile(folder: string): string {
  const files = (fs.readdirSync(folder, { recursive: true }) as string[])
    .map((name) => path.join(folder, name))
    .filter((file) => fs.lstatSync(file).isFile());
  return files.reduce((best, file) =>
    fs.statSync(file).size > fs.statSync(best).size ? file : best,
  );
}

function environment(): Partial<Record<VariableName, string>> {
  const names = Object.keys(environmentVariables) as VariableName[];
  return Object.fromEntries(
    names.flatMap((name) => {
      const value = shownEnv(name);
      return value === undefined ? [] : [[name, value] as const];
    }),
  );
}

/** The findings for people. */
export function report(findings: Findings): string {
  const { memory, device, disk, cpu, models } = findings;
  const limit =
    memory.limitBytes === undefined ? "no limit" : `limit ${formatBytes(memory.limitBytes)}`;
  const lines: [string, string][] = [
    ["program", `mference ${findings.version} on Bun ${findings.bun}, ${findings.system}`],
    ...(findings.needs === undefined ? [] : [["needs", findings.needs] as [string, string]]),
    ["processor", `${cpu.model}, ${cpu.cores} cores usable`],
    [
      "memory",
      `${formatBytes(memory.usableBytes)} usable of ${formatBytes(memory.totalBytes)} (${limit})`,
    ],
    ["device", device === undefined ? `none: ${findings.deviceError}` : deviceLine(device)],
    ["tokenizer", findings.tokenizer],
    ["disk", disk === undefined ? `not measured${reason(findings.diskError)}` : diskLine(disk)],
    ["home", findings.home],
    ...Object.entries(findings.environment).map(([name, value]): [string, string] => [
      name,
      `${value} (${meaning(name)})`,
    ]),
  ];
  const notices = findings.notices.map((notice) => `${notice}\n`).join("");
  return `${columns(lines)}${notices}\n${modelLines(models)}`;
}

function reason(error: string | undefined): string {
  return error === undefined ? "" : `: ${error}`;
}

function meaning(name: string): string {
  return environmentVariables[name as VariableName];
}

function deviceLine(device: NonNullable<Findings["device"]>): string {
  const { kind, name, simd, threads, library } = device;
  const parts = [
    kind === "metal" ? "Metal" : "",
    name,
    simd,
    threads > 0 ? `${threads} threads` : "",
  ];
  return `${parts.filter((part) => part !== "").join(", ")}, ${library}`;
}

function diskLine({ bytesPerSecond, isDirect, folder }: NonNullable<Findings["disk"]>): string {
  const how = isDirect ? "" : ", from the system's cache perhaps";
  return `${formatBytes(bytesPerSecond)}/s in ${folder}${how}`;
}

function modelLines(models: readonly ModelFinding[]): string {
  if (models.length === 0) return 'no model is installed; "mference install demo" installs one\n';
  return models.map((model) => `${model.name}: ${modelLine(model)}\n`).join("");
}

function modelLine({ needs, slotsThatFit: slots = 0, reason: why }: ModelFinding): string {
  if (needs === undefined) return `cannot be used: ${why}`;
  const { commonBytes, kvBytes, slotBytes, expertCount, contextRows } = needs;
  const facts =
    `${formatBytes(commonBytes)} common, ${formatBytes(kvBytes)} for ${contextRows} tokens, ` +
    `${formatBytes(slotBytes)} for each slot of ${expertCount}`;
  if (slots === 0) return `does not fit into the memory at hand (${facts})`;
  return slots === expertCount
    ? `fits whole, with all ${expertCount} experts in memory (${facts})`
    : `up to --slots ${slots} fit (${facts})`;
}
