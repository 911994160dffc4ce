import { expect, test } from "bun:test";
import { applyTransform, transformText, type Transform } from "../../src/install/transform.ts";

const bytes = (hex: string): Uint8Array => Uint8Array.fromHex(hex.replaceAll(" ", ""));

test("two-bit codes become four-bit codes of the same value", () => {
  const target = new Uint8Array(24);
  applyTransform({ kind: "unpackInt2ToInt4" }, bytes("00000000 ffffffff e41b4eb1"), target);
  expect(target.toHex()).toBe("000000000000000033333333333333331032230132100123");
});

test.each([
  [false, "803f803f00bf00bf01000100c17fc17f", "repeat-bf16:2:0"],
  [true, "80bf80bf003f003f01800180c1ffc1ff", "repeat-bf16:2:1"],
])("a value per row becomes one per group, negated: %p", (isNegated, expected, text) => {
  const transform: Transform = { kind: "repeatBf16", count: 2, isNegated };
  const target = new Uint8Array(16);
  applyTransform(transform, bytes("803f 00bf 0100 c17f"), target);
  expect(target.toHex()).toBe(expected);
  expect(transformText(transform)).toBe(text);
});

test("refuses parts of units", () => {
  const refused = () =>
    applyTransform({ kind: "unpackInt2ToInt4" }, new Uint8Array(3), new Uint8Array(6));
  expect(refused).toThrow(/whole number of units/);
});
