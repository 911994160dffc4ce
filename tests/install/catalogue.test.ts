import { expect, test } from "bun:test";
import { catalogue, installedPin, pinNamed } from "../../src/install/catalogue.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

test("every checkpoint has a full commit and digest, and a name of its own", () => {
  const entries = catalogue();
  for (const { pin } of entries) {
    expect(pin.remote.revision).toMatch(/^[0-9a-f]{40}$/);
    expect(pin.sourceSha256).toMatch(/^[0-9a-f]{64}$/);
    expect(pin.remote.repository).toMatch(/^[\w.-]+\/[\w.-]+$/);
  }
  expect(new Set(entries.map(({ pin }) => pin.name.toLowerCase())).size).toBe(entries.length);
});

test("names are found in any case", () => {
  expect(pinNamed("GEMMA4").pin.name).toBe("gemma4");
  expect(() => pinNamed("gemma5")).toThrow(/unknown model "gemma5"; the names are demo, gemma4/);
});

test("nothing is installed in an empty folder", () => {
  expect(installedPin(pinNamed("gemma4").pin, temporaryFolder())).toBeUndefined();
});
