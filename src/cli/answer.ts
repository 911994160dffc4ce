/**
 * One answer from the engine to the user: text to stdout as it comes, thoughts and notices apart from it,
 * the footer, or one JSON object. Keeps no conversation and decides nothing about the prompt.
 */
import type { EngineClient } from "../engine/client.ts";
import type {
  GenerateEvent,
  GenerateRequest,
  GenerateResult,
  GenerateStats,
} from "../engine/protocol.ts";
import type { Progress } from "./progress.ts";
import { safeText, type Terminal } from "./terminal.ts";

/** The part of the engine that answers need. */
export type Answerer = Pick<EngineClient, "generate" | "tokenize">;

export interface AnswerStyle {
  /** No footer, no notices. */
  readonly isQuiet: boolean;
  /** Collect the text for `answerJson` instead of printing it. */
  readonly isJson: boolean;
  readonly hidesThinking: boolean;
  /** Print ids instead of text: for packages without a tokenizer. */
  readonly printsIds?: boolean;
}

export interface Answer {
  readonly content: string;
  readonly reasoning: string;
  readonly toolCalls: readonly { id: string; name: string; arguments: string }[];
  readonly result: GenerateResult;
}

export interface AnswerContext {
  readonly engine: Answerer;
  readonly terminal: Terminal;
  readonly progress: Progress;
  readonly style: AnswerStyle;
}

/**
 * Runs a request and shows what comes of it.
 *
 * @throws MferenceError as generating does
 */
export async function showAnswer(
  context: AnswerContext,
  request: GenerateRequest,
  signal?: AbortSignal,
): Promise<Answer> {
  const view = new AnswerView(context);
  try {
    const result = await context.engine.generate(request, {
      onEvent: (event) => view.show(event),
      ...(signal === undefined ? {} : { signal }),
    });
    return view.finish(result);
  } catch (error) {
    view.abandon();
    throw error;
  }
}

class AnswerView {
  readonly #context: AnswerContext;
  #content = "";
  #reasoning = "";
  readonly #toolCalls: { id: string; name: string; arguments: string }[] = [];
  #promptTokens = 0;
  #isThinking = false;
  #isThinkingHidden = false;
  #printed = "";

  constructor(context: AnswerContext) {
    this.#context = context;
  }

  show(event: GenerateEvent): void {
    const { progress, style } = this.#context;
    switch (event.type) {
      case "prompt":
        this.#promptTokens = event.tokens - event.cached;
        return progress.update(`reading the prompt, ${this.#promptTokens} tokens`);
      case "prefill":
        return progress.update(`reading the prompt, ${event.done} of ${event.total} tokens`);
      case "content":
        this.#content += event.text;
        return this.#print(event.text);
      case "reasoning":
        this.#reasoning += event.text;
        return this.#think(event.text);
      case "toolCall":
        this.#toolCalls.push({ id: event.id, name: event.name, arguments: event.arguments });
        return this.#notice(`the model calls ${event.name}(${event.arguments})`);
      case "notice":
        return this.#notice(event.text);
      case "token":
        if (!this.#isThinkingHidden) progress.done();
        if (style.printsIds === true) this.#print(`${this.#printed === "" ? "" : " "}${event.id}`);
    }
  }

  finish(result: GenerateResult): Answer {
    const { terminal, style } = this.#context;
    // An answer that never began leaves nothing on stdout; any other ends its line.
    this.#endLine(result.reason !== "cancelled" || this.#printed !== "");
    if (!style.isQuiet) {
      terminal.err.write(`${terminal.dim(footer(result))}\n`);
      const hasBegun = style.printsIds === true || this.#content.trim() !== "";
      const advice = adviceOn(result, hasBegun);
      if (advice !== undefined) terminal.err.write(`${advice}\n`);
    }
    const { content, reasoning, toolCalls } = {
      content: this.#content,
      reasoning: this.#reasoning,
      toolCalls: this.#toolCalls,
    };
    return { content, reasoning, toolCalls, result };
  }

  /** The request failed: what was printed stays, on a line of its own. */
  abandon(): void {
    this.#endLine(this.#printed !== "");
  }

  #print(text: string): void {
    const { terminal, style, progress } = this.#context;
    this.#isThinkingHidden = false;
    progress.done();
    if (style.isJson || text === "") return;
    this.#endThought();
    terminal.out.write(safeText(text, terminal.out));
    this.#printed = text;
  }

  #think(text: string): void {
    const { terminal, style, progress } = this.#context;
    if (style.hidesThinking || style.isQuiet) {
      this.#isThinkingHidden = true;
      return progress.update("thinking");
    }
    progress.done();
    this.#isThinking = true;
    terminal.err.write(terminal.dim(safeText(text, terminal.err)));
  }

  #endThought(): void {
    if (!this.#isThinking) return;
    this.#isThinking = false;
    this.#context.terminal.err.write("\n");
  }

  #notice(text: string): void {
    const { terminal, style } = this.#context;
    if (style.isQuiet) return;
    this.#endThought();
    // On a terminal both streams share a line: a notice in the middle of an answer begins one of its own.
    const { out, err } = terminal;
    const isShared = out.isTerminal && err.isTerminal && !style.isJson;
    const isOpen = isShared && this.#printed !== "" && !this.#printed.endsWith("\n");
    err.write(`${isOpen ? "\n" : ""}${safeText(text, err)}\n`);
    if (isOpen) this.#printed = "\n";
  }

  #endLine(hasText: boolean): void {
    const { terminal, style, progress } = this.#context;
    progress.done();
    this.#endThought();
    const isOpen = hasText && !this.#printed.endsWith("\n");
    if (isOpen && !style.isJson) terminal.out.write("\n");
  }
}

/** `[stop=endOfTurn prefill=21tok/0.05s new=9 decode=0.02s tok/s=450.000]` */
export function footer({ reason, stats }: GenerateResult): string {
  const prefilled = stats.promptTokens - stats.cachedTokens;
  return (
    `[stop=${reason} prefill=${prefilled}tok/${stats.prefillSeconds.toFixed(2)}s ` +
    `new=${stats.newTokens} decode=${stats.decodeSeconds.toFixed(2)}s ` +
    `tok/s=${tokensPerSecond(stats).toFixed(3)}]`
  );
}

/** New tokens for each second of decoding; 0 where nothing was decoded. */
export function tokensPerSecond({ newTokens, decodeSeconds }: GenerateStats): number {
  return decodeSeconds > 0 ? newTokens / decodeSeconds : 0;
}

/** What the user may do about an answer that did not end by itself. */
function adviceOn({ reason, stats }: GenerateResult, hasBegun: boolean): string | undefined {
  if (reason === "maxTokens") {
    const when = hasBegun ? "" : " before the answer began";
    return `the answer was cut after ${stats.newTokens} tokens${when}; raise --max-new for more`;
  }
  if (reason === "context") return "the context is full; a larger --context holds more";
  return undefined;
}

/** An answer as the object that `--json` prints. */
export function answerJson(answer: Answer, facts: Readonly<Record<string, unknown>>): string {
  const { content, reasoning, toolCalls, result } = answer;
  return JSON.stringify({
    ...facts,
    content,
    ...(reasoning === "" ? {} : { reasoning }),
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
    stop: result.reason,
    stats: { ...result.stats, tokensPerSecond: tokensPerSecond(result.stats) },
  });
}
