import { expect, test } from "bun:test";
import { hubBase, isPrivate, redacted, redirectTarget } from "../../src/install/address.ts";

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
