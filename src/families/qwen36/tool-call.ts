/**
 * The grammar in which Qwen 3.6 writes the call of a tool: one function with a tag for each parameter,
 * values raw between line feeds. Owns the reading of one call's text; knows no tokens.
 */
import type { ParsedCall } from "../../text/dialect.ts";
import { JsonReader, type JsonValue, parseJson } from "../../text/json.ts";
import type { TextParameter } from "../../text/messages.ts";
import { MferenceError } from "../../util/errors.ts";

const DEPTH_MAX = 64;
const OPENING = /^\s*<function=([A-Za-z0-9_-]{1,64})>\n/;
const PARAMETER = /<parameter=([^\n<]+)>\n/y;
/** What may follow the end of a value: another parameter, or the end of the call. */
const GOES_ON = /\n<\/parameter>\n(?:<parameter=[^\n<]+>\n|<\/function>\s*$)/y;
const ENDING = /<\/function>\s*$/y;
/** How a value begins that is not a plain text. */
const TYPED = /^[{[\-0-9tfn]/;

/**
 * Reads one complete call.
 *
 * @throws MferenceError "text.tools"
 */
export function parseToolCall(body: string, isText: TextParameter = () => false): ParsedCall {
  const opening = OPENING.exec(body);
  if (opening === null) fail(body, 0, "<function=NAME> and a line feed");
  const name = opening[1]!;
  const values = new Map<string, JsonValue>();
  let at = opening[0].length;
  for (;;) {
    PARAMETER.lastIndex = at;
    const tag = PARAMETER.exec(body);
    if (tag === null) break;
    const begin = at + tag[0].length;
    const end = endOfValue(body, begin);
    const text = body.slice(begin, end);
    values.set(tag[1]!, isText(name, tag[1]!) ? text : typedValue(text));
    // An empty value may share its one line feed with the tag before it.
    at = Math.max(begin, end) + (end < begin ? "</parameter>\n".length : "\n</parameter>\n".length);
  }
  ENDING.lastIndex = at;
  if (!ENDING.test(body)) fail(body, at, "<parameter=NAME> and a line feed, or </function>");
  return { name, arguments: values };
}

/**
 * Where a value ends: at the first closing tag on a line of its own after which the call can go on, since
 * code in an argument may hold such a line itself.
 */
function endOfValue(body: string, begin: number): number {
  // From the line feed before the value on: it may be the one before the closing tag as well.
  for (let at = begin - 1; at >= 0; at = body.indexOf("\n</parameter>\n", at + 1)) {
    GOES_ON.lastIndex = at;
    if (GOES_ON.test(body)) return at;
  }
  return fail(body, begin, "a value that ends with </parameter> on a line of its own");
}

/** A complete JSON value that is no string, where it looks like one; the raw text otherwise. */
function typedValue(text: string): JsonValue {
  const trimmed = text.trim();
  if (!TYPED.test(trimmed)) return text;
  let value: JsonValue;
  try {
    value = parseJson(trimmed);
  } catch (cause) {
    // Text with brackets, or a word: not JSON after all.
    if (cause instanceof MferenceError) return text;
    throw cause;
  }
  // What is JSON, but too deep, is no text either.
  parseJson(trimmed, { depthMax: DEPTH_MAX });
  return value;
}

function fail(body: string, at: number, expected: string): never {
  const reader = new JsonReader(body, { position: at });
  try {
    return reader.fail(expected);
  } catch (cause) {
    throw new MferenceError("text.tools", (cause as Error).message, { cause });
  }
}
