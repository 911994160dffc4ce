/**
 * The messages of a chat: their model, how they are read from the API's JSON, and what is refused.
 * Knows no template and no token.
 */
import { MferenceError } from "../util/errors.ts";
import { type JsonObject, type JsonValue, parseJson, writeJson } from "./json.ts";

export const roles = ["system", "developer", "user", "assistant", "tool"] as const;
export type ChatRole = (typeof roles)[number];

/** A complete call of a tool. */
export type ToolCall = {
  readonly id: string;
  readonly name: string;
  readonly arguments: JsonObject;
};

export type ChatMessage = {
  readonly role: ChatRole;
  /** Absent only beside tool calls. */
  readonly content?: string | undefined;
  /** What the assistant thought; never part of the content. */
  readonly reasoning?: string | undefined;
  readonly toolCalls?: readonly ToolCall[] | undefined;
  /** The call that a `tool` message answers. */
  readonly toolCallId?: string | undefined;
  readonly name?: string | undefined;
};

/** A function tool: its name, and its declaration as the API writes it, keys in the given order. */
export type ToolDefinition = {
  readonly name: string;
  readonly declaration: JsonObject;
};

/** Whether a tool's declaration says that a parameter is a text and nothing else. */
export type TextParameter = (tool: string, parameter: string) => boolean;

const TOOL_NAME = /^[A-Za-z0-9_-]{1,64}$/;
const ARGUMENTS_DEPTH_MAX = 64;

function refuse(sentence: string): never {
  throw new MferenceError("text.messages", sentence);
}

function isRole(value: unknown): value is ChatRole {
  return (roles as readonly unknown[]).includes(value);
}

/**
 * Reads the API's list of messages.
 *
 * @throws MferenceError "text.messages", "text.json"
 */
export function parseMessages(value: JsonValue): ChatMessage[] {
  if (!Array.isArray(value)) refuse("messages must be an array");
  const messages = value.map(parseMessage);
  checkMessages(messages);
  return messages;
}

function parseMessage(value: JsonValue, index: number): ChatMessage {
  const where = `message ${index}`;
  if (!(value instanceof Map)) refuse(`${where} must be an object`);
  const role = value.get("role");
  if (!isRole(role)) {
    refuse(`${where} has the unsupported role ${writeRole(role)}; expected ${roles.join(", ")}`);
  }
  const calls = value.get("tool_calls") ?? null;
  const reasoning = value.get("reasoning_content") ?? value.get("reasoning");
  return {
    role,
    content: parseContent(value.get("content") ?? null, role, where),
    reasoning: typeof reasoning === "string" && reasoning !== "" ? reasoning : undefined,
    toolCalls: calls === null ? undefined : parseCalls(calls, where),
    toolCallId: optionalString(value, "tool_call_id", where),
    name: optionalString(value, "name", where),
  };
}

function writeRole(role: JsonValue | undefined): string {
  return role === undefined ? "(none)" : writeJson(role);
}

function optionalString(message: JsonObject, key: string, where: string): string | undefined {
  const value = message.get(key) ?? undefined;
  if (value === undefined || typeof value === "string") return value;
  return refuse(`${where}: ${key} must be a string`);
}

/** Text, or text parts put together; a tool may also answer with a JSON object. */
function parseContent(value: JsonValue, role: ChatRole, where: string): string | undefined {
  if (value === null) return undefined;
  if (typeof value === "string") return value;
  if (value instanceof Map && role === "tool") return writeJson(value);
  if (!Array.isArray(value)) refuse(`${where}: content must be a string or an array of parts`);
  return value.map((part) => parsePart(part, where)).join("");
}

function parsePart(part: JsonValue, where: string): string {
  const text = part instanceof Map && part.get("type") === "text" ? part.get("text") : undefined;
  if (typeof text === "string") return text;
  const kind = part instanceof Map ? writeJson(part.get("type") ?? null) : writeJson(part);
  return refuse(`${where}: only parts of type "text" are supported, found ${kind}`);
}

function parseCalls(value: JsonValue, where: string): ToolCall[] {
  if (!Array.isArray(value)) refuse(`${where}: tool_calls must be an array`);
  return value.map((call) => {
    const definition = call instanceof Map ? call.get("function") : undefined;
    const id = call instanceof Map ? call.get("id") : undefined;
    if (!(definition instanceof Map) || typeof id !== "string" || id === "") {
      return refuse(`${where}: a tool call needs an id and a function`);
    }
    const name = definition.get("name");
    if (typeof name !== "string" || !TOOL_NAME.test(name)) {
      return refuse(`${where}: ${writeRole(name)} is no tool name`);
    }
    return { id, name, arguments: parseArguments(definition.get("arguments"), where) };
  });
}

/** Arguments are a JSON object, written as a string by the API and as an object by some. */
function parseArguments(value: JsonValue | undefined, where: string): JsonObject {
  const parsed =
    typeof value === "string" ? parseJson(value, { depthMax: ARGUMENTS_DEPTH_MAX }) : value;
  if (parsed instanceof Map) return parsed;
  return refuse(`${where}: the arguments of a tool call must be a JSON object`);
}

/**
 * Refuses lists that no chat can be: guidance after the conversation began, a message without
 * content, a result without its call.
 *
 * @throws MferenceError "text.messages"
 */
export function checkMessages(messages: readonly ChatMessage[]): void {
  const open = new Set<string>();
  const seen = new Set<string>();
  let hasBegun = false;
  for (const [index, message] of messages.entries()) {
    const where = `message ${index} (${message.role})`;
    const isGuidance = message.role === "system" || message.role === "developer";
    if (isGuidance && hasBegun) refuse(`${where}: system messages must be first`);
    hasBegun ||= !isGuidance;
    if (message.content === undefined && (message.toolCalls ?? []).length === 0) {
      refuse(`${where} has no content`);
    }
    if (message.toolCalls !== undefined && message.role !== "assistant") {
      refuse(`${where}: only the assistant calls tools`);
    }
    for (const { id } of message.toolCalls ?? []) {
      if (seen.has(id)) refuse(`${where}: the call id ${id} is used twice`);
      seen.add(id);
      open.add(id);
    }
    if (message.role === "tool" && !open.delete(message.toolCallId ?? "")) {
      refuse(`${where} answers the call ${message.toolCallId ?? "(none)"}, which is not open`);
    }
  }
}

/**
 * Puts neighbouring messages of guidance of one role together, a blank line between them; clients send
 * several and templates take one.
 */
export function mergeGuidance(messages: readonly ChatMessage[]): ChatMessage[] {
  const merged: ChatMessage[] = [];
  for (const message of messages) {
    const last = merged.at(-1);
    const isGuidance = message.role === "system" || message.role === "developer";
    if (last !== undefined && isGuidance && last.role === message.role) {
      merged[merged.length - 1] = { ...last, content: `${last.content}\n\n${message.content}` };
    } else {
      merged.push(message);
    }
  }
  return merged;
}

/**
 * Reads the API's list of tools; a function without parameters takes none.
 *
 * @throws MferenceError "text.tools"
 */
export function parseTools(value: JsonValue): ToolDefinition[] {
  const refuseTool = (sentence: string): never => {
    throw new MferenceError("text.tools", sentence);
  };
  if (!Array.isArray(value)) return refuseTool("tools must be an array");
  const names = new Set<string>();
  return value.map((tool, index) => {
    const definition = tool instanceof Map ? tool.get("function") : undefined;
    if (!(tool instanceof Map) || !(definition instanceof Map) || tool.get("type") !== "function") {
      return refuseTool(`tool ${index} must have the type "function" and a function`);
    }
    const name = definition.get("name");
    if (typeof name !== "string" || !TOOL_NAME.test(name)) {
      return refuseTool(`tool ${index}: its name must match ${TOOL_NAME.source}`);
    }
    if (names.has(name)) return refuseTool(`tool ${index}: the name ${name} is used twice`);
    names.add(name);
    const parameters = definition.get("parameters") ?? null;
    if (parameters !== null && !(parameters instanceof Map)) {
      return refuseTool(`tool ${name}: its parameters must be a JSON schema object`);
    }
    const empty = new Map<string, JsonValue>([
      ["type", "object"],
      ["properties", new Map()],
    ]);
    const complete = new Map([...definition, ["parameters", parameters ?? empty] as const]);
    return { name, declaration: new Map([...tool, ["function", complete] as const]) };
  });
}

/** Whether a tool of a list declares a parameter as a string and nothing else. */
export function textParameters(tools: readonly ToolDefinition[] = []): TextParameter {
  const member = (value: JsonValue | undefined, key: string): JsonValue | undefined =>
    value instanceof Map ? value.get(key) : undefined;
  const found = new Map(tools.map(({ name, declaration }) => [name, declaration]));
  return (tool, parameter) => {
    const schema = member(member(found.get(tool), "function"), "parameters");
    return member(member(member(schema, "properties"), parameter), "type") === "string";
  };
}
