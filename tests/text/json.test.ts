import { describe, expect, test } from "bun:test";
import {
  JsonNumber,
  type JsonValue,
  parseJson,
  toJsonValue,
  writeJson,
} from "../../src/text/json.ts";

describe("lossless JSON", () => {
  test.each([
    '{"b":1,"10":2,"a":{"2":[],"1":{}}}',
    "[9007199254740993,-9223372036854775808,18446744073709551615,1.0,1e16,-0.0,0]",
    '["\\"\\\\\\n",true,false,null,"\u{1f999}"]',
    '{"__proto__":{"x":1}}',
  ])("%s comes back as it was", (text) => {
    expect(writeJson(parseJson(text))).toBe(text);
  });

  test("escapes are read, surrogate pairs put together", () => {
    expect(parseJson('"\\u0041\\ud83e\\udd99\\/\\b\\f\\n\\r\\t"')).toBe("A\u{1f999}/\b\f\n\r\t");
  });

  test.each([
    "",
    "{",
    "[1,]",
    '{"a":1,}',
    '{"a" 1}',
    "+1",
    "01",
    "1.",
    ".1",
    "1e",
    "--1",
    "tru",
    "'a'",
    '"\\x"',
    '"\\ud800"',
    '"\\u12g4"',
    '"line\nfeed"',
    "[1] 2",
    "nul",
  ])("%j is refused with the place", (text) => {
    expect(() => parseJson(text)).toThrow(/expected .* at character \d+, found/);
  });

  test("depth is bounded, exactly", () => {
    const nested = (depth: number) => "[".repeat(depth) + "]".repeat(depth);
    expect(parseJson(nested(64), { depthMax: 64 })).toBeArray();
    expect(() => parseJson(nested(65), { depthMax: 64 })).toThrow(/at most 64 levels/);
    expect(() => parseJson("[".repeat(1_000_000))).toThrow(/at most 128 levels/);
  });

  test("the last of two keys wins, or the second is refused", () => {
    const text = '{"a":1,"\\u0061":2}';
    expect(writeJson(parseJson(text))).toBe('{"a":2}');
    expect(() => parseJson(text, { duplicates: "reject" })).toThrow(/second key "a"/);
  });

  test("plain values convert, and what JSON cannot hold does not", () => {
    const value: JsonValue = toJsonValue({ a: [1, 2n ** 64n, null], b: undefined, c: "x" });
    expect(writeJson(value)).toBe('{"a":[1,18446744073709551616,null],"c":"x"}');
    expect(toJsonValue(new JsonNumber("1.0"))).toEqual(new JsonNumber("1.0"));
    expect(() => toJsonValue(Number.NaN)).toThrow(/cannot hold a number/);
    const circle: unknown[] = [];
    circle.push(circle);
    expect(() => toJsonValue(circle)).toThrow(/nested deeper/);
  });
});
