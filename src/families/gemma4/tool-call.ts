/**
 * The grammar in which Gemma 4 writes the call of a tool: `call:NAME{key:value,…}`, strings between
 * `<|"|>` marks and raw. Owns the reading of one call's text; knows no tokens.
 */
import type { ParsedCall } from "../../text/dialect.ts";
import { type JsonObject, JsonReader, type JsonValue } from "../../text/json.ts";
import { MferenceError } from "../../util/errors.ts";

const MARK = '<|"|>';
const DEPTH_MAX = 64;
const NAME = /[A-Za-z0-9_-]{1,64}/y;
const KEY = /[\p{L}\p{N}_.$-]+/uy;
/** What may follow a comma inside an object, and inside an array. */
const MEMBER_START = /\s*[\p{L}\p{N}_.$-]+\s*:/uy;
const ITEM_START = /\s*(?:<\|"\|>|["'{[0-9-]|true|false|null)/y;
const SPACE = /\s*/y;

/** Whether a parameter of a tool can be written in this grammar. */
export function isWritableKey(key: string): boolean {
  KEY.lastIndex = 0;
  return KEY.exec(key)?.[0] === key;
}

/**
 * Reads one complete call.
 *
 * @throws MferenceError "text.tools"
 */
export function parseToolCall(body: string): ParsedCall {
  try {
    return new CallReader(body).readCall();
  } catch (cause) {
    if (!(cause instanceof MferenceError)) throw cause;
    throw new MferenceError("text.tools", cause.message, { cause });
  }
}

class CallReader {
  readonly #reader: JsonReader;
  /** Open containers, outermost first. */
  readonly #open: ("{" | "[")[] = [];

  constructor(body: string) {
    this.#reader = new JsonReader(body);
  }

  readCall(): ParsedCall {
    const reader = this.#reader;
    this.#match(SPACE);
    if (!reader.take("call:")) reader.fail('"call:"');
    const name = this.#match(NAME);
    if (name === "") reader.fail("the name of a tool");
    if (reader.text[reader.position] !== "{") reader.fail("{");
    const values = this.#readObject();
    this.#match(SPACE);
    if (reader.position !== reader.text.length) reader.fail("the end");
    return { name, arguments: values };
  }

  #match(pattern: RegExp): string {
    pattern.lastIndex = this.#reader.position;
    const found = pattern.exec(this.#reader.text)?.[0] ?? "";
    this.#reader.position += found.length;
    return found;
  }

  #enter(container: "{" | "["): void {
    if (this.#open.length >= DEPTH_MAX) this.#reader.fail(`at most ${DEPTH_MAX} levels`);
    this.#open.push(container);
    this.#reader.position += 1;
    this.#match(SPACE);
  }

  /** Keys sorted as the template sorts them, so that a call in the history is written alike. */
  #readObject(): JsonObject {
    const reader = this.#reader;
    this.#enter("{");
    const members: JsonObject = new Map();
    while (!reader.take("}")) {
      if (members.size > 0 && !reader.take(",")) reader.fail("a comma or }");
      this.#match(SPACE);
      const key = this.#match(KEY);
      if (key === "") reader.fail("a key");
      this.#match(SPACE);
      if (!reader.take(":")) reader.fail("a colon");
      members.set(key, this.#readValue());
      this.#match(SPACE);
    }
    this.#open.pop();
    return new Map([...members].toSorted(([a], [b]) => compareKeys(a, b)));
  }

  #readArray(): JsonValue[] {
    const reader = this.#reader;
    this.#enter("[");
    const items: JsonValue[] = [];
    while (!reader.take("]")) {
      if (items.length > 0 && !reader.take(",")) reader.fail("a comma or ]");
      items.push(this.#readValue());
      this.#match(SPACE);
    }
    this.#open.pop();
    return items;
  }

  #readValue(): JsonValue {
    const reader = this.#reader;
    this.#match(SPACE);
    if (reader.take(MARK)) return this.#readRaw(MARK);
    const next = reader.text[reader.position];
    if (next === "{") return this.#readObject();
    if (next === "[") return this.#readArray();
    if (next === '"') return reader.readString();
    if (reader.take("'")) return this.#readRaw("'");
    if (reader.take("true")) return true;
    if (reader.take("false")) return false;
    if (reader.take("null")) return null;
    return reader.readNumber();
  }

  /**
   * Raw text up to its closing delimiter. Code in an argument may hold the delimiter itself, so the
   * first one closes after which the rest of the call can go on.
   */
  #readRaw(delimiter: string): string {
    const { text, position } = this.#reader;
    for (let end = text.indexOf(delimiter, position); end >= 0;) {
      const after = end + delimiter.length;
      if (this.#canGoOn(after)) {
        this.#reader.position = after;
        return text.slice(position, end);
      }
      end = text.indexOf(delimiter, end + 1);
    }
    return this.#reader.fail(`text that ends with ${delimiter}`);
  }

  /** Whether what follows closes the open containers in order, or goes on with a member or an item. */
  #canGoOn(from: number): boolean {
    const { text } = this.#reader;
    let at = from;
    for (let depth = this.#open.length; ; depth -= 1) {
      SPACE.lastIndex = at;
      at += SPACE.exec(text)![0].length;
      const container = this.#open[depth - 1];
      if (container === undefined) return at === text.length;
      if (text[at] === ",") {
        const start = container === "{" ? MEMBER_START : ITEM_START;
        start.lastIndex = at + 1;
        return start.test(text);
      }
      if (text[at] !== (container === "{" ? "}" : "]")) return false;
      at += 1;
    }
  }
}

/** The order of Jinja's `dictsort`. */
function compareKeys(a: string, b: string): number {
  const [first, second] = [a.toLowerCase(), b.toLowerCase()];
  if (first === second) return 0;
  return first < second ? -1 : 1;
}
