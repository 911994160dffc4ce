import { describe, expect, test } from "bun:test";
import { adaptSchema, adaptTool } from "../../../src/families/gemma4/tool-schema.ts";
import { type JsonObject, parseJson, writeJson } from "../../../src/text/json.ts";

const adapt = (json: string) => writeJson(adaptSchema(parseJson(json)));

describe("schemas for the template", () => {
  test.each([
    ['{"type":"string"}', '{"type":"string"}'],
    ['{"type":"object"}', '{"type":"object","properties":{}}'],
    ['{"properties":{"a":{}}}', '{"properties":{"a":{"type":"string"}},"type":"object"}'],
    ['{"enum":["a","b"]}', '{"enum":["a","b"],"type":"string"}'],
    ["true", '{"type":"string"}'],
    ['{"type":["null","integer"]}', '{"type":"integer","nullable":true}'],
    ['{"type":["null"]}', '{"type":"null"}'],
    [
      '{"description":"d","anyOf":[{"type":"integer"},{"type":"string"}]}',
      '{"description":"d","type":"integer"}',
    ],
    ['{"anyOf":[{"type":"null"},{"type":"integer"}]}', '{"type":"integer","nullable":true}'],
    ['{"oneOf":[{"type":"null"}]}', '{"type":"null"}'],
    ['{"anyOf":[{"const":"a"},{"const":"b"}]}', '{"enum":["a","b"],"type":"string"}'],
    ['{"anyOf":[]}', '{"type":"string"}'],
    [
      '{"type":"array","items":{"type":["string","null"]}}',
      '{"type":"array","items":{"type":"string","nullable":true}}',
    ],
    [
      '{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"type":"string"},"b":{}},"required":["b"]}]}',
      '{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a","b"]}',
    ],
  ])("%s", (schema, want) => {
    expect(JSON.parse(adapt(schema))).toEqual(JSON.parse(want));
    expect(adapt(adapt(schema))).toBe(adapt(schema));
  });

  test("a parameter that no call can spell is refused, at every level", () => {
    for (const json of [
      '{"type":"object","properties":{"a b":{}}}',
      '{"allOf":[{"properties":{"x":{"type":"object","properties":{"a:b":{}}}}}]}',
    ]) {
      expect(() => adapt(json)).toThrow(/that the model cannot write/);
    }
  });

  test("a declaration keeps what is not a schema, and has a description", () => {
    const json =
      '{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object"}}}';
    expect(writeJson(adaptTool(parseJson(json) as JsonObject))).toBe(
      '{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{}},"description":""}}',
    );
  });
});
