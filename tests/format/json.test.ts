import { describe, expect, test } from "bun:test";
import { z } from "zod";
import { parseJson, parseJsonAs, type JsonValue } from "../../src/format/json.ts";

const context = { code: "format.json", what: "the file" } as const;
const parse = (text: string | Uint8Array): JsonValue =>
  parseJson(typeof text === "string" ? new TextEncoder().encode(text) : text, context);

describe("parseJson", () => {
  test.each([
    ["null", null],
    [" [1, -2.5e3, 0, true, false] ", [1, -2500, 0, true, false]],
    ['{"a":{"b":[]},"c":""}', { a: { b: [] }, c: "" }],
    ['"\\u00e9\\n\\ud83e\\udd99"', "é\n🦙"],
    ["9007199254740993", 9007199254740992],
    ['"' + "x".repeat(200_000) + '\\n"', "x".repeat(200_000) + "\n"],
    [`${"[".repeat(60)}${"]".repeat(60)}`, JSON.parse(`${"[".repeat(60)}${"]".repeat(60)}`)],
  ])("reads %p", (text, value) => {
    expect(JSON.stringify(parse(text))).toBe(JSON.stringify(value));
  });

  test("keeps __proto__ an ordinary key", () => {
    const object = parse('{"__proto__":{"polluted":1}}') as Record<string, unknown>;
    expect(Object.keys(object)).toEqual(["__proto__"]);
    expect(({} as Record<string, unknown>)["polluted"]).toBeUndefined();
  });

  test.each([
    ["", "ends early"],
    ['{"a":1,"a":2}', 'the key "a" appears twice'],
    ['{"a":1,"\\u0061":2}', "appears twice"],
    ['{"__proto__":1,"__proto__":2}', "appears twice"],
    ["[".repeat(100_000), "nested levels"],
    ['{"a":'.repeat(1000), "nested levels"],
    ["1e400", "too large"],
    ["NaN", "expected a value"],
    ["+1", "expected a value"],
    ["01", "text after the end"],
    ["1 2", "text after the end"],
    ["[1,]", "expected a value"],
    ['{"a" 1}', "colon"],
    ["{a:1}", "expected a string"],
    ['"abc', "does not end"],
    ['"a\nb"', "control character"],
    ['"\\x"', "wrong escape"],
    ['"\\ud800"', "surrogate"],
    ["tru", "expected a value"],
    ["\ufeff{}", "expected a value"],
    [new Uint8Array([0x22, 0xff, 0x22]), "not valid UTF-8"],
  ])("refuses %p", (text, sentence) => {
    expect(() => parse(text)).toThrow(sentence);
    expect(() => parse(text)).toThrow(expect.objectContaining({ code: "format.json" }));
  });

  test("names the key that does not fit a schema", () => {
    const schema = z.object({ outer: z.object({ size: z.int() }) });
    const bytes = new TextEncoder().encode('{"outer":{"size":18446744073709551615}}');
    expect(() => parseJsonAs(bytes, schema, context)).toThrow(/the file: "outer.size"/);
  });
});
