/**
 * Messages to the ids of a prompt, through the template that the model ships. Owns the guard that
 * keeps text of people from becoming control tokens, and the bridges that continue a finished turn.
 * Knows no family: a dialect says what its template wants.
 */
import { chooseGuard } from "./added-tokens.ts";
import type { ChatDialect, HiddenRegion } from "./dialect.ts";
import type { JsonObject, JsonValue } from "./json.ts";
import type { Markers } from "./markers.ts";
import { type ChatMessage, checkMessages, mergeGuidance, type ToolDefinition } from "./messages.ts";
import type { ChatTemplate } from "./template.ts";
import type { Tokenizer } from "./tokenizer.ts";

export type ChatRequest = {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly ToolDefinition[] | undefined;
  /** Whether the model should think first; the dialect's default when absent. */
  readonly think?: boolean | undefined;
  /** Whether the prompt ends where the assistant begins; true when absent. */
  readonly addGenerationPrompt?: boolean | undefined;
};

export type PromptParts = {
  readonly tokenizer: Tokenizer;
  readonly markers: Markers;
  readonly dialect: ChatDialect;
  readonly template: ChatTemplate;
  /** `bos_token` and the like, by the names that templates use. */
  readonly tokenNames: Readonly<Record<string, string>>;
};

export class PromptRenderer {
  readonly #parts: PromptParts;

  constructor(parts: PromptParts) {
    this.#parts = parts;
  }

  /**
   * The prompt as text, for people and tests.
   *
   * @throws MferenceError "text.messages", "text.tools", "text.template"
   */
  render(request: ChatRequest): string {
    const { text, guard } = this.#renderGuarded(request);
    return text.replaceAll(guard, "");
  }

  /** The prompt as ids; only what the template itself writes becomes control tokens. */
  encode(request: ChatRequest): number[] {
    const { text, guard } = this.#renderGuarded(request);
    return this.#parts.tokenizer.encode(text, { specials: true, guard });
  }

  /**
   * The ids that continue the last assistant message of `request` with everything after it, beginning
   * with the stop token that ended it. `undefined` where the template gives no such continuation; then
   * the whole prompt has to be computed.
   */
  bridge(request: ChatRequest): number[] | undefined {
    const last = request.messages.findLastIndex(({ role }) => role === "assistant");
    const answer = request.messages[last];
    if (answer === undefined || last === request.messages.length - 1) return undefined;
    const hasCalls = (answer.toolCalls ?? []).length > 0;
    const suffix = hasCalls ? this.#afterCalls(request, last) : this.#afterText(request, last);
    if (suffix === undefined) return undefined;
    const ids = this.#parts.tokenizer.encode(suffix.text, { specials: true, guard: suffix.guard });
    const meaning = this.#parts.markers.stops.get(ids[0] ?? -1);
    return meaning === (hasCalls ? "toolCalls" : "endOfTurn") ? ids : undefined;
  }

  /** What the template writes after the content of message `last`, found by a character put there. */
  #afterText(request: ChatRequest, last: number): Rendered | undefined {
    const mark = chooseGuard(allTexts(request));
    const messages = request.messages.with(last, {
      ...request.messages[last]!,
      content: mark,
      reasoning: undefined,
    });
    const { text, guard } = this.#renderGuarded({ ...request, messages });
    const pieces = text.split(mark);
    return pieces.length === 2 ? { text: pieces[1]!, guard } : undefined;
  }

  /** What the template writes after the calls of message `last`, which must be rendered alike without it. */
  #afterCalls(request: ChatRequest, last: number): Rendered | undefined {
    const close = this.#parts.dialect.calls?.close;
    if (close === undefined) return undefined;
    // The model wrote its text before the calls; a template may write it elsewhere.
    const messages = request.messages.with(last, {
      ...request.messages[last]!,
      content: undefined,
      reasoning: undefined,
    });
    const whole = this.#renderGuarded({ ...request, messages });
    const history = this.#renderGuarded({
      ...request,
      messages: messages.slice(0, last + 1),
      addGenerationPrompt: false,
    });
    const end = history.text.lastIndexOf(close) + close.length;
    const isSame = history.guard === whole.guard && end >= close.length;
    if (!isSame || !whole.text.startsWith(history.text.slice(0, end))) return undefined;
    return { text: whole.text.slice(end), guard: whole.guard };
  }

  #renderGuarded(request: ChatRequest): Rendered {
    const { dialect, tokenNames, tokenizer, template } = this.#parts;
    const guard = chooseGuard(allTexts(request));
    const guarded = (value: JsonValue) =>
      mapTexts(value, (text) => tokenizer.added.guard(text, guard));
    const messages = prepareMessages(request.messages, dialect);
    const tools = request.tools ?? [];
    const adapt = dialect.adaptTool ?? ((declaration: JsonObject) => declaration);
    const variables: Record<string, JsonValue> = {
      ...tokenNames,
      messages: guarded(templateMessages(messages, this.#parts)),
      add_generation_prompt: request.addGenerationPrompt ?? true,
      [dialect.thinking.variable]: request.think ?? dialect.thinking.isDefault,
    };
    if (tools.length > 0) {
      variables["tools"] = guarded(tools.map(({ declaration }) => adapt(declaration)));
    }
    return { text: template.render(variables), guard };
  }
}

/** Rendered text in which `guard` separates what must not be read as a token. */
type Rendered = { readonly text: string; readonly guard: string };

/** Every string of a request, to choose characters that none contains. */
function* allTexts(request: ChatRequest): Generator<string> {
  for (const message of request.messages) {
    yield message.content ?? "";
    yield message.reasoning ?? "";
    for (const call of message.toolCalls ?? []) yield* textsOf(call.arguments);
  }
  for (const { declaration } of request.tools ?? []) yield* textsOf(declaration);
}

function* textsOf(value: JsonValue): Generator<string> {
  if (typeof value === "string") yield value;
  else if (Array.isArray(value)) for (const item of value) yield* textsOf(item);
  else if (value instanceof Map) {
    for (const [key, member] of value) {
      yield key;
      yield* textsOf(member);
    }
  }
}

function mapTexts(value: JsonValue, change: (text: string) => string): JsonValue {
  if (typeof value === "string") return change(value);
  if (Array.isArray(value)) return value.map((item) => mapTexts(item, change));
  if (!(value instanceof Map)) return value;
  return new Map([...value].map(([key, member]) => [change(key), mapTexts(member, change)]));
}

function prepareMessages(messages: readonly ChatMessage[], dialect: ChatDialect): ChatMessage[] {
  const folded = messages.map((message): ChatMessage => {
    const isFolded = message.role === "developer" && !dialect.hasDeveloperRole;
    return isFolded ? { ...message, role: "system" } : message;
  });
  checkMessages(folded);
  for (const { toolCalls } of folded) {
    for (const call of toolCalls ?? []) dialect.checkCall?.(call);
  }
  const { hidden } = dialect;
  return mergeGuidance(folded).map((message) =>
    message.role === "assistant" && hidden !== undefined ? withoutHidden(message, hidden) : message,
  );
}

/**
 * An assistant's text without the hidden regions that a client left in it. Templates do the same, but
 * guarded text has no markers that they could find.
 */
function withoutHidden(message: ChatMessage, region: HiddenRegion): ChatMessage {
  const parts = (message.content ?? "").split(region.close);
  if (parts.length === 1 && !parts[0]!.includes(region.open)) return message;
  let content = "";
  let reasoning = "";
  for (const [index, part] of parts.entries()) {
    const isLast = index === parts.length - 1;
    const at = part.indexOf(region.open);
    if (at < 0) {
      // A thought may have been opened by the prompt; a labelled region never is.
      if (isLast || region.isLabelled) content += part;
      else reasoning += part;
    } else {
      content += part.slice(0, at);
      reasoning += part.slice(at + region.open.length);
    }
  }
  const thought = message.reasoning ?? (region.isLabelled ? undefined : reasoning.trim());
  return { ...message, content, reasoning: thought };
}

/** Messages in the form that templates expect, calls named by their id's owner. */
function templateMessages(messages: readonly ChatMessage[], parts: PromptParts): JsonValue {
  const names = new Map<string, string>();
  return messages.map((message): JsonObject => {
    const value: JsonObject = new Map<string, JsonValue>([["role", message.role]]);
    value.set("content", templateContent(message, parts));
    if (message.reasoning !== undefined) value.set("reasoning_content", message.reasoning);
    if ((message.toolCalls ?? []).length > 0) {
      const calls = message.toolCalls!.map(({ id, name, arguments: values }): JsonObject => {
        names.set(id, name);
        const target = new Map<string, JsonValue>([
          ["name", name],
          ["arguments", values],
        ]);
        return new Map<string, JsonValue>([
          ["id", id],
          ["type", "function"],
          ["function", target],
        ]);
      });
      value.set("tool_calls", calls);
    }
    const name = message.name ?? names.get(message.toolCallId ?? "");
    if (message.toolCallId !== undefined) value.set("tool_call_id", message.toolCallId);
    if (name !== undefined) value.set("name", name);
    return value;
  });
}

function templateContent({ role, content }: ChatMessage, parts: PromptParts): JsonValue {
  if (content === undefined) return null;
  const adapt = parts.dialect.adaptResult;
  return role === "tool" && adapt ? adapt(content, parts.template.source) : content;
}
