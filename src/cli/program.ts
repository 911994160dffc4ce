/**
 * The program: finds the command, checks its arguments strictly, runs it, and turns whatever happens into
 * one sentence and an exit code. Loads nothing that the command does not need.
 */
import fs from "node:fs";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { closest, strictArguments } from "./args.ts";
import { type Command, commands } from "./commands.ts";
import { EXIT, exitCodeOf, type ExitCode } from "./exit.ts";
import { flushOutputs } from "./terminal.ts";

const HELP_FLAGS = new Set(["--help", "-h"]);

/** Runs the program with the arguments of this process, and ends the process. */
export async function main(): Promise<never> {
  endOnBrokenPipe();
  const exitCode = await runProgram(process.argv.slice(2));
  await flushOutputs();
  process.exit(exitCode);
}

async function runProgram(argv: readonly string[]): Promise<ExitCode> {
  const [name, ...rest] = argv;
  try {
    if (name === undefined) {
      process.stderr.write(await programHelp());
      return EXIT.usage;
    }
    if (HELP_FLAGS.has(name) || name === "help") {
      process.stdout.write(await programHelp());
      return EXIT.ok;
    }
    if (name === "--version") {
      process.stdout.write(`${await version()}\n`);
      return EXIT.ok;
    }
    return await runCommandNamed(name, rest);
  } catch (error) {
    return await report(error, isJsonAsked(rest));
  }
}

async function runCommandNamed(name: string, rest: readonly string[]): Promise<ExitCode> {
  const entry = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (entry === undefined) throw unknownCommand(name);
  const command = await entry.load();
  const flags = rest.slice(0, rest.includes("--") ? rest.indexOf("--") : rest.length);
  if (flags.some((flag) => HELP_FLAGS.has(flag))) {
    process.stdout.write(await commandHelp(command));
    return EXIT.ok;
  }
  const { runCommand } = await import("citty");
  const rawArgs = strictArguments(rest, command.args);
  const { result } = await runCommand(command.definition, { rawArgs });
  return result as ExitCode;
}

function unknownCommand(name: string): MferenceError {
  const names = Object.keys(commands);
  const close = closest(name, names);
  const hint =
    close === undefined ? `the commands are ${names.join(", ")}` : `did you mean ${close}?`;
  const what = name.startsWith("-") ? "unknown flag" : "unknown command";
  return new MferenceError("usage.flag", `${what} ${name}; ${hint}`);
}

async function programHelp(): Promise<string> {
  const width = Math.max(...Object.keys(commands).map(({ length }) => length));
  const lines = Object.entries(commands).map(
    ([name, { summary }]) => `  ${name.padEnd(width)}  ${summary}`,
  );
  return [
    `mference ${await version()}: runs big Mixture-of-Experts language models in little memory`,
    "",
    "usage: mference COMMAND [flags]",
    "",
    ...lines,
    "",
    '"mference COMMAND --help" lists the flags of a command; --version prints the version',
    "",
    "exit codes: 0 success, 1 failure, 2 usage or a prompt that does not fit, 3 no such model,",
    "4 damaged files, 5 no space, 6 in use or already there, 7 no native library, 8 download failed,",
    "130 interrupted",
    "",
  ].join("\n");
}

async function commandHelp({ definition }: Command): Promise<string> {
  const { renderUsage } = await import("citty");
  const parent = { meta: { name: "mference" } };
  const usage = await renderUsage(definition, parent);
  const text = `${usage.replace(/ +$/gm, "")}\n`;
  return process.stdout.isTTY ? text : Bun.stripANSI(text);
}

async function version(): Promise<string> {
  const { default: manifest } = await import("../../package.json");
  return manifest.version;
}

/** One sentence for people; for programs also an object on stdout. */
async function report(error: unknown, isJson: boolean): Promise<ExitCode> {
  const exitCode = exitCodeOf(error);
  if (exitCode === EXIT.interrupted) return exitCode;
  const sentence = sentenceOf(error);
  const code = error instanceof MferenceError ? error.code : undefined;
  if (isJson) process.stdout.write(`${JSON.stringify({ error: { code, message: sentence } })}\n`);
  const { log } = await import("../util/log.ts");
  log.error(sentence);
  if (!(error instanceof MferenceError) && error instanceof Error) {
    log.info(`this is a fault of the program itself:\n${error.stack ?? ""}`);
  }
  return exitCode;
}

function isJsonAsked(argv: readonly string[]): boolean {
  const end = argv.indexOf("--");
  return argv.slice(0, end < 0 ? argv.length : end).includes("--json");
}

/** Whoever reads stdout may go away, as `head` does; anything else that stops it has to be said. */
function endOnBrokenPipe(): void {
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "EPIPE") process.exit(EXIT.brokenPipe);
    // Nothing is awaited any more: the process ends here.
    fs.writeSync(2, `mference: the standard output cannot be written: ${sentenceOf(error)}\n`);
    process.exit(EXIT.failure);
  });
  // Where stderr cannot be written nothing more can be said.
  process.stderr.on("error", () => process.exit(EXIT.failure));
}
