/**
 * Qwen 3.6's chat as data: markers by spelling and what its template wants. The template itself comes
 * with the model; nothing here renders.
 */
import type { ChatDialect } from "../../text/dialect.ts";
import { parseToolCall } from "./tool-call.ts";

export const chat: ChatDialect = {
  stops: [
    { token: "<|endoftext|>", meaning: "eos" },
    { token: "<|im_end|>", meaning: "endOfTurn" },
  ],
  hidden: { open: "<think>", close: "</think>", isLabelled: false, visibleLabels: [] },
  calls: { open: "<tool_call>", close: "</tool_call>", parse: parseToolCall },
  barriers: ["<|im_start|>", "<tool_response>", "</tool_response>"],
  thinking: { variable: "enable_thinking", isDefault: false },
  hasDeveloperRole: false,
  isTrimmed: true,
};
