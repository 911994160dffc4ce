import { describe, expect, test } from "bun:test";
import { parseJson, writeJson } from "../../src/text/json.ts";
import { mergeGuidance, parseMessages, parseTools } from "../../src/text/messages.ts";

const read = (json: string) => parseMessages(parseJson(json));
const call = (id: string, values: string) =>
  `{"id":"${id}","type":"function","function":{"name":"f","arguments":${values}}}`;

describe("messages", () => {
  test("text, parts, calls as strings or objects, results", () => {
    const messages = read(`[
      {"role":"system","content":"S"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"reasoning_content":"hm",
       "tool_calls":[${call("c1", '"{\\"b\\":1,\\"10\\":1.0}"')},${call("c2", '{"x":[]}')}]},
      {"role":"tool","tool_call_id":"c2","content":{"t":9007199254740993}},
      {"role":"tool","tool_call_id":"c1","content":"text"}]`);
    expect(messages.map(({ content }) => content)).toEqual([
      "S",
      "ab",
      undefined,
      '{"t":9007199254740993}',
      "text",
    ]);
    expect(messages[2]!.reasoning).toBe("hm");
    expect(messages[2]!.toolCalls!.map((made) => writeJson(made.arguments))).toEqual([
      '{"b":1,"10":1.0}',
      '{"x":[]}',
    ]);
  });

  test.each([
    ['{"role":"user"}', /must be an array/],
    ["[1]", /message 0 must be an object/],
    ['[{"role":"robot","content":"x"}]', /unsupported role "robot"; expected system, developer/],
    ['[{"content":"x"}]', /unsupported role \(none\)/],
    ['[{"role":"user"}]', /has no content/],
    ['[{"role":"user","content":null}]', /has no content/],
    ['[{"role":"user","content":5}]', /content must be a string or an array/],
    ['[{"role":"user","content":[{"type":"image_url"}]}]', /found "image_url"/],
    ['[{"role":"user","content":"x"},{"role":"system","content":"x"}]', /must be first/],
    [`[{"role":"user","content":"x","tool_calls":[${call("c", "{}")}]}]`, /only the assistant/],
    [`[{"role":"assistant","tool_calls":[${call("c", "[]")}]}]`, /must be a JSON object/],
    [`[{"role":"assistant","tool_calls":[${call("c", '"{"')}]}]`, /expected/],
    [`[{"role":"assistant","tool_calls":[${call("c", "{}")},${call("c", "{}")}]}]`, /used twice/],
    ['[{"role":"tool","tool_call_id":"c","content":"x"}]', /which is not open/],
    [
      '[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"a b","arguments":{}}}]}]',
      /"a b" is no tool name/,
    ],
  ])("%s is refused", (json, sentence) => {
    expect(() => read(json)).toThrow(sentence);
  });

  test("a call is answered once", () => {
    const made = `{"role":"assistant","tool_calls":[${call("c", "{}")}]}`;
    const result = '{"role":"tool","tool_call_id":"c","content":"x"}';
    expect(read(`[${made},${result}]`)).toHaveLength(2);
    expect(read(`[${made}]`)).toHaveLength(1);
    expect(() => read(`[${made},${result},${result}]`)).toThrow(/not open/);
  });

  test("neighbouring guidance of one role is merged", () => {
    const merged = mergeGuidance([
      { role: "system", content: "a" },
      { role: "system", content: "b" },
      { role: "developer", content: "c" },
      { role: "user", content: "d" },
      { role: "user", content: "e" },
    ]);
    expect(merged.map(({ content }) => content)).toEqual(["a\n\nb", "c", "d", "e"]);
  });
});

describe("tools", () => {
  test("keep their order, and get empty parameters where they have none", () => {
    const [tool] = parseTools(
      parseJson('[{"type":"function","function":{"name":"my-tool","strict":true}}]'),
    );
    expect(tool!.name).toBe("my-tool");
    expect(writeJson(tool!.declaration)).toBe(
      '{"type":"function","function":{"name":"my-tool","strict":true,"parameters":{"type":"object","properties":{}}}}',
    );
  });

  test.each([
    ["{}", /must be an array/],
    ['[{"type":"search"}]', /the type "function"/],
    ['[{"type":"function","function":{"name":"a b"}}]', /must match/],
    ['[{"type":"function","function":{"name":"a","parameters":[]}}]', /JSON schema object/],
    [
      '[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}]',
      /used twice/,
    ],
  ])("%s is refused", (json, sentence) => {
    expect(() => parseTools(parseJson(json))).toThrow(sentence);
  });
});
