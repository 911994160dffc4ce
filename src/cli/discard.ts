/** `mference discard`: gives up an unfinished install. */
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { outputArgs, type Values } from "./options.ts";
import { systemTerminal } from "./terminal.ts";

export const discard = declareCommand({
  name: "discard",
  description: "Remove what an unfinished install has left.",
  args: {
    model: { type: "positional", required: true, description: "name of the model" },
    json: outputArgs.json,
  },
  run: runDiscard,
});

async function runDiscard(values: Values): Promise<ExitCode> {
  const { discardPartial } = await import("../install/discard.ts");
  const removed = discardPartial(values["model"] as string);
  const { out } = systemTerminal();
  out.write(values["json"] === true ? `${JSON.stringify({ removed })}\n` : `removed ${removed}\n`);
  return EXIT.ok;
}
