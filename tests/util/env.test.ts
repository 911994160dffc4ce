import { afterEach, expect, test } from "bun:test";
import { shownEnv } from "../../src/util/env.ts";

const before = { token: process.env["HF_TOKEN"], proxy: process.env["HTTPS_PROXY"] };
const restore = (name: string, value: string | undefined): void => {
  if (value === undefined) Reflect.deleteProperty(process.env, name);
  else process.env[name] = value;
};
afterEach(() => {
  restore("HF_TOKEN", before.token);
  restore("HTTPS_PROXY", before.proxy);
});

test("what is shown of the environment holds no secret", () => {
  process.env["HF_TOKEN"] = "hf_secret";
  process.env["HTTPS_PROXY"] = "http://user:secret@proxy.example:8080";
  expect(shownEnv("HF_TOKEN")).toBe("***");
  expect(shownEnv("HTTPS_PROXY")).toBe("http://***@proxy.example:8080");
  process.env["HF_TOKEN"] = "";
  expect(shownEnv("HF_TOKEN")).toBeUndefined();
});
