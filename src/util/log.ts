import { createConsola } from "consola";
import { env } from "./env.ts";

/**
 * Notices for people, always on stderr: stdout carries answers and `--json` only. Colours appear on a
 * terminal and nowhere else.
 */
export const log = createConsola({
  stdout: process.stderr,
  stderr: process.stderr,
  formatOptions: { date: false, colors: process.stderr.isTTY && env("NO_COLOR") === undefined },
});
