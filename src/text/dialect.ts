/**
 * What a family declares about its chat: markers by spelling, and the few things its template wants
 * done to messages. The mechanisms are in this folder; a family only names which of them it uses.
 */
import type { JsonObject, JsonValue } from "./json.ts";
import type { TextParameter, ToolCall } from "./messages.ts";

/** Why a stop id ends a turn. */
export type StopMeaning = "eos" | "endOfTurn" | "toolCalls";

/** A region between two marker tokens whose text is not the answer. */
export type HiddenRegion = {
  readonly open: string;
  readonly close: string;
  /**
   * Whether the region begins with a label and a line feed. Then only regions with another label than
   * `visibleLabels` are hidden.
   */
  readonly isLabelled: boolean;
  /** Lower case. */
  readonly visibleLabels: readonly string[];
};

/** A call as a grammar reads it from the text between its markers. */
export type ParsedCall = Pick<ToolCall, "name" | "arguments">;

/** Tool calls between two marker tokens. */
export type CallBlock = {
  readonly open: string;
  readonly close: string;
  /** @throws MferenceError "text.tools" for anything but one complete call */
  readonly parse: (body: string, isText?: TextParameter) => ParsedCall;
};

export type ChatDialect = {
  /** The token that begins every sequence, where there is one. */
  readonly bos?: string;
  /** Stop tokens by spelling. Each must exist in the vocabulary. */
  readonly stops: readonly { readonly token: string; readonly meaning: StopMeaning }[];
  readonly hidden?: HiddenRegion;
  readonly calls?: CallBlock;
  /** Further structural markers, which end a run of bytes; absent ones are left out. */
  readonly barriers: readonly string[];
  /** Ids that stay text although their tokens are marked special. */
  readonly exempt?: readonly string[];
  /** The template's variable that turns thinking on, and its default. */
  readonly thinking: { readonly variable: string; readonly isDefault: boolean };
  /** Whether the template knows the role `developer`; otherwise it becomes `system`. */
  readonly hasDeveloperRole: boolean;
  /** Whether white space around thoughts, answers and calls belongs to the format and not to them. */
  readonly isTrimmed?: boolean;
  /** A tool's declaration as the template can print it. */
  readonly adaptTool?: (declaration: JsonObject) => JsonObject;
  /** A tool's result as the template wants it; its source is given because revisions differ. */
  readonly adaptResult?: (content: string, template: string) => JsonValue;
  /** @throws MferenceError "text.tools" for a call in the history that the template cannot write */
  readonly checkCall?: (call: ToolCall) => void;
};
