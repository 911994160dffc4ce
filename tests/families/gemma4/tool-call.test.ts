import { describe, expect, test } from "bun:test";
import { isWritableKey, parseToolCall } from "../../../src/families/gemma4/tool-call.ts";
import { writeJson } from "../../../src/text/json.ts";

const read = (values: string) => writeJson(parseToolCall(`call:f${values}`).arguments);
const nested = (depth: number) => `${"{a:".repeat(depth)}1${"}".repeat(depth)}`;

describe("the grammar of tool calls", () => {
  test.each([
    ["{}", "{}"],
    ['{city:<|"|>Paris<|"|>}', '{"city":"Paris"}'],
    ["{ a : 1 , b : [ true , false , null ] }", '{"a":1,"b":[true,false,null]}'],
    ['{o:{i:{k:<|"|>v<|"|>}},l:[{x:1},[2]]}', '{"l":[{"x":1},[2]],"o":{"i":{"k":"v"}}}'],
    [
      "{n:9007199254740993,m:-9223372036854775808,u:18446744073709551615}",
      '{"m":-9223372036854775808,"n":9007199254740993,"u":18446744073709551615}',
    ],
    ["{d:1.0,e:-1.5e+10}", '{"d":1.0,"e":-1.5e+10}'],
    ["{$id:1,file-path:2,a.b:3,größe:4}", '{"$id":1,"a.b":3,"file-path":2,"größe":4}'],
    ["{a:1,a:2}", '{"a":2}'],
    ["{b:1,A:2,a1:3}", '{"A":2,"a1":3,"b":1}'],
  ])("%s", (values, json) => {
    expect(read(values)).toBe(json);
  });

  test.each([
    ['{p:<|"|>C:\\temp\\d "x" }],<|"|>}', 'C:\\temp\\d "x" }],'],
    ['{p:<|"|><|"|>}', ""],
    [
      '{p:<|"|>s = <|"|><|"|><|"|>doc<|"|><|"|><|"|>;<|"|>}',
      's = <|"|><|"|><|"|>doc<|"|><|"|><|"|>;',
    ],
    ['{p:<|"|>{a:<|"|>b<|"|>}<|"|>}', '{a:<|"|>b<|"|>}'],
    ['{p:"a\\u00fc\\ud83e\\udd99\\n"}', "aü\u{1f999}\n"],
    ["{p:'it is'}", "it is"],
  ])("%s is a text", (values, want) => {
    expect(parseToolCall(`call:f${values}`).arguments.get("p")).toBe(want);
  });

  test("quoted texts of each kind in an array", () => {
    expect(read(`{l:[<|"|>a<|"|>,"b",'c',<|"|>, d<|"|>]}`)).toBe('{"l":["a","b","c",", d"]}');
  });

  test("names may have a dash", () => {
    expect(parseToolCall(" call:my-tool_2{} ").name).toBe("my-tool_2");
  });

  test.each([
    "{n:+1}",
    "{n:01}",
    "{n:1.}",
    "{n:.1}",
    "{n:1e}",
    "{n:--1}",
    "{a:1,}",
    "{,}",
    "{a}",
    "{:1}",
    "{a:}",
    '{a:Paris<|"|>}',
    '{a:<|"|>Paris}',
    '{a:"\\x"}',
    '{a:"\\ud800"}',
    "{a:[1,]}",
    "{a:[1}",
    "{a:1",
    "{a:1}}",
    "{a:1} more",
    "",
    "[1]",
  ])("%j is malformed", (values) => {
    expect(() => parseToolCall(`call:f${values}`)).toThrow(
      expect.objectContaining({ code: "text.tools" }),
    );
  });

  test.each(["f{}", "call:{}", "call:a b{}", "call:é{}", "call", `call:${"x".repeat(65)}{}`])(
    "%j is no call",
    (body) => {
      expect(() => parseToolCall(body)).toThrow(/expected/);
    },
  );

  test("64 levels pass, 65 do not, and a million end no process", () => {
    expect(read(nested(64)).length).toBeGreaterThan(64);
    expect(() => parseToolCall(`call:f${nested(65)}`)).toThrow(/at most 64 levels/);
    expect(() => parseToolCall(`call:f{a:${"[".repeat(1_000_000)}`)).toThrow(/at most 64 levels/);
  });

  test("a body full of marks ends", () => {
    expect(() => parseToolCall(`call:f{a:${'<|"|>'.repeat(50_000)}`)).toThrow(/expected text/);
  });
});

test("keys that the grammar can write", () => {
  for (const key of ["a", "$id", "file-path", "a.b", "größe"])
    expect(isWritableKey(key)).toBe(true);
  for (const key of ["", "a b", "a:b", "{", "a,b"]) expect(isWritableKey(key)).toBe(false);
});
