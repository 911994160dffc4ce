/**
 * Where the program writes: answers to stdout, everything for people to stderr. Owns colours, the
 * neutralising of control characters on a terminal, and the flush before the end. Knows no engine.
 */
import { isatty } from "node:tty";
import { env } from "../util/env.ts";
import { printable } from "../util/printable.ts";

export interface Output {
  /** Whether a person sees it. */
  readonly isTerminal: boolean;
  /** Cells of a line, where they are known. */
  readonly columns?: number | undefined;
  write(text: string): void;
}

export interface Terminal {
  readonly out: Output;
  readonly err: Output;
  /** Thoughts and footers, quieter than answers. */
  dim(text: string): string;
  bold(text: string): string;
}

/** The process's own terminal. */
export function systemTerminal(): Terminal {
  return createTerminal(outputOf(process.stdout, 1), outputOf(process.stderr, 2));
}

/** A terminal over two outputs; colours only where stderr is a terminal. */
export function createTerminal(out: Output, err: Output): Terminal {
  const hasColour = err.isTerminal && env("NO_COLOR") === undefined && env("TERM") !== "dumb";
  const style = (on: number, off: number) => (text: string) =>
    hasColour && text !== "" ? `\u001b[${on}m${text}\u001b[${off}m` : text;
  return { out, err, dim: style(2, 22), bold: style(1, 22) };
}

function outputOf(stream: NodeJS.WriteStream, descriptor: number): Output {
  return {
    isTerminal: isatty(descriptor),
    get columns() {
      return stream.columns;
    },
    write: (text) => {
      if (text !== "") stream.write(text);
    },
  };
}

/** A model's text for a terminal: `printable`. Elsewhere the text passes as it is. */
export function safeText(text: string, output: Output): string {
  return output.isTerminal ? printable(text) : text;
}

/** Resolves when everything written so far has left the process. */
export async function flushOutputs(): Promise<void> {
  await Promise.all([flush(process.stdout), flush(process.stderr)]);
  // A write that failed is told in a later turn of the event loop, to who listens for errors.
  await Bun.sleep(0);
}

function flush(stream: NodeJS.WriteStream): Promise<void> {
  if (stream.writableLength === 0) return Promise.resolve();
  return new Promise((resolve) => {
    stream.write("", () => resolve());
  });
}
