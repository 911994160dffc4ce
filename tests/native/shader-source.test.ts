/** The shaders as one text: every file once, with marks that name the files. */
import { expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../src/native/built.ts";
import { renderShaderHeader, SHADER_HEADER } from "../../src/native/shader-source.ts";

const text = renderShaderHeader();

test("the generated header is that of the present shaders", () => {
  expect(readFileSync(join(ROOT, SHADER_HEADER), "utf8")).toBe(text);
});

test("every file is in it once, and nothing of this repository is left to include", () => {
  const files = [
    ...readdirSync(join(ROOT, "shaders")).filter((name) => name.endsWith(".metal")),
    ...readdirSync(join(ROOT, "shaders/common")).map((name) => `common/${name}`),
  ];
  expect(files.length).toBeGreaterThan(10);
  for (const file of files) {
    expect(text.split(String.raw`#line 1 \"shaders/${file}\"`)).toHaveLength(2);
  }
  expect(text).not.toMatch(/#include \\"/);
});

test("what only other compilers need of a shared header is left out", () => {
  expect(text).toContain("MF_CATALOGUE_HASH");
  expect(text).not.toContain("mf_extent_bytes");
});
