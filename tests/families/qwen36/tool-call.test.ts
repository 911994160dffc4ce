import { describe, expect, test } from "bun:test";
import { parseToolCall } from "../../../src/families/qwen36/tool-call.ts";
import { writeJson } from "../../../src/text/json.ts";

const call = (parameters: string): string => `\n<function=f>\n${parameters}</function>\n`;
const parameter = (value: string, key = "p"): string =>
  `<parameter=${key}>\n${value}\n</parameter>\n`;
const read = (value: string) => parseToolCall(call(parameter(value))).arguments.get("p");

describe("the grammar of tool calls", () => {
  test("a function, its parameters in the order of the model", () => {
    const { name, arguments: values } = parseToolCall(
      call(parameter("1", "z") + parameter("x y", "a") + parameter("2", "z")),
    );
    expect(name).toBe("f");
    expect(writeJson(values)).toBe('{"z":2,"a":"x y"}');
    expect(parseToolCall("<function=my-tool_2>\n</function>").name).toBe("my-tool_2");
    expect(parseToolCall(call("")).arguments.size).toBe(0);
  });

  test.each([
    ["12", "12"],
    ["-1.5e3", "-1.5e3"],
    ["10.0", "10.0"],
    ["9007199254740993", "9007199254740993"],
    ["true", "true"],
    ["null", "null"],
    [' {"a": [1, {}]} ', '{"a":[1,{}]}'],
    ["[]", "[]"],
  ])("%s is a value", (text, json) => {
    expect(writeJson(read(text)!)).toBe(json);
  });

  test.each([
    "wood contrast",
    '"quoted"',
    "  two\n\nlines  ",
    "{ not json",
    "[x for x in y]",
    "nothing",
    "-",
    "01",
    "[".repeat(2000),
    "</parameter> in a line",
    "a\n</parameter>\nb",
    "<parameter=q>",
    "</function>\n</tool_call>",
    "",
  ])("%j is a text", (text) => {
    expect(read(text)).toBe(text);
  });

  test("an empty value may do with one line feed", () => {
    const { arguments: values } = parseToolCall(
      call(`<parameter=p>\n</parameter>\n${parameter("1", "q")}`),
    );
    expect(writeJson(values)).toBe('{"p":"","q":1}');
  });

  test("what its declaration calls a string stays one", () => {
    const isText = (tool: string, key: string) => tool === "f" && key === "p";
    const body = call(parameter("12") + parameter("12", "q"));
    expect(writeJson(parseToolCall(body, isText).arguments)).toBe('{"p":"12","q":12}');
  });

  test.each([
    ["", "<function=NAME>"],
    ["<function=f>", "<function=NAME> and a line feed"],
    ["<function=f b>\n</function>", "<function=NAME>"],
    [`<function=${"x".repeat(65)}>\n</function>`, "<function=NAME>"],
    ["<function=f>\n", "</function>"],
    [call("<parameter=p>\nx\n"), "</parameter> on a line of its own"],
    [call("<parameter=p>x\n</parameter>\n"), "<parameter=NAME>"],
    [call(`text\n${parameter("1")}`), "<parameter=NAME>"],
    [`${call(parameter("1"))}</function_invocation>`, "</parameter> on a line of its own"],
    [call(parameter(`${"[".repeat(65)}1${"]".repeat(65)}`)), "64"],
  ])("%j is malformed", (body, sentence) => {
    expect(() => parseToolCall(body)).toThrow(sentence);
  });

  test("64 levels are not too deep", () => {
    const value = `${"[".repeat(64)}1${"]".repeat(64)}`;
    expect(writeJson(read(value)!)).toBe(value);
  });
});
