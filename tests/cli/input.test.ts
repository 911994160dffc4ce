import { describe, expect, test } from "bun:test";
import { linesOf, MessageAssembler, textOf } from "../../src/cli/input.ts";

async function* chunks(...parts: (string | number[])[]): AsyncGenerator<Uint8Array> {
  for (const part of parts) {
    yield typeof part === "string" ? new TextEncoder().encode(part) : Uint8Array.from(part);
  }
}

const messagesOf = (...lines: string[]): (string | undefined)[] => {
  const assembler = new MessageAssembler();
  return [...lines.map((line) => assembler.push(line)), assembler.end()];
};

describe("MessageAssembler", () => {
  test("a line is a message", () => {
    expect(messagesOf("one", "two")).toEqual(["one", "two", undefined]);
  });

  test("a backslash at the end joins lines, two of them do not", () => {
    expect(messagesOf("one\\", "two")).toEqual([undefined, "one\ntwo", undefined]);
    expect(messagesOf("one\\\\")).toEqual(["one\\\\", undefined]);
    expect(messagesOf("one\\")).toEqual([undefined, "one"]);
  });

  test("fences keep several lines together", () => {
    expect(messagesOf('"""', "a", "", "b\\", '"""')).toEqual([
      ...Array.from({ length: 4 }, () => undefined),
      "a\n\nb\\",
      undefined,
    ]);
    expect(messagesOf('"""a', 'b"""')).toEqual([undefined, "a\nb", undefined]);
    expect(messagesOf('"""a"""')).toEqual(["a", undefined]);
    expect(messagesOf('"""', "open")).toEqual([undefined, undefined, "open"]);
  });

  test("what was begun can be forgotten", () => {
    const assembler = new MessageAssembler();
    assembler.push('"""');
    assembler.push("lost");
    expect(assembler.isOpen).toBe(true);
    assembler.abandon();
    expect(assembler.isOpen).toBe(false);
    expect(assembler.push("kept")).toBe("kept");
  });
});

describe("input bytes", () => {
  test("characters and lines may be split over chunks", async () => {
    const euro = [0xe2, 0x82, 0xac];
    const lines = linesOf(chunks("a", euro.slice(0, 1), euro.slice(1), "\r\nb\n\nlast"));
    expect(await Array.fromAsync(lines)).toEqual(["a\u20ac", "b", "", "last"]);
  });

  test("a byte order mark at the beginning is no text", async () => {
    expect(await textOf(chunks([0xef, 0xbb, 0xbf], "hi"))).toBe("hi");
  });

  test.each([[[0xff]], [[0xe2, 0x82]], [[0xed, 0xa0, 0x80]]])("%j is refused", async (bytes) => {
    expect(textOf(chunks("ok", bytes))).rejects.toThrow("not valid UTF-8");
  });
});
