/**
 * Which ids a chat request becomes. A request that continues the last answer word for word is continued
 * from the very ids that were generated, through the template's bridge, so that nothing is computed
 * twice; any other is rendered whole, and the session reuses what prefix it still holds.
 */
import {
  type ChatMessage,
  type ChatRequest,
  parseJson,
  parseMessages,
  parseTools,
  type Text,
  writeJson,
} from "../text/index.ts";
import type { GenerateResult, Prompt } from "./protocol.ts";

type ChatPrompt = Extract<Prompt, { kind: "chat" }>;

/** A finished turn: what was asked, what came of it, and the ids that hold both. */
interface Turn {
  readonly messages: readonly ChatMessage[];
  /** Everything else that shapes a prompt, as text to compare. */
  readonly setting: string;
  readonly content: string;
  readonly calls: string;
  /** Prompt and answer without the stop token. */
  readonly ids: readonly number[];
}

/** What an answer consisted of. */
export interface Answer {
  readonly content: string;
  /** Each call's name and arguments as JSON text. */
  readonly calls: readonly { readonly name: string; readonly arguments: string }[];
}

/** @throws MferenceError "text.json", "text.messages" */
export function parseChat(prompt: ChatPrompt): ChatRequest {
  return {
    messages: parseMessages(parseJson(prompt.messages)),
    ...(prompt.tools === undefined ? {} : { tools: parseTools(parseJson(prompt.tools)) }),
    ...(prompt.think === undefined ? {} : { think: prompt.think }),
  };
}

/** Tools and thinking as text: requests that differ in it share no turn. */
function settingOf({ tools, think }: ChatRequest): string {
  return JSON.stringify([(tools ?? []).map((tool) => writeJson(tool.declaration)), think ?? null]);
}

const callsOf = (calls: Answer["calls"]): string =>
  JSON.stringify(calls.map((call) => [call.name, call.arguments]));

function isSameMessage(a: ChatMessage, b: ChatMessage): boolean {
  return (
    a.role === b.role &&
    (a.content ?? "") === (b.content ?? "") &&
    a.reasoning === b.reasoning &&
    a.name === b.name &&
    a.toolCallId === b.toolCallId &&
    messageCalls(a) === messageCalls(b)
  );
}

const messageCalls = ({ toolCalls }: ChatMessage): string =>
  callsOf(
    (toolCalls ?? []).map((call) => ({ name: call.name, arguments: writeJson(call.arguments) })),
  );

export class Conversation {
  readonly #text: Text;
  #turn: Turn | undefined;

  constructor(text: Text) {
    this.#text = text;
  }

  /** The ids of a chat request. */
  encode(request: ChatRequest): number[] {
    return this.#continue(request) ?? this.#text.encodeChat(request);
  }

  /** Remembers a finished turn, if the next one can be appended to it. */
  finish(request: ChatRequest, promptIds: readonly number[], end: GenerateResult & Answer): void {
    this.#turn = undefined;
    if (end.reason !== "endOfTurn" && end.reason !== "toolCalls") return;
    this.#turn = {
      messages: request.messages,
      setting: settingOf(request),
      content: end.content,
      calls: callsOf(end.calls),
      ids: [...promptIds, ...end.ids.slice(0, -1)],
    };
  }

  forget(): void {
    this.#turn = undefined;
  }

  #continue(request: ChatRequest): number[] | undefined {
    const turn = this.#turn;
    if (turn === undefined || settingOf(request) !== turn.setting) return undefined;
    const { messages } = request;
    const answer = messages[turn.messages.length];
    const isContinued =
      messages.length > turn.messages.length + 1 &&
      turn.messages.every((message, i) => isSameMessage(message, messages[i]!)) &&
      answer?.role === "assistant" &&
      (answer.content ?? "") === turn.content &&
      messageCalls(answer) === turn.calls &&
      !messages.slice(turn.messages.length + 1).some(({ role }) => role === "assistant");
    if (!isContinued) return undefined;
    const bridge = this.#text.encodeBridge(request);
    return bridge === undefined ? undefined : [...turn.ids, ...bridge];
  }
}
