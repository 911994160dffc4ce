import { afterEach, describe, expect, test } from "bun:test";
import {
  hubBase,
  isPrivate,
  redacted,
  redirectTarget,
  tokenFor,
} from "../../src/install/address.ts";

test.each([
  "https://mirror.example/hf",
  "http://127.0.0.1:8080",
  "http://localhost:1",
  "http://[::1]:1",
])("%s can be the Hub", (address) => {
  expect(hubBase(address).href).toStartWith(address);
});

test.each([
  "http://example.com",
  "ftp://x",
  "nothing",
  "https://user:pass@example.com",
  "http://10.0.0.1",
])("%s cannot", (address) => {
  const attempt = () => hubBase(address);
  expect(attempt).toThrow(/cannot use/);
  expect(attempt).not.toThrow(/pass@/);
});

test.each([
  "localhost",
  "127.0.0.1",
  "10.1.2.3",
  "172.16.0.1",
  "192.168.1.1",
  "169.254.169.254",
  "0.0.0.0",
  "[::1]",
  "[::ffff:a00:1]",
  "[fe80::1]",
  "[fd00::1]",
  "printer.local",
])("%s is private", (host) => {
  expect(isPrivate(host)).toBe(true);
});

test.each(["huggingface.co", "172.32.0.1", "8.8.8.8", "[2001:db8::1]", "10.example.com"])(
  "%s is not",
  (host) => {
    expect(isPrivate(host)).toBe(false);
  },
);

const HUB = new URL("https://hub.example");
test.each([
  ["http://cdn.example/x", /not encrypted/],
  ["https://169.254.169.254/x", /private/],
  ["https://2130706433/x", /private/],
  ["https://a:b@cdn.example/x", /credentials/],
  [null, /no address/],
])("a redirect to %p is refused", (to, sentence) => {
  expect(() => redirectTarget(to, new URL("https://hub.example/a"), HUB)).toThrow(sentence);
});

test("a redirect may be relative, and what is shown of it holds no signature", () => {
  const target = redirectTarget("/b?signature=secret#x", new URL("https://hub.example/a"), HUB);
  expect(target.href).toBe("https://hub.example/b?signature=secret#x");
  expect(redacted(target)).toBe("https://hub.example/b");
});

describe("the token", () => {
  const NAMES = ["HF_TOKEN", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY"] as const;
  const before = Object.fromEntries(NAMES.map((name) => [name, process.env[name]]));
  afterEach(() => set(before));
  function set(values: Partial<Record<(typeof NAMES)[number], string | undefined>>): void {
    for (const name of NAMES) {
      if (values[name] === undefined) Reflect.deleteProperty(process.env, name);
      else process.env[name] = values[name];
    }
  }
  const HF_TOKEN = "hf_secret";
  const given = (address: string): string | undefined => tokenFor(new URL(address));

  test("goes to the Hub and nowhere else", () => {
    set({ HF_TOKEN: `${HF_TOKEN}\n` });
    expect(given("https://huggingface.co")).toBe(HF_TOKEN);
    expect(given("https://other.example")).toBeUndefined();
    expect(given("https://huggingface.co:444")).toBeUndefined();
  });

  test("goes to the mirror that is called the Hub, and then not to the Hub", () => {
    set({ HF_TOKEN, HF_ENDPOINT: "https://mirror.example/hf" });
    expect(given("https://mirror.example/hf")).toBe(HF_TOKEN);
    expect(given("https://huggingface.co")).toBeUndefined();
  });

  test("goes to this machine in the clear, but not past a proxy", () => {
    set({ HF_TOKEN, HF_ENDPOINT: "http://127.0.0.1:1" });
    expect(given("http://127.0.0.1:1")).toBe(HF_TOKEN);
    set({ HF_TOKEN, HF_ENDPOINT: "http://127.0.0.1:1", http_proxy: "http://proxy.example" });
    expect(given("http://127.0.0.1:1")).toBeUndefined();
  });

  test("that is none is refused without being shown", () => {
    set({ HF_TOKEN: "hf_sec\nret" });
    expect(() => given("https://huggingface.co")).toThrow(/HF_TOKEN holds characters/);
  });
});
