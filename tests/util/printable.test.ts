import { expect, test } from "bun:test";
import { printable } from "../../src/util/printable.ts";

test("control characters become marks; lines, tabs and letters stay", () => {
  expect(printable("a\u001b[31mb\u0007\u009b\u007f\r")).toBe(
    "a\ufffd[31mb\ufffd\ufffd\ufffd\ufffd",
  );
  expect(printable("é\t漢\n")).toBe("é\t漢\n");
});
