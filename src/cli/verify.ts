/** `mference verify`: checks the files of an installed model. */
import { formatBytes } from "../util/units.ts";
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { outputArgs, type Values } from "./options.ts";
import { portion } from "./progress.ts";
import { withProgress } from "./run.ts";

export const verify = declareCommand({
  name: "verify",
  description: "Check the files of an installed model.",
  args: {
    model: {
      type: "positional",
      required: false,
      description: "name or folder; default: the only one installed, else the last used",
    },
    full: { type: "boolean", description: "also hash the expert files, and write a receipt" },
    ...outputArgs,
  },
  run: runVerify,
});

async function runVerify(values: Values): Promise<ExitCode> {
  const { resolveModel } = await import("../install/models.ts");
  const { verifyPackage } = await import("../install/verify.ts");
  const full = values["full"] === true;
  const chosen = resolveModel(values["model"] as string | undefined);
  return await withProgress(values, async ({ terminal, progress, signal }) => {
    progress.update(`verifying ${chosen.name}`);
    const verified = await verifyPackage(chosen.directory, {
      full,
      signal,
      onProgress: ({ doneBytes, totalBytes }) =>
        progress.update(`verifying ${chosen.name}: ${portion(doneBytes, totalBytes, formatBytes)}`),
    });
    progress.done();
    if (values["json"] === true) {
      terminal.out.write(`${JSON.stringify({ model: chosen.name, full, ...verified })}\n`);
      return EXIT.ok;
    }
    const depth = full
      ? "every byte is as installed"
      : "structure and common files are right; --full also hashes the experts";
    terminal.out.write(
      `${chosen.name}: ${verified.fileCount} files, ${formatBytes(verified.bytes)}: ${depth}\n`,
    );
    if (verified.notice !== undefined) terminal.err.write(`${verified.notice}\n`);
    if (verified.unexpected.length > 0) {
      terminal.err.write(`not part of the package: ${verified.unexpected.join(", ")}\n`);
    }
    return EXIT.ok;
  });
}
