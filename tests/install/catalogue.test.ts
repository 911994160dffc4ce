import { expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { catalogue, installedPin, pinNamed } from "../../src/install/catalogue.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { packageOf } from "../fixtures/packages.ts";

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
  expect(catalogue().length).toBe(5);
  for (const { pin } of catalogue()) expect(pinNamed(pin.name.toUpperCase()).pin).toEqual(pin);
  for (const name of ["Gemma4", "deepseekV4Flash", "inklingSmall"]) {
    expect(pinNamed(name).pin.name).toBe(name.toLowerCase());
  }
  expect(() => pinNamed("gemma5")).toThrow(
    /unknown model "gemma5"; the names are demo, demo-qwen36, gemma4/,
  );
});

test("nothing is installed in an empty folder", () => {
  expect(installedPin(pinNamed("gemma4").pin, temporaryFolder())).toBeUndefined();
});

test("what is installed under a name is the checkpoint meant, or it is said what else it is", async () => {
  const directory = await packageOf();
  const models = path.dirname(directory);
  const name = path.basename(directory, ".gturbo");
  const { sourceSnapshotHash } = JSON.parse(
    fs.readFileSync(path.join(directory, "manifest.json"), "utf8"),
  ) as { sourceSnapshotHash: string };
  const sourceSha256 = sourceSnapshotHash.slice("sha256:".length);
  const found = installedPin({ name, sourceSha256 }, models);
  expect(found?.directory).toBe(directory);
  expect(found?.bytes).toBeGreaterThan(1e5);
  expect(() => installedPin({ name, sourceSha256: "0".repeat(64) }, models)).toThrow(
    /is taken: .* holds another checkpoint, unknown\/snapshot/,
  );
});
