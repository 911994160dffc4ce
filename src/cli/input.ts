/**
 * What a user types, as messages: lines joined by a backslash at the end or between fences, whole pastes,
 * and bytes that must be UTF-8. Pure; knows no terminal.
 */
import { MferenceError } from "../util/errors.ts";

const FENCE = '"""';

/** Collects lines until they make a message. */
export class MessageAssembler {
  #lines: string[] = [];
  #isFenced = false;

  /** Whether a message has begun and needs more lines. */
  get isOpen(): boolean {
    return this.#lines.length > 0 || this.#isFenced;
  }

  /** Takes a line; returns the message that it completes, if any. */
  push(line: string): string | undefined {
    if (this.#isFenced) return this.#pushFenced(line);
    if (this.#lines.length === 0 && line.trimStart().startsWith(FENCE)) {
      this.#isFenced = true;
      const rest = line.trimStart().slice(FENCE.length);
      return rest.trim() === "" ? undefined : this.#pushFenced(rest);
    }
    if (/(?<!\\)\\$/.test(line)) {
      this.#lines.push(line.slice(0, -1));
      return undefined;
    }
    this.#lines.push(line);
    return this.#take();
  }

  /** The end of the input: what was begun is the last message. */
  end(): string | undefined {
    return this.#lines.length > 0 ? this.#take() : undefined;
  }

  /** Forgets a message that was begun. */
  abandon(): void {
    this.#lines = [];
    this.#isFenced = false;
  }

  #pushFenced(line: string): string | undefined {
    if (!line.trimEnd().endsWith(FENCE)) {
      this.#lines.push(line);
      return undefined;
    }
    const last = line.trimEnd().slice(0, -FENCE.length);
    if (last !== "") this.#lines.push(last);
    return this.#take();
  }

  #take(): string {
    const message = this.#lines.join("\n");
    this.abandon();
    return message;
  }
}

/**
 * The lines of a stream of bytes.
 *
 * @throws MferenceError "usage.input" where the bytes are not UTF-8
 */
export async function* linesOf(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  let rest = "";
  for await (const text of textsOf(bytes)) {
    const lines = (rest + text).split("\n");
    rest = lines.pop()!;
    for (const line of lines) yield line.replace(/\r$/, "");
  }
  if (rest !== "") yield rest;
}

/**
 * All of a stream of bytes as text.
 *
 * @throws MferenceError "usage.input" where the bytes are not UTF-8
 */
export async function textOf(bytes: AsyncIterable<Uint8Array>): Promise<string> {
  let all = "";
  for await (const text of textsOf(bytes)) all += text;
  return all;
}

async function* textsOf(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let offset = 0;
  const decode = (chunk?: Uint8Array): string => {
    try {
      return chunk === undefined ? decoder.decode() : decoder.decode(chunk, { stream: true });
    } catch {
      throw new MferenceError(
        "usage.input",
        `the standard input is not valid UTF-8 (near byte ${offset}); convert it and try again`,
      );
    }
  };
  for await (const chunk of bytes) {
    yield decode(chunk);
    offset += chunk.length;
  }
  yield decode();
}
