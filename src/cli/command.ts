/** How a command is declared: once, for help, for strict parsing and for running. */
import { defineCommand } from "citty";
import type { Arguments } from "./args.ts";
import type { Command } from "./commands.ts";
import type { ExitCode } from "./exit.ts";
import type { Values } from "./options.ts";

export interface CommandOptions {
  readonly name: string;
  readonly description: string;
  readonly args: Arguments;
  /** `strict` are the arguments in the form `--name=value`, for flags that repeat. */
  readonly run: (values: Values, strict: readonly string[]) => Promise<ExitCode>;
}

/** Declares a command. Its `run` returns the exit code. */
export function declareCommand({ name, description, args, run }: CommandOptions): Command {
  const definition = defineCommand({
    meta: { name, description },
    args: { ...args },
    run: ({ args: values, rawArgs }) => run(values, rawArgs),
  });
  return { definition, args };
}
