import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findTextFiles, readTextSettings } from "../../src/text/sidecars.ts";

const folder = mkdtempSync(join(tmpdir(), "mference-sidecars-"));
afterAll(() => rmSync(folder, { recursive: true }));
const write = (name: string, content: string | Uint8Array) => {
  writeFileSync(join(folder, name), content);
  return join(folder, name);
};

describe("text files", () => {
  test("a folder without a tokenizer has none; with one, what is there is found", () => {
    expect(findTextFiles(folder)).toBeUndefined();
    const tokenizer = write("tokenizer.json", "{}");
    const template = write("chat_template.jinja", "T");
    expect(findTextFiles(folder)).toEqual({
      tokenizer,
      config: undefined,
      template,
      templateJson: undefined,
    });
  });

  const tokenizer = join(folder, "tokenizer.json");
  test("the template file decides before the JSON one, and that before the settings", () => {
    const config = write(
      "c.json",
      '{"chat_template":"C","bos_token":{"content":"<b>"},"pad_token":null}',
    );
    const templateJson = write("t.json", '{"chat_template":"J"}');
    const template = write("t.jinja", "T");
    expect(readTextSettings({ tokenizer, config, templateJson, template }).template).toBe("T");
    expect(readTextSettings({ tokenizer, config, templateJson }).template).toBe("J");
    expect(readTextSettings({ tokenizer, config })).toEqual({
      template: "C",
      tokenNames: { bos_token: "<b>" },
    });
    expect(readTextSettings({ tokenizer })).toEqual({ template: undefined, tokenNames: {} });
  });

  test("of several named templates, the one for chats", () => {
    const list = '[{"name":"tool_use","template":"A"},{"name":"default","template":"B"}]';
    const config = write("n.json", `{"chat_template":${list}}`);
    expect(readTextSettings({ tokenizer, config }).template).toBe("B");
  });

  test.each([
    ["not JSON", "{", /bad.json/],
    ["another form", '{"chat_template":5}', /chat_template/],
    ["not UTF-8", Uint8Array.of(0xff), /cannot read/],
  ])("%s is one sentence", (_, content, sentence) => {
    const config = write("bad.json", content);
    expect(() => readTextSettings({ tokenizer, config })).toThrow(sentence);
  });
});
