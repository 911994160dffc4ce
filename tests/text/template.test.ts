import { describe, expect, test } from "bun:test";
import { parseJson } from "../../src/text/json.ts";
import { ChatTemplate } from "../../src/text/template.ts";

const render = (source: string, json: string) =>
  new ChatTemplate(source).render({ value: parseJson(json) });

describe("chat templates", () => {
  test("the order of keys, wide integers and 1.0 survive", () => {
    const json = '{"b": 1, "10": 2, "a": [9007199254740993, 1.0, 1e16, -0.0, true, null]}';
    expect(render("{{ value | tojson }}", json)).toBe(json);
    expect(render("{% for k, v in value.items() %}{{ k }} {% endfor %}", json)).toBe("b 10 a ");
    expect(render("{{ value.a[0] }} {{ value.a[1] }} {{ value.b }}", json)).toBe(
      "9007199254740993 1.0 1",
    );
    expect(render("{{ value.a[0] is integer }} {{ value.a[1] is integer }}", json)).toBe(
      "true false",
    );
  });

  test("numbers still count", () => {
    expect(render("{{ 'yes' if value.a > 1.5 and value.b == 3 }}", '{"a": 2.0, "b": 3}')).toBe(
      "yes",
    );
  });

  test("dictsort is case-insensitive, by code points", () => {
    const source = "{% for k, v in value | dictsort %}{{ k }} {% endfor %}";
    expect(render(source, '{"b":1,"A":1,"10":1,"9":1,"a":1,"é":1}')).toBe("10 9 A a b é ");
  });

  test("what templates use of control flow", () => {
    const source = `{%- macro item(x, sep=', ') -%}{{ x }}{{ sep }}{%- endmacro -%}
{%- set ns = namespace(n=0) -%}
{%- for x in value[1:] -%}{%- set ns.n = ns.n + 1 -%}{{ item(x, sep=';') }}{%- endfor -%}
{{ ns.n }}{{ ' none' if missing is not defined }}{{ value[::-1][0] }}{{ range(3, 0, -1) | length }}`;
    expect(render(source, '["a", "b", "c"]')).toBe("b;c;2 nonec3");
  });

  test("a null prints as Python prints it, and nothing else prints", () => {
    expect(render("{{ value.a }}|{{ value.b }}|{{ value.get('b') }}", '{"a": null}')).toBe(
      "None||None",
    );
    const source = `{% macro m(x) %}{{ x }}{% endmacro %}{% set y = value %}{% if y is none %}{{ m(y) }}
{%- for z in [none] %}{{ z }}{% else %}{{ 1 }}{% endfor %}{% endif %}{% set b %}{{ y }}{% endset %}[{{ b }}]`;
    expect(render(source, "null")).toBe("NoneNone[None]");
  });

  test("what a template refuses is the messages' fault, everything else its own", () => {
    expect(() => render("{{ raise_exception('no ' ~ value) }}", '"tool"')).toThrow(
      expect.objectContaining({
        code: "text.messages",
        message: "the chat template refuses: no tool",
      }),
    );
    expect(() => render("{{ value.x.y.z() }}", "{}")).toThrow(
      expect.objectContaining({ code: "text.template" }),
    );
    expect(() => new ChatTemplate("{% if %}")).toThrow(
      expect.objectContaining({ code: "text.template" }),
    );
  });

  test("steps, recursion, output and source are bounded", () => {
    expect(() => render("{% for a in range(99999999) %}{% endfor %}", "1")).toThrow(/too long/);
    const loop = new ChatTemplate("{% for a in range(100) %}{{ a }}{% endfor %}", 50);
    expect(() => loop.render({})).toThrow(/more than 50 steps/);
    const growing =
      "{% set ns = namespace(s='0123456789abcdef') %}{% for a in range(21) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}";
    expect(() => render(growing, "1")).toThrow(/characters, at most/);
    expect(() => render("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "1")).toThrow(
      /chat template/,
    );
    expect(() => new ChatTemplate(" ".repeat(5_000_000))).toThrow(/at most/);
  });

  test("a template reaches nothing but its variables", () => {
    for (const name of ["process", "globalThis", "Bun", "require", "strftime_now"]) {
      expect(render(`{{ ${name} is defined }}`, "1")).toBe("false");
    }
    expect(render("{{ value.constructor is defined }}{{ value.__proto__ is defined }}", "{}")).toBe(
      "falsefalse",
    );
  });
});
