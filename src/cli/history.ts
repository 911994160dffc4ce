/**
 * What the user typed in earlier chats, for the arrow keys: a file that only its owner may read, one line
 * each, appended to at once so that two chats lose nothing of each other. A history that cannot be kept
 * is no reason to stop.
 */
import fs from "node:fs";
import path from "node:path";

const LINES_MAX = 1000;
const FILE_BYTES_MAX = 4 * 1024 * 1024;
const LINE_CHARACTERS_MAX = 4096;

export class History {
  readonly #file: string | undefined;

  /** @param file absent: nothing is kept */
  constructor(file?: string) {
    this.#file = file;
  }

  /** The newest lines, the newest first. */
  load(): string[] {
    if (this.#file === undefined) return [];
    try {
      const lines = readTail(this.#file)
        .split("\n")
        .filter((line) => line !== "");
      if (lines.length > 2 * LINES_MAX) this.#shorten(lines.slice(-LINES_MAX));
      return lines.slice(-LINES_MAX).toReversed();
    } catch {
      return [];
    }
  }

  /** Keeps a line. */
  add(line: string): void {
    const isWorthIt = line.trim() !== "" && line.length <= LINE_CHARACTERS_MAX;
    if (this.#file === undefined || !isWorthIt) return;
    try {
      fs.mkdirSync(path.dirname(this.#file), { recursive: true });
      fs.appendFileSync(this.#file, `${line.replaceAll("\n", " ")}\n`, { mode: 0o600 });
    } catch {
      // The chat goes on without.
    }
  }

  #shorten(lines: readonly string[]): void {
    const partial = `${this.#file}.${process.pid}.partial`;
    fs.writeFileSync(partial, lines.map((line) => `${line}\n`).join(""), { mode: 0o600 });
    fs.renameSync(partial, this.#file!);
  }
}

/** The end of a file, from a line's beginning on. */
function readTail(file: string): string {
  const descriptor = fs.openSync(file, "r");
  try {
    const size = fs.fstatSync(descriptor).size;
    const start = Math.max(0, size - FILE_BYTES_MAX);
    const bytes = Buffer.alloc(size - start);
    const count = fs.readSync(descriptor, bytes, 0, bytes.length, start);
    const text = bytes.toString("utf8", 0, count);
    return start === 0 ? text : text.slice(text.indexOf("\n") + 1);
  } finally {
    fs.closeSync(descriptor);
  }
}
