/** `mference install`: the bundled demo, or a checkpoint from a folder. */
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { formatBytes } from "../util/units.ts";
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { installProgress } from "./load.ts";
import { outputArgs, type Values } from "./options.ts";
import { withProgress } from "./run.ts";

export const install = declareCommand({
  name: "install",
  description: "Install the bundled demo, or a checkpoint in MLX layout from a folder.",
  args: {
    model: {
      type: "positional",
      required: false,
      description: '"demo" for the bundled checkpoint',
    },
    source: {
      type: "string",
      valueHint: "folder",
      description: "install the checkpoint in this folder",
    },
    name: {
      type: "string",
      valueHint: "name",
      description: "name of the installed model (default: the folder's)",
    },
    ...outputArgs,
  },
  run: runInstall,
});

async function runInstall(values: Values): Promise<ExitCode> {
  const request = readRequest(values);
  return await withProgress(values, async ({ terminal, progress, signal }) => {
    const options = {
      signal,
      onProgress: (at: { phase: string; doneBytes: number; totalBytes: number }) =>
        progress.update(installProgress(at.phase, at.doneBytes, at.totalBytes)),
    };
    const installed =
      request.kind === "demo"
        ? await (await import("../install/demo.ts")).installDemo(options)
        : await (await import("../install/install.ts")).installLocal({ ...request, ...options });
    progress.done();
    if (values["json"] === true) {
      terminal.out.write(`${JSON.stringify(installed)}\n`);
      return EXIT.ok;
    }
    const { name, directory, bytes, notice } = installed;
    terminal.out.write(`installed ${name}, ${formatBytes(bytes)}, in ${directory}\n`);
    if (notice !== undefined) terminal.err.write(`${notice}\n`);
    return EXIT.ok;
  });
}

export type InstallRequest =
  | { readonly kind: "demo" }
  | { readonly kind: "folder"; readonly source: string; readonly name: string };

/**
 * What is to be installed.
 *
 * @throws MferenceError "usage.flag", "usage.value"
 */
export function readRequest(values: Values): InstallRequest {
  const { model, source, name } = values as { model?: string; source?: string; name?: string };
  if (model !== undefined && source !== undefined) {
    throw new MferenceError("usage.flag", `give either "${model}" or --source, not both`);
  }
  if (source !== undefined) {
    const resolved = path.resolve(source);
    return { kind: "folder", source: resolved, name: name ?? path.basename(resolved) };
  }
  if (model === undefined) {
    throw new MferenceError("usage.value", 'say what to install: "demo", or --source FOLDER');
  }
  if (model !== "demo") {
    throw new MferenceError(
      "usage.value",
      `"${model}" cannot be installed by name: the only name is demo; a folder is given with --source`,
    );
  }
  if (name !== undefined) throw new MferenceError("usage.flag", "--name goes with --source");
  return { kind: "demo" };
}
