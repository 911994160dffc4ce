import { expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { discardPartial } from "../../src/install/discard.ts";
import { acquireLock } from "../../src/native/lock.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";

function unfinished(): string {
  const models = temporaryFolder();
  fs.mkdirSync(path.join(models, "m.gturbo.partial/tokenizer"), { recursive: true });
  fs.writeFileSync(path.join(models, "m.gturbo.resume.json"), "{");
  fs.writeFileSync(path.join(models, "m.gturbo.resume.json.1.x.tmp"), "");
  fs.writeFileSync(path.join(models, "m.gturbo.other"), "");
  fs.mkdirSync(path.join(models, "n.gturbo.partial"));
  return models;
}

test("removes the files and the record of one unfinished install, damaged or not", () => {
  const models = unfinished();
  expect(discardPartial("m", models)).toBe(path.join(models, "m.gturbo.partial"));
  expect(fs.readdirSync(models).toSorted()).toEqual([
    "m.gturbo.install.lock",
    "m.gturbo.other",
    "n.gturbo.partial",
  ]);
});

test("takes a name in any case where only one is meant", () => {
  const models = unfinished();
  fs.mkdirSync(path.join(models, "M.gturbo.partial"));
  expect(path.basename(discardPartial("M", models))).toBe("M.gturbo.partial");
  expect(path.basename(discardPartial("M", models))).toBe("m.gturbo.partial");
  expect(path.basename(discardPartial("N", models))).toBe("n.gturbo.partial");
});

test("follows no link", async () => {
  const models = temporaryFolder();
  const victim = temporaryFolder();
  fs.writeFileSync(path.join(victim, "mine"), "");
  fs.symlinkSync(victim, path.join(models, "m.gturbo.partial"));
  expect((await failureOf(() => discardPartial("m", models))).code).toBe("format.path");
  expect(fs.readdirSync(victim)).toEqual(["mine"]);
});

test("leaves an install that is running", async () => {
  const models = unfinished();
  const lock = acquireLock(path.join(fs.realpathSync(models), "m.gturbo.install.lock"));
  expect((await failureOf(() => discardPartial("m", models))).code).toBe("install.busy");
  lock.release();
});

test("says when there is nothing", async () => {
  expect((await failureOf(() => discardPartial("x", unfinished()))).code).toBe("model.unknown");
  expect((await failureOf(() => discardPartial("x", "/none/such"))).code).toBe("model.unknown");
});
