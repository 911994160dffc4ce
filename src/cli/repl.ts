/**
 * A conversation at the terminal, as a state machine over keys: lines become messages, messages become
 * answers or commands, Ctrl-C stops an answer and not the session. Reads no terminal itself.
 */
import path from "node:path";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import type { ChatSession } from "./chat-session.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { MessageAssembler } from "./input.ts";
import type { Interrupts } from "./interrupt.ts";
import type { Keyboard } from "./keyboard.ts";
import type { ModelRun } from "./run.ts";
import { isSlashCommand, runSlashCommand, unescapeSlash } from "./slash.ts";
import type { Terminal } from "./terminal.ts";

const PROMPT = "you> ";
const MORE_PROMPT = "...> ";

export interface ReplParts {
  readonly session: ChatSession;
  readonly keyboard: Keyboard;
  readonly terminal: Terminal;
  readonly interrupts: Pick<Interrupts, "signal" | "divert">;
}

export class Repl {
  readonly #parts: ReplParts;
  readonly #assembler = new MessageAssembler();
  /** The last key was a Ctrl-C at an empty prompt. */
  #isWarned = false;

  constructor(parts: ReplParts) {
    this.#parts = parts;
  }

  /** Runs until the user ends it; returns the exit code. */
  async run(): Promise<ExitCode> {
    const { keyboard, interrupts } = this.#parts;
    while (!interrupts.signal.aborted) {
      const key = await keyboard.read(this.#assembler.isOpen ? MORE_PROMPT : PROMPT);
      if (key.kind === "end") break;
      if (key.kind === "interrupt") {
        if (this.#onInterrupt(key.hadText)) return EXIT.interrupted;
        continue;
      }
      this.#isWarned = false;
      const message = key.kind === "paste" ? key.text : this.#assembler.push(key.text);
      if (message === undefined || message.trim() === "") continue;
      if (await this.#take(message)) break;
    }
    return EXIT.ok;
  }

  /** Ctrl-C at the prompt; whether it ends the program. */
  #onInterrupt(hadText: boolean): boolean {
    const wasBusy = hadText || this.#assembler.isOpen;
    this.#assembler.abandon();
    if (wasBusy) {
      this.#isWarned = false;
      return false;
    }
    if (this.#isWarned) return true;
    this.#isWarned = true;
    this.#say("Ctrl-C again, Ctrl-D or /quit ends the chat");
    return false;
  }

  /** Handles a message; whether it ends the chat. */
  async #take(message: string): Promise<boolean> {
    const { session } = this.#parts;
    try {
      if (!isSlashCommand(message)) {
        await this.#answer((signal) => session.ask(unescapeSlash(message), signal));
        return false;
      }
      const outcome = runSlashCommand(session, message);
      if (outcome.kind === "say") this.#say(outcome.text);
      if (outcome.kind === "retry") await this.#answer((signal) => session.retry(signal));
      return outcome.kind === "quit";
    } catch (error) {
      // A failed turn changes nothing, so the chat goes on; a dead engine cannot.
      if (!(error instanceof MferenceError) || error.code === "engine.state") throw error;
      this.#say(sentenceOf(error));
      return false;
    }
  }

  async #answer(ask: (signal: AbortSignal) => Promise<unknown>): Promise<void> {
    const { interrupts } = this.#parts;
    const stop = new AbortController();
    const release = interrupts.divert(() => stop.abort());
    try {
      await ask(AbortSignal.any([stop.signal, interrupts.signal]));
      if (stop.signal.aborted) this.#say("[interrupted]");
    } finally {
      release();
    }
  }

  #say(text: string): void {
    this.#parts.terminal.err.write(`${text}\n`);
  }
}

/** Chats at the process's terminal. */
export async function chatAtTerminal(
  session: ChatSession,
  run: ModelRun,
  options: { readonly keepsHistory: boolean },
): Promise<ExitCode> {
  const { History } = await import("./history.ts");
  const { terminalKeyboard } = await import("./keyboard.ts");
  const { mferenceHome } = await import("../install/home.ts");
  const { model, terminal, interrupts, isQuiet } = run;
  const file = options.keepsHistory ? path.join(mferenceHome(), "history") : undefined;
  const keyboard = terminalKeyboard(new History(file));
  if (!isQuiet) {
    terminal.err.write(
      `${terminal.bold(model.name)}, context ${model.info.contextRows} tokens; /help lists the commands\n`,
    );
  }
  try {
    const exitCode = await new Repl({ session, keyboard, terminal, interrupts }).run();
    return interrupts.exitCode ?? exitCode;
  } finally {
    keyboard.close();
  }
}
