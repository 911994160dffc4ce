/**
 * The messages of a chat as the user sees them: adding turns, going back, cutting the oldest turns when
 * the context is full, and the file format in which a chat is kept. Pure data; knows no engine.
 */
import { MferenceError } from "../util/errors.ts";

export interface Message {
  readonly role: "system" | "user" | "assistant";
  readonly content: string;
  /** The answer was stopped by the user. */
  readonly isInterrupted?: boolean;
}

export class Conversation {
  #system: string | undefined;
  #messages: Message[] = [];
  /** The messages from here on are sent; earlier turns stay in the transcript only. */
  #sentFrom = 0;

  constructor(system?: string) {
    this.system = system;
  }

  get system(): string | undefined {
    return this.#system;
  }

  set system(text: string | undefined) {
    this.#system = text === undefined || text.trim() === "" ? undefined : text;
  }

  /** User and assistant messages, the oldest first. */
  get messages(): readonly Message[] {
    return this.#messages;
  }

  /** What is sent to the model together with a new message of the user. */
  request(content: string): Message[] {
    const system: Message[] =
      this.#system === undefined ? [] : [{ role: "system", content: this.#system }];
    return [...system, ...this.#messages.slice(this.#sentFrom), { role: "user", content }];
  }

  /** Number of earlier turns that `request` would send. */
  get sentTurns(): number {
    return (this.#messages.length - this.#sentFrom) / 2;
  }

  /** Sends the oldest `count` of the turns no longer; they stay in the transcript. */
  dropTurns(count: number): void {
    this.#sentFrom = Math.min(this.#messages.length, this.#sentFrom + 2 * count);
  }

  /**
   * Keeps a finished turn. An empty answer is not kept: templates refuse it, and the chat could never go
   * on. Returns whether the turn was kept.
   */
  addTurn(question: string, answer: string, isInterrupted = false): boolean {
    if (answer.trim() === "") return false;
    this.#messages.push(
      { role: "user", content: question },
      { role: "assistant", content: answer, ...(isInterrupted ? { isInterrupted } : {}) },
    );
    return true;
  }

  /** Takes the last turn back and returns its question. */
  undo(): string | undefined {
    const turn = this.#messages.splice(-2);
    this.#sentFrom = Math.min(this.#sentFrom, this.#messages.length);
    return turn[0]?.content;
  }

  clear(): void {
    this.#messages = [];
    this.#sentFrom = 0;
  }

  /** The chat as a file's text. */
  save(model: string): string {
    const messages = this.request("").slice(0, this.#system === undefined ? 0 : 1);
    const all = [...messages, ...this.#messages];
    return `${JSON.stringify({ format: FORMAT, version: 1, model, messages: all }, null, 2)}\n`;
  }

  /**
   * Replaces everything by a saved chat; nothing changes when the file is not one.
   *
   * @throws MferenceError "usage.input"
   */
  load(text: string, what: string): void {
    const messages = parseSaved(text, what);
    const [first] = messages;
    const system = first?.role === "system" ? first.content : undefined;
    const turns = system === undefined ? messages : messages.slice(1);
    const isPaired =
      turns.length % 2 === 0 &&
      turns.every(({ role }, index) => role === (index % 2 === 0 ? "user" : "assistant"));
    if (!isPaired) throw notAChat(what, "its messages are not questions and answers in turn");
    this.system = system;
    this.#messages = turns;
    this.#sentFrom = 0;
  }
}

const FORMAT = "mference-chat";
/** Far more than any chat fills. */
export const SAVED_BYTES_MAX = 64 * 1024 * 1024;

/** Whether a file's text is a saved chat, so that it may be overwritten. */
export function isSavedChat(text: string): boolean {
  try {
    parseSaved(text, "");
    return true;
  } catch {
    return false;
  }
}

function parseSaved(text: string, what: string): Message[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw notAChat(what, "it is not JSON");
  }
  if (!isRecord(value) || value["format"] !== FORMAT)
    throw notAChat(what, `"format" is not "${FORMAT}"`);
  if (value["version"] !== 1) throw notAChat(what, "its version is not 1");
  const messages = value["messages"];
  if (!Array.isArray(messages)) throw notAChat(what, `it has no list "messages"`);
  return messages.map((message: unknown, index): Message => {
    if (!isRecord(message)) throw notAChat(what, `message ${index} is not an object`);
    const { role, content } = message as { role?: unknown; content?: unknown };
    const isRole = role === "user" || role === "assistant" || (role === "system" && index === 0);
    if (!isRole || typeof content !== "string") {
      throw notAChat(what, `message ${index} has no role and text of a chat`);
    }
    const isInterrupted = message["isInterrupted"] === true;
    return isInterrupted ? { role, content, isInterrupted } : { role, content };
  });
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function notAChat(what: string, reason: string): MferenceError {
  return new MferenceError("usage.input", `${what} is not a saved chat: ${reason}`);
}

/**
 * The fewest of `turns` earlier turns to leave out so that the rest fits, or undefined when not even
 * none of them fits. Fitting is monotonous, so halving finds it with few calls of `fits`.
 */
export async function turnsToDrop(
  turns: number,
  fits: (dropped: number) => Promise<boolean>,
): Promise<number | undefined> {
  if (await fits(0)) return 0;
  if (!(await fits(turns))) return undefined;
  let [tooFew, enough] = [0, turns];
  while (enough - tooFew > 1) {
    const middle = Math.floor((tooFew + enough) / 2);
    if (await fits(middle)) enough = middle;
    else tooFew = middle;
  }
  return enough;
}

/** Messages as the engine takes them. */
export function messagesJson(messages: readonly Message[]): string {
  return JSON.stringify(messages.map(({ role, content }) => ({ role, content })));
}
