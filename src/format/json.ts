import { z } from "zod";
import { MferenceError, type ErrorCode } from "../util/errors.ts";

/**
 * Strict JSON for files that others wrote. `JSON.parse` keeps the last of two equal keys, takes a
 * million nested arrays and reads 1e400 as infinity; here each of those is an error that names the
 * file. Knows nothing about what the values mean.
 */
export type JsonValue = null | boolean | number | string | JsonValue[] | JsonObject;

/** An object without a prototype, so that a key such as `__proto__` is only a key. */
export interface JsonObject {
  [key: string]: JsonValue;
}

/** What a parse error tells: the code to throw and the file it is about. */
export interface JsonContext {
  readonly code: ErrorCode;
  /** Names the text in messages, usually by its path. */
  readonly what: string;
}

// Each schema here is used a few times only: compiling it takes longer than it saves.
z.config({ jitless: true });

const DEPTH_MAX = 64;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
/** A string without escapes; any other takes the slower way. */
const PLAIN_STRING = /"[^"\\\p{Cc}]*"/uy;

/**
 * Parses UTF-8 JSON text.
 *
 * @throws MferenceError `context.code` on invalid UTF-8, wrong syntax, duplicate keys, more than 64
 * levels, or a number beyond the range of a double
 */
export function parseJson(bytes: Uint8Array, context: JsonContext): JsonValue {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (error) {
    throw new MferenceError(context.code, `${context.what} is not valid UTF-8`, { cause: error });
  }
  return new JsonReader(text, context).document();
}

/**
 * Parses JSON text and checks it against a schema.
 *
 * @throws MferenceError `context.code` naming the first key that does not fit
 */
export function parseJsonAs<Schema extends z.ZodType>(
  bytes: Uint8Array,
  schema: Schema,
  context: JsonContext,
): z.output<Schema> {
  return checkJson(parseJson(bytes, context), schema, context);
}

/** Checks a parsed value against a schema; the error names the first key that does not fit. */
export function checkJson<Schema extends z.ZodType>(
  value: unknown,
  schema: Schema,
  context: JsonContext,
): z.output<Schema> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const key = issue?.path.map(String).join(".") ?? "";
  throw new MferenceError(
    context.code,
    `${context.what}: ${key === "" ? "" : `"${key}": `}${issue?.message ?? "does not have the expected form"}`,
    { cause: result.error },
  );
}

/** Whether two parsed values are equal; the order of keys counts. */
export function isSameJson(left: JsonValue | undefined, right: JsonValue | undefined): boolean {
  if (left === right) return true;
  if (typeof left !== "object" || typeof right !== "object") return false;
  if (left === null || right === null) return false;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const keys = Object.keys(left);
  const others = Object.keys(right);
  if (keys.length !== others.length) return false;
  const [a, b] = [left as JsonObject, right as JsonObject];
  return keys.every((key, index) => key === others[index] && isSameJson(a[key], b[key]));
}

/** A count, size or offset: an integer from 0 to 2^53 - 1. */
export const sizeSchema = z.int().nonnegative();

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09;
}

class JsonReader {
  private position = 0;
  private readonly text: string;
  private readonly context: JsonContext;

  constructor(text: string, context: JsonContext) {
    this.text = text;
    this.context = context;
  }

  document(): JsonValue {
    const value = this.value(0);
    this.space();
    if (this.position < this.text.length) this.fail("text after the end of the value");
    return value;
  }

  private fail(problem: string): never {
    throw new MferenceError(
      this.context.code,
      `${this.context.what} is not valid JSON: ${problem} at character ${this.position}`,
    );
  }

  private space(): void {
    while (isSpace(this.text.charCodeAt(this.position))) this.position += 1;
  }

  private value(depth: number): JsonValue {
    if (depth > DEPTH_MAX) this.fail(`more than ${DEPTH_MAX} nested levels`);
    this.space();
    switch (this.text[this.position]) {
      case "{":
        return this.object(depth);
      case "[":
        return this.array(depth);
      case '"':
        return this.string();
      case "t":
        return this.literal("true", true);
      case "f":
        return this.literal("false", false);
      case "n":
        return this.literal("null", null);
      case undefined:
        return this.fail("the text ends early");
      default:
        return this.number();
    }
  }

  private object(depth: number): JsonObject {
    const object = Object.create(null) as JsonObject;
    this.position += 1;
    this.space();
    if (this.take("}")) return object;
    for (;;) {
      this.space();
      const key = this.string();
      if (key in object) this.fail(`the key ${JSON.stringify(key.slice(0, 100))} appears twice`);
      this.space();
      if (!this.take(":")) this.fail("expected a colon");
      object[key] = this.value(depth + 1);
      this.space();
      if (this.take("}")) return object;
      if (!this.take(",")) this.fail("expected a comma or a closing brace");
    }
  }

  private array(depth: number): JsonValue[] {
    const array: JsonValue[] = [];
    this.position += 1;
    this.space();
    if (this.take("]")) return array;
    for (;;) {
      array.push(this.value(depth + 1));
      this.space();
      if (this.take("]")) return array;
      if (!this.take(",")) this.fail("expected a comma or a closing bracket");
    }
  }

  private take(character: string): boolean {
    if (this.text[this.position] !== character) return false;
    this.position += 1;
    return true;
  }

  private string(): string {
    PLAIN_STRING.lastIndex = this.position;
    if (PLAIN_STRING.test(this.text)) {
      const start = this.position + 1;
      this.position = PLAIN_STRING.lastIndex;
      return this.text.slice(start, this.position - 1);
    }
    if (this.text[this.position] !== '"') this.fail("expected a string");
    const end = this.closingQuote();
    let value: string;
    try {
      value = JSON.parse(this.text.slice(this.position, end)) as string;
    } catch {
      return this.fail("a string holds a control character or a wrong escape");
    }
    this.position = end;
    if (!value.isWellFormed()) this.fail("a string holds half a surrogate pair");
    return value;
  }

  /** The index behind the quote that ends the string at `position`. */
  private closingQuote(): number {
    for (let at = this.position + 1; at < this.text.length; at += 1) {
      const character = this.text[at];
      if (character === '"') return at + 1;
      if (character === "\\") at += 1;
    }
    return this.fail("a string does not end");
  }

  private number(): number {
    NUMBER.lastIndex = this.position;
    if (!NUMBER.test(this.text)) this.fail("expected a value");
    const literal = this.text.slice(this.position, NUMBER.lastIndex);
    const value = Number(literal);
    if (!Number.isFinite(value)) this.fail(`the number ${literal.slice(0, 40)} is too large`);
    this.position = NUMBER.lastIndex;
    return value;
  }

  private literal<Value extends JsonValue>(word: string, value: Value): Value {
    if (!this.text.startsWith(word, this.position)) this.fail("expected a value");
    this.position += word.length;
    return value;
  }
}
