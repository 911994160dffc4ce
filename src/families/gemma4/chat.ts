/**
 * Gemma 4's chat as data: markers by spelling and what its template wants. The template itself comes
 * with the model; nothing here renders.
 */
import type { ChatDialect } from "../../text/dialect.ts";
import { type JsonValue, parseJson } from "../../text/json.ts";
import type { ToolCall } from "../../text/messages.ts";
import { MferenceError } from "../../util/errors.ts";
import { isWritableKey, parseToolCall } from "./tool-call.ts";
import { adaptTool } from "./tool-schema.ts";

export const chat: ChatDialect = {
  bos: "<bos>",
  stops: [
    { token: "<eos>", meaning: "eos" },
    { token: "<turn|>", meaning: "endOfTurn" },
    // The model asks for the result of the calls before it.
    { token: "<|tool_response>", meaning: "toolCalls" },
  ],
  hidden: {
    open: "<|channel>",
    close: "<channel|>",
    isLabelled: true,
    visibleLabels: ["final", "answer"],
  },
  calls: { open: "<|tool_call>", close: "<tool_call|>", parse: parseToolCall },
  barriers: ["<|turn>", "<|tool>", "<tool|>", "<tool_response|>", "<|think|>"],
  thinking: { variable: "enable_thinking", isDefault: false },
  hasDeveloperRole: true,
  adaptTool,
  adaptResult,
  checkCall,
};

/** The test by which a template shows that it writes the members of an object. */
const TAKES_OBJECTS = /content(?:["']\])?\s+is\s+mapping/;

/** An object where the template writes its members; Google's takes a text and fails on an object. */
function adaptResult(content: string, template: string): JsonValue {
  if (!TAKES_OBJECTS.test(template) || !content.trimStart().startsWith("{")) return content;
  try {
    const value = parseJson(content);
    return value instanceof Map && areKeysWritable(value) ? value : content;
  } catch (cause) {
    // Not JSON after all: the text is the result.
    if (cause instanceof MferenceError) return content;
    throw cause;
  }
}

function areKeysWritable(value: JsonValue): boolean {
  if (Array.isArray(value)) return value.every(areKeysWritable);
  if (!(value instanceof Map)) return true;
  return [...value].every(([key, member]) => isWritableKey(key) && areKeysWritable(member));
}

function checkCall(call: ToolCall): void {
  if (areKeysWritable(call.arguments)) return;
  throw new MferenceError(
    "text.tools",
    `the call ${call.id} of ${call.name} has an argument whose name the model cannot write: use letters, digits, _ - . $`,
  );
}
