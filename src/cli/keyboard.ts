/**
 * Reads lines from the terminal with editing and history, keeps a paste of several lines together, and
 * tells Ctrl-C and the end of the input apart. Owns the terminal's mode: it edits only while a line is
 * awaited; in between Ctrl-C is a signal as usual.
 */
import readline from "node:readline";
import type { History } from "./history.ts";

export type Key =
  | { readonly kind: "line"; readonly text: string }
  /** Several lines that were pasted, as one message. */
  | { readonly kind: "paste"; readonly text: string }
  | { readonly kind: "interrupt"; readonly hadText: boolean }
  | { readonly kind: "end" };

/** Where a chat gets its lines from. */
export interface Keyboard {
  read(prompt: string): Promise<Key>;
  close(): void;
}

const PASTES_ON = "\u001b[?2004h";
const PASTES_OFF = "\u001b[?2004l";

/** The keyboard of the process's terminal; prompts appear on stderr. */
export function terminalKeyboard(history: History): Keyboard {
  return new TerminalKeyboard(process.stdin, process.stderr, history);
}

class TerminalKeyboard implements Keyboard {
  readonly #input: NodeJS.ReadStream;
  readonly #output: NodeJS.WriteStream;
  readonly #history: History;
  readonly #reader: readline.Interface;
  #resolve: ((key: Key) => void) | undefined;
  /** Keys that arrived before anybody waited for them: one read may bring several lines. */
  readonly #early: Key[] = [];
  #isPasting = false;
  /** Lines of a paste that wait for the Enter after it. */
  #pasted: string[] = [];
  #isEnded = false;

  constructor(input: NodeJS.ReadStream, output: NodeJS.WriteStream, history: History) {
    this.#input = input;
    this.#output = output;
    this.#history = history;
    // Before the reader's own listener, so that a paste is known before its first line ends.
    readline.emitKeypressEvents(input);
    input.on("keypress", (_text, key?: { name?: string }) => {
      if (key?.name === "paste-start") this.#isPasting = true;
      if (key?.name === "paste-end") this.#isPasting = false;
    });
    this.#reader = readline.createInterface({
      input,
      output,
      terminal: true,
      history: history.load(),
      historySize: 1000,
      removeHistoryDuplicates: true,
    });
    this.#reader.on("line", (line) => this.#onLine(line));
    this.#reader.on("SIGINT", () => this.#onInterrupt());
    this.#reader.on("close", () => this.#onClose());
    this.#rest();
  }

  read(prompt: string): Promise<Key> {
    const early = this.#early.shift();
    if (early !== undefined) return Promise.resolve(early);
    if (this.#isEnded) return Promise.resolve({ kind: "end" });
    return new Promise((resolve) => {
      this.#resolve = resolve;
      this.#setRaw(true);
      this.#output.write(PASTES_ON);
      this.#reader.setPrompt(prompt);
      this.#reader.resume();
      this.#reader.prompt();
    });
  }

  close(): void {
    this.#isEnded = true;
    this.#reader.close();
    this.#rest();
  }

  #onLine(line: string): void {
    if (this.#isPasting) {
      this.#pasted.push(line);
      return;
    }
    this.#history.add(line);
    if (this.#pasted.length === 0) return this.#answer({ kind: "line", text: line });
    const text = [...this.#pasted, line].join("\n");
    this.#pasted = [];
    this.#answer({ kind: "paste", text });
  }

  #onInterrupt(): void {
    // Typed just before the terminal went back to making signals of it.
    if (this.#resolve === undefined) {
      process.kill(process.pid, "SIGINT");
      return;
    }
    const hadText = this.#reader.line !== "" || this.#pasted.length > 0;
    this.#pasted = [];
    this.#isPasting = false;
    // Ends the line that was being edited, without keeping it.
    this.#reader.write(null, { ctrl: true, name: "e" });
    this.#reader.write(null, { ctrl: true, name: "u" });
    this.#output.write("^C\n");
    this.#answer({ kind: "interrupt", hadText });
  }

  #onClose(): void {
    if (!this.#isEnded) this.#output.write("\n");
    this.#isEnded = true;
    this.#answer({ kind: "end" });
  }

  #answer(key: Key): void {
    const resolve = this.#resolve;
    this.#resolve = undefined;
    if (resolve === undefined) {
      this.#early.push(key);
      return;
    }
    this.#rest();
    resolve(key);
  }

  /** Gives the terminal back until the next line is awaited. */
  #rest(): void {
    if (!this.#isEnded) this.#reader.pause();
    this.#setRaw(false);
    this.#output.write(PASTES_OFF);
  }

  #setRaw(isRaw: boolean): void {
    // Absent where the input is no terminal.
    this.#input.setRawMode?.(isRaw);
  }
}
