/**
 * JSON without loss: objects keep their order in a `Map`, numbers keep their text, and depth is
 * bounded by a count instead of the stack. Knows nothing of messages or tools.
 */
import { MferenceError } from "../util/errors.ts";

/** A number as it was written; `9007199254740993` and `1.0` survive. */
export class JsonNumber {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }

  get isInteger(): boolean {
    return /^-?\d+$/.test(this.text);
  }

  valueOf(): number {
    return Number(this.text);
  }

  toString(): string {
    return this.text;
  }
}

export type JsonObject = Map<string, JsonValue>;
export type JsonValue = null | boolean | string | JsonNumber | JsonValue[] | JsonObject;

export type JsonOptions = {
  /** Containers inside containers that are accepted; the outermost one counts. */
  readonly depthMax?: number;
  /** What a repeated key does; an escape in it makes no difference. */
  readonly duplicates?: "last" | "reject";
};

const DEPTH_MAX = 128;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const SPACE = /[ \t\n\r]*/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const ESCAPES: Readonly<Record<string, string>> = {
  '"': '"',
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};

/**
 * A cursor over JSON text; grammars that embed JSON values use its parts.
 *
 * @throws MferenceError "text.json" from every `read*`
 */
export class JsonReader {
  readonly text: string;
  position: number;
  readonly #depthMax: number;
  readonly #duplicates: "last" | "reject";

  constructor(text: string, options: JsonOptions & { readonly position?: number } = {}) {
    this.text = text;
    this.position = options.position ?? 0;
    this.#depthMax = options.depthMax ?? DEPTH_MAX;
    this.#duplicates = options.duplicates ?? "last";
  }

  fail(expected: string): never {
    const found = this.text.slice(this.position, this.position + 20);
    throw new MferenceError(
      "text.json",
      `expected ${expected} at character ${this.position}, found ${
        found === "" ? "the end" : JSON.stringify(found)
      }`,
    );
  }

  skipSpace(): void {
    this.#match(SPACE);
  }

  /** Takes `literal` if it comes next. */
  take(literal: string): boolean {
    if (!this.text.startsWith(literal, this.position)) return false;
    this.position += literal.length;
    return true;
  }

  #match(pattern: RegExp): string {
    pattern.lastIndex = this.position;
    const found = pattern.exec(this.text)?.[0] ?? "";
    this.position += found.length;
    return found;
  }

  readNumber(): JsonNumber {
    const text = this.#match(NUMBER);
    if (text === "" || /[0-9.eE+-]/.test(this.text[this.position] ?? "")) this.fail("a number");
    return new JsonNumber(text);
  }

  /** Reads a string with its quotes; lone surrogates are refused. */
  readString(): string {
    if (!this.take('"')) this.fail("a string");
    let value = "";
    for (;;) {
      value += this.#match(PLAIN);
      if (this.take('"')) break;
      if (!this.take("\\")) this.fail("the rest of a string");
      value += this.#readEscape();
    }
    if (!value.isWellFormed()) this.fail("a string of whole characters before");
    return value;
  }

  #readEscape(): string {
    const letter = this.text[this.position] ?? "";
    if (letter === "u") {
      const digits = this.text.slice(this.position + 1, this.position + 5);
      if (!/^[0-9a-fA-F]{4}$/.test(digits)) this.fail("four hexadecimal digits");
      this.position += 5;
      return String.fromCharCode(Number.parseInt(digits, 16));
    }
    const value = ESCAPES[letter];
    if (value === undefined) this.fail("an escape");
    this.position += 1;
    return value;
  }

  readValue(depth = 0): JsonValue {
    this.skipSpace();
    const next = this.text[this.position];
    if (next === "{") return this.#readObject(depth + 1);
    if (next === "[") return this.#readArray(depth + 1);
    if (next === '"') return this.readString();
    if (this.take("true")) return true;
    if (this.take("false")) return false;
    if (this.take("null")) return null;
    return this.readNumber();
  }

  #enter(depth: number): void {
    if (depth > this.#depthMax) this.fail(`at most ${this.#depthMax} levels of nesting`);
    this.position += 1;
    this.skipSpace();
  }

  #readObject(depth: number): JsonObject {
    this.#enter(depth);
    const object: JsonObject = new Map();
    if (this.take("}")) return object;
    for (;;) {
      this.skipSpace();
      const key = this.readString();
      if (this.#duplicates === "reject" && object.has(key)) {
        this.fail(`no second key ${JSON.stringify(key)} before`);
      }
      this.skipSpace();
      if (!this.take(":")) this.fail("a colon");
      object.set(key, this.readValue(depth));
      this.skipSpace();
      if (this.take("}")) return object;
      if (!this.take(",")) this.fail("a comma or the end of the object");
    }
  }

  #readArray(depth: number): JsonValue[] {
    this.#enter(depth);
    const array: JsonValue[] = [];
    if (this.take("]")) return array;
    for (;;) {
      array.push(this.readValue(depth));
      this.skipSpace();
      if (this.take("]")) return array;
      if (!this.take(",")) this.fail("a comma or the end of the array");
    }
  }
}

/**
 * Parses one complete JSON document.
 *
 * @throws MferenceError "text.json"
 */
export function parseJson(text: string, options: JsonOptions = {}): JsonValue {
  const reader = new JsonReader(text, options);
  const value = reader.readValue();
  reader.skipSpace();
  if (reader.position !== text.length) reader.fail("the end");
  return value;
}

/** Writes a value without white space; numbers as they were read. */
export function writeJson(value: JsonValue): string {
  if (value instanceof JsonNumber) return value.text;
  if (Array.isArray(value)) return `[${value.map(writeJson).join(",")}]`;
  if (value instanceof Map) {
    const members = [...value].map(
      ([key, member]) => `${JSON.stringify(key)}:${writeJson(member)}`,
    );
    return `{${members.join(",")}}`;
  }
  return JSON.stringify(value);
}

/**
 * The lossless form of a plain JavaScript value; numbers that JSON cannot hold are refused.
 *
 * @throws MferenceError "text.json"
 */
export function toJsonValue(value: unknown, depth = 0): JsonValue {
  if (depth > DEPTH_MAX) {
    throw new MferenceError("text.json", `a value is nested deeper than ${DEPTH_MAX} levels`);
  }
  if (value === null || typeof value === "boolean" || typeof value === "string") return value;
  if (value instanceof JsonNumber) return value;
  if (typeof value === "bigint") return new JsonNumber(value.toString());
  if (typeof value === "number" && Number.isFinite(value)) return new JsonNumber(String(value));
  if (Array.isArray(value)) return value.map((item) => toJsonValue(item, depth + 1));
  if (typeof value === "object") {
    const entries = value instanceof Map ? [...value] : Object.entries(value);
    const present = entries.filter(([, member]) => member !== undefined);
    return new Map(present.map(([key, member]) => [String(key), toJsonValue(member, depth + 1)]));
  }
  const which = typeof value === "number" ? `number (${value})` : typeof value;
  throw new MferenceError("text.json", `JSON cannot hold a ${which}`);
}

/** Whether two values are the same: order of keys counts, the text of numbers too. */
export function isSameJson(a: JsonValue, b: JsonValue): boolean {
  return writeJson(a) === writeJson(b);
}
