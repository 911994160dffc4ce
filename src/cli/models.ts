/** `mference models`: lists what is installed. */
import type { ModelEntry } from "../install/models.ts";
import { formatBytes } from "../util/units.ts";
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { outputArgs, type Values } from "./options.ts";
import { systemTerminal } from "./terminal.ts";

export const models = declareCommand({
  name: "models",
  description: "List the installed models.",
  args: { json: outputArgs.json },
  run: runModels,
});

async function runModels(values: Values): Promise<ExitCode> {
  const { listModels } = await import("../install/models.ts");
  const { modelsHome } = await import("../install/home.ts");
  const { catalogue } = await import("../install/catalogue.ts");
  const { bundledNames } = await import("../install/demo.ts");
  const found = listModels();
  const bundled = bundledNames().filter((name) => !found.some((model) => model.name === name));
  const available = catalogue()
    .filter(({ pin }) => !found.some(({ name }) => name === pin.name))
    .map(({ pin, family, canRun }) => ({
      name: pin.name,
      status: "available",
      bytes: pin.remote.downloadBytes,
      family,
      canRun,
    }));
  const { out } = systemTerminal();
  if (values["json"] === true) {
    out.write(`${JSON.stringify({ home: modelsHome(), models: found, bundled, available })}\n`);
  } else if (found.length === 0) {
    out.write(`no model is installed in ${modelsHome()}; "mference install demo" installs one\n`);
  } else {
    out.write(modelTable(found));
  }
  if (values["json"] !== true) out.write(bundledText(bundled) + availableText(available));
  return EXIT.ok;
}

/** The models in columns. */
export function modelTable(entries: readonly ModelEntry[]): string {
  const rows = entries.map((entry) => [
    entry.name,
    entry.status,
    formatBytes(entry.bytes),
    entry.family ?? "",
    entry.lastUsed === undefined
      ? "never used"
      : `used ${entry.lastUsed.toISOString().slice(0, 10)}`,
    entry.reason ?? entry.directory,
  ]);
  return columns([["NAME", "STATE", "SIZE", "FAMILY", "", "WHERE"], ...rows]);
}

/** What can be installed without a download. */
export function bundledText(names: readonly string[]): string {
  if (names.length === 0) return "";
  return `with the program, for "mference install NAME": ${names.join(", ")}\n`;
}

/** What can be downloaded, with its size. */
export function availableText(
  entries: readonly { name: string; bytes: number; canRun: boolean }[],
): string {
  if (entries.length === 0) return "";
  const names = entries.map(({ name, bytes, canRun }) => {
    return `${name} (${formatBytes(bytes)}${canRun ? "" : ", cannot be run yet"})`;
  });
  return `available with "mference install NAME": ${names.join(", ")}\n`;
}

/** Rows in columns that are as wide as need be. */
export function columns(rows: readonly (readonly string[])[]): string {
  const widths: number[] = [];
  for (const row of rows) {
    for (const [i, cell] of row.entries())
      widths[i] = Math.max(widths[i] ?? 0, Bun.stringWidth(cell));
  }
  const pad = (cell: string, i: number): string =>
    cell + " ".repeat(widths[i]! - Bun.stringWidth(cell));
  return rows.map((row) => `${row.map(pad).join("  ").trimEnd()}\n`).join("");
}
