/**
 * A chat with a loaded model: asks with the whole conversation, leaves out the oldest turns when the
 * context is full, keeps what came of it, and can take turns back. Knows no terminal but what answers
 * are shown on.
 */
import { MferenceError } from "../util/errors.ts";
import type { GenerateRequest, GenerateStats, LoadedInfo, Prompt } from "../engine/protocol.ts";
import { type Answer, type AnswerContext, answerJson, showAnswer } from "./answer.ts";
import { Conversation, type Message, messagesJson, turnsToDrop } from "./conversation.ts";
import type { SamplingRequest } from "../engine/sampler.ts";
import { resolveSampling, type SamplingFlags } from "./options.ts";

/** What may be changed between turns. */
export interface ChatSettings {
  sampling: SamplingFlags;
  maxNew: number;
  stop: readonly string[];
  /** Absent: as the model's template has it. */
  think?: boolean | undefined;
}

export interface ChatOptions extends AnswerContext {
  readonly info: Pick<LoadedInfo, "contextRows" | "sampling" | "hasChat">;
  readonly name: string;
  readonly settings: ChatSettings;
  readonly system?: string | undefined;
}

/** Tokens of a prompt that are not its texts': more than any template writes around a message. */
const FRAME_TOKENS_MAX = 64;

export class ChatSession {
  readonly conversation: Conversation;
  readonly settings: ChatSettings;
  readonly name: string;
  readonly #options: ChatOptions;
  #lastStats: GenerateStats | undefined;

  constructor(options: ChatOptions) {
    this.#options = options;
    this.settings = options.settings;
    this.name = options.name;
    this.conversation = new Conversation(options.system);
    if (!options.info.hasChat) {
      throw new MferenceError(
        "model.text",
        `${options.name} cannot chat: its package has no tokenizer or no chat template; use "mference generate"`,
      );
    }
  }

  /** What the next answer will be drawn with. */
  get sampling(): SamplingRequest {
    return resolveSampling(this.settings.sampling, this.#options.info.sampling);
  }

  /** Of the last answer. */
  get lastStats(): GenerateStats | undefined {
    return this.#lastStats;
  }

  /**
   * Asks, shows the answer and keeps the turn.
   *
   * @throws MferenceError "engine.prompt" for an empty question, "engine.context" for one that cannot
   * fit; the conversation is then as it was
   */
  async ask(question: string, signal?: AbortSignal): Promise<Answer> {
    if (question.trim() === "") {
      throw new MferenceError("engine.prompt", "the prompt is empty; say something to the model");
    }
    const { style, terminal } = this.#options;
    const { conversation } = this;
    const { settings, name } = this;
    await this.#makeRoom(question);
    const request: GenerateRequest = {
      prompt: this.#prompt(conversation.request(question)),
      sampling: this.sampling,
      maxNew: settings.maxNew,
      stop: settings.stop,
    };
    const answer = await this.#generate(request, signal);
    this.#lastStats = answer.result.stats;
    const isInterrupted = answer.result.reason === "cancelled";
    const isKept = conversation.addTurn(question, answer.content, isInterrupted);
    if (style.isJson) terminal.out.write(`${answerJson(answer, { model: name })}\n`);
    else if (!isKept && !isInterrupted) this.#notice("the answer is empty; the turn is not kept");
    return answer;
  }

  /** Asks the last question again. Returns undefined where there is none. */
  async retry(signal?: AbortSignal): Promise<Answer | undefined> {
    const last = this.conversation.messages.slice(-2);
    const question = this.conversation.undo();
    if (question === undefined) return undefined;
    const restore = (): void => {
      this.conversation.addTurn(question, last[1]!.content, last[1]!.isInterrupted);
    };
    try {
      const answer = await this.ask(question, signal);
      if (answer.content.trim() === "") restore();
      return answer;
    } catch (error) {
      restore();
      throw error;
    }
  }

  async #generate(request: GenerateRequest, signal: AbortSignal | undefined): Promise<Answer> {
    try {
      return await showAnswer(this.#options, request, signal);
    } catch (error) {
      // Kept ids may hold more than the messages say, such as thoughts; the messages themselves fit.
      if (!(error instanceof MferenceError) || error.code !== "engine.context") throw error;
      return await showAnswer(this.#options, { ...request, isCold: true }, signal);
    }
  }

  #prompt(messages: readonly Message[]): Prompt {
    return { kind: "chat", messages: messagesJson(messages), think: this.settings.think };
  }

  /** Leaves out the oldest turns until the prompt fits with at least one new token. */
  async #makeRoom(question: string): Promise<void> {
    const { contextRows } = this.#options.info;
    const { conversation } = this;
    const messages = conversation.request(question);
    // No token is shorter than a byte, so a short chat fits without being tokenized here.
    if (byteBound(messages) < contextRows) return;
    const turns = conversation.sentTurns;
    const head = conversation.system === undefined ? 0 : 1;
    const dropped = await turnsToDrop(turns, async (count) => {
      const kept = [...messages.slice(0, head), ...messages.slice(head + 2 * count)];
      const ids = await this.#options.engine.tokenize(this.#prompt(kept));
      return ids.length < contextRows;
    });
    if (dropped === undefined) {
      throw new MferenceError(
        "engine.context",
        `${head === 0 ? "the message alone does" : "the message and the system text alone do"} not fit the context of ${contextRows} tokens: shorten the text or raise --context`,
      );
    }
    if (dropped === 0) return;
    conversation.dropTurns(dropped);
    const what = dropped === 1 ? "the oldest turn is" : `the ${dropped} oldest turns are`;
    this.#notice(`the context of ${contextRows} tokens is full: ${what} no longer sent`);
  }

  #notice(sentence: string): void {
    const { style, terminal } = this.#options;
    if (!style.isQuiet) terminal.err.write(`${sentence}\n`);
  }
}

function byteBound(messages: readonly Message[]): number {
  return messages.reduce(
    (sum, { content }) => sum + Buffer.byteLength(content) + FRAME_TOKENS_MAX,
    FRAME_TOKENS_MAX,
  );
}
