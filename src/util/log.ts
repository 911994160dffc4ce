import { createConsola, type ConsolaReporter } from "consola";
import { env } from "./env.ts";
import { printable } from "./printable.ts";

/**
 * Sentences for people, always on stderr: stdout carries answers and `--json` only. Errors and warnings
 * bear the program's name, so that they are found among what other programs say. Colours appear on a
 * terminal and nowhere else. Loading this takes a while; a path that must be quick imports it when it
 * has something to say.
 */
const reporter: ConsolaReporter = {
  log: ({ type, args }) => {
    const said = args.map(String).join(" ");
    // Sentences quote names of files and words of servers, which must not steer a terminal.
    const sentence = process.stderr.isTTY ? printable(said) : said;
    const isUrgent = type === "error" || type === "warn" || type === "fatal";
    process.stderr.write(isUrgent ? `${paint("mference:")} ${sentence}\n` : `${sentence}\n`);
  },
};

function paint(text: string): string {
  const hasColour = process.stderr.isTTY && env("NO_COLOR") === undefined && env("TERM") !== "dumb";
  return hasColour ? `\u001b[31m${text}\u001b[39m` : text;
}

// The level is fixed: by itself the library falls silent in tests and in continuous integration.
export const log = createConsola({ level: 3, throttle: 0, reporters: [reporter] });
