/**
 * Progress of anything that takes longer than a moment: on a terminal one line, refreshed at most four
 * times a second and erased afterwards; elsewhere a line a second while something changes. Short work
 * shows nothing. Owns its timer; knows nothing of what is being done.
 */
import { formatSeconds } from "../util/units.ts";
import type { Output } from "./terminal.ts";

/** Work shorter than this shows nothing. */
const QUIET_MS = 1000;
const TERMINAL_REFRESH_MS = 250;
const LINE_REFRESH_MS = 1000;
/** Where nothing changes, a line this often says that the program lives. */
const LIFE_SIGN_MS = 10_000;

export interface ProgressOptions {
  readonly output: Output;
  /** Shows nothing at all. */
  readonly isQuiet: boolean;
  readonly now?: () => number;
}

export class Progress {
  readonly #output: Output;
  readonly #isQuiet: boolean;
  readonly #now: () => number;
  #begin: number | undefined;
  #text = "";
  #shown = "";
  #shownAt = 0;
  #timer: Timer | undefined;

  constructor({ output, isQuiet, now = performance.now.bind(performance) }: ProgressOptions) {
    this.#output = output;
    this.#isQuiet = isQuiet;
    this.#now = now;
  }

  /** Says what is going on; appears once the work has lasted a second. */
  update(text: string): void {
    if (this.#isQuiet) return;
    this.#text = text;
    if (this.#begin === undefined) {
      this.#begin = this.#now();
      const refresh = this.#output.isTerminal ? TERMINAL_REFRESH_MS : LINE_REFRESH_MS;
      this.#timer = setInterval(() => this.tick(), refresh);
      this.#timer.unref();
    }
    this.tick();
  }

  /** Shows the present state if it is due. */
  tick(): void {
    const now = this.#now();
    if (this.#begin === undefined || now - this.#begin < QUIET_MS) return;
    const since = now - this.#shownAt;
    if (this.#output.isTerminal) {
      if (this.#shown !== "" && since < TERMINAL_REFRESH_MS) return;
      const seconds = ` (${formatSeconds((now - this.#begin) / 1000)})`;
      // What goes on in a second line could not be erased.
      const { columns = 0 } = this.#output;
      const room = columns === 0 ? Infinity : columns - seconds.length - 1;
      const line = `${this.#text.slice(0, Math.max(0, room))}${seconds}`;
      this.#output.write(`\r\u001b[K${line}`);
      this.#shown = line;
    } else {
      const isDue = this.#text === this.#shown ? since >= LIFE_SIGN_MS : since >= LINE_REFRESH_MS;
      if (this.#shown !== "" && !isDue) return;
      this.#output.write(`${this.#text}\n`);
      this.#shown = this.#text;
    }
    this.#shownAt = now;
  }

  /** Writes a line that stays, above the one that is refreshed. */
  say(line: string): void {
    if (this.#isQuiet) return;
    this.#erase();
    if (this.#output.isTerminal) this.#shown = "";
    this.#output.write(`${line}\n`);
  }

  #erase(): void {
    if (this.#output.isTerminal && this.#shown !== "") this.#output.write("\r\u001b[K");
  }

  /** Ends the work and erases the line. */
  done(): void {
    clearInterval(this.#timer);
    this.#erase();
    this.#begin = undefined;
    this.#timer = undefined;
    this.#shown = "";
    this.#shownAt = 0;
  }
}

/** `40% of 15.1 GB`. */
export function portion(done: number, total: number, unit: (value: number) => string): string {
  const percent = total > 0 ? Math.floor((100 * done) / total) : 100;
  return `${percent}% of ${unit(total)}`;
}
