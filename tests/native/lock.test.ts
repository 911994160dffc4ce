import { describe, expect, spyOn, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { acquireLock } from "../../src/native/lock.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

const LOCK_MODULE = path.resolve(import.meta.dir, "../../src/native/lock.ts");

describe("acquireLock", () => {
  test("refuses a second holder and lets it in after the release", () => {
    const file = path.join(temporaryFolder(), "x.lock");
    const lock = acquireLock(file);
    expect(() => acquireLock(file)).toThrow(expect.objectContaining({ code: "install.busy" }));
    expect(() => acquireLock(file)).toThrow(file);
    lock.release();
    lock.release();
    acquireLock(file).release();
    expect(fs.existsSync(file)).toBe(true);
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
  });

  test("refuses a link and leaves its target alone", () => {
    const folder = temporaryFolder();
    const target = path.join(folder, "target");
    fs.writeFileSync(target, "untouched");
    fs.symlinkSync(target, path.join(folder, "x.lock"));
    expect(() => acquireLock(path.join(folder, "x.lock"))).toThrow(
      expect.objectContaining({ code: "native.lock" }),
    );
    expect(fs.readFileSync(target, "utf8")).toBe("untouched");
  });

  test("refuses a folder and a missing parent", () => {
    const folder = temporaryFolder();
    for (const file of [folder, path.join(folder, "absent", "x.lock")]) {
      expect(() => acquireLock(file)).toThrow(expect.objectContaining({ code: "native.lock" }));
    }
  });

  test("notices that another file came in the place of the one it opened", () => {
    const file = path.join(temporaryFolder(), "x.lock");
    const open = fs.openSync;
    const spy = spyOn(fs, "openSync").mockImplementation((...args) => {
      const descriptor = open(...args);
      fs.renameSync(file, `${file}.old`);
      fs.copyFileSync(`${file}.old`, file);
      return descriptor;
    });
    try {
      expect(() => acquireLock(file)).toThrow(expect.objectContaining({ code: "native.lock" }));
    } finally {
      spy.mockRestore();
    }
    acquireLock(file).release();
  });

  test("is held by another process until that is killed", async () => {
    const file = path.join(temporaryFolder(), "x.lock");
    const code = `
      import { acquireLock } from ${JSON.stringify(LOCK_MODULE)};
      acquireLock(${JSON.stringify(file)});
      console.log("held");
      setInterval(() => {}, 1000);`;
    const child = Bun.spawn([process.execPath, "-e", code], { stdout: "pipe" });
    const reader = child.stdout.getReader();
    await reader.read();
    expect(() => acquireLock(file)).toThrow(expect.objectContaining({ code: "install.busy" }));
    child.kill("SIGKILL");
    await child.exited;
    acquireLock(file).release();
  });

  test("is not inherited by a child", async () => {
    const file = path.join(temporaryFolder(), "x.lock");
    const lock = acquireLock(file);
    const child = Bun.spawn(["sleep", "30"]);
    lock.release();
    acquireLock(file).release();
    child.kill("SIGKILL");
    await child.exited;
  });
});
