import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { verifyPackage } from "../../src/install/verify.ts";
import { acquireLock } from "../../src/native/lock.ts";
import { MferenceError } from "../../src/util/errors.ts";
import { failureOf } from "../fixtures/failures.ts";
import { editJson, flipByte, temporaryFolder } from "../fixtures/checkpoints.ts";
import { forge, open, packageOf } from "../fixtures/packages.ts";

const LAYER = "packed_experts/layer_04.bin";

describe("verifyPackage", () => {
  test("hashes everything and writes a receipt for the place where it found the package", async () => {
    const directory = await packageOf();
    const seen: number[] = [];
    const verified = await verifyPackage(directory, {
      full: true,
      onProgress: ({ doneBytes, totalBytes }) => seen.push(doneBytes / totalBytes),
    });
    expect(verified.fileCount).toBe(10);
    expect(verified.unexpected).toEqual([]);
    expect(verified.notice).toContain("token ids only");
    expect(seen.at(-1)).toBe(1);
    await open(directory, "trusted-receipt");
    const receipt = JSON.parse(fs.readFileSync(verified.receiptPath!, "utf8"));
    expect(receipt.toolVersion).toBe("MferenceRepack verify-install");
    expect(receipt.sourceRepoID).toBeUndefined();
  });

  test("finds damage of the same size only when full", async () => {
    const directory = await packageOf();
    flipByte(path.join(directory, LAYER), 3);
    const quick = await verifyPackage(directory, { full: false });
    expect(quick.receiptPath).toBeUndefined();
    const failure = await failureOf(() => verifyPackage(directory, { full: true }));
    expect(failure.code).toBe("format.changed");
    expect(failure.message).toContain("layer_04.bin");
  });

  test("keeps the provenance of an untouched install", async () => {
    const directory = await packageOf();
    const receipt = path.join(directory, "verified-install.json");
    const set = (json: Record<string, unknown>) =>
      Object.assign(json, {
        modelDirectoryPath: directory,
        sourceRepoID: "owner/name",
        sourceRevision: "0".repeat(40),
      });
    editJson(receipt, set);
    await verifyPackage(directory, { full: true });
    await verifyPackage(directory, { full: true });
    expect(JSON.parse(fs.readFileSync(receipt, "utf8")).sourceRepoID).toBe("owner/name");
    fs.writeFileSync(receipt, "not JSON");
    await verifyPackage(directory, { full: true });
    expect(JSON.parse(fs.readFileSync(receipt, "utf8")).sourceRepoID).toBeUndefined();
  });

  test("lists what nothing declares, without failing", async () => {
    const directory = await packageOf();
    fs.writeFileSync(path.join(directory, "stray"), "");
    fs.mkdirSync(path.join(directory, "folder"));
    fs.writeFileSync(path.join(directory, "folder", "inside"), "");
    fs.writeFileSync(path.join(directory, "packed_experts", "old.bin"), "");
    fs.writeFileSync(path.join(directory, "packed_experts", ".DS_Store"), "");
    fs.writeFileSync(path.join(directory, "tokenizer", "notes.txt"), "");
    const { unexpected } = await verifyPackage(directory, { full: false });
    expect(unexpected).toEqual(["folder", "packed_experts/old.bin", "stray"]);
  });

  test("refuses a declared file that no package has", async () => {
    const directory = await packageOf();
    forge(directory, "extra.bin", "x");
    expect((await failureOf(() => verifyPackage(directory, { full: false }))).message).toContain(
      "extra.bin",
    );
  });

  test("replaces a receipt that is a link and leaves its target alone", async () => {
    const directory = await packageOf();
    const target = path.join(temporaryFolder(), "target");
    fs.writeFileSync(target, "untouched");
    fs.rmSync(path.join(directory, "verified-install.json"));
    fs.symlinkSync(target, path.join(directory, "verified-install.json"));
    await verifyPackage(directory, { full: true });
    expect(fs.readFileSync(target, "utf8")).toBe("untouched");
    expect(fs.lstatSync(path.join(directory, "verified-install.json")).isFile()).toBe(true);
  });

  test("is busy while the package is locked, also under another spelling", async () => {
    const directory = await packageOf();
    const alias = path.join(temporaryFolder(), "alias");
    fs.symlinkSync(directory, alias);
    const lock = acquireLock(`${fs.realpathSync(directory)}.install.lock`);
    expect((await failureOf(() => verifyPackage(alias, { full: true }))).code).toBe("install.busy");
    lock.release();
    await verifyPackage(alias, { full: true });
  });

  test("eight at once leave one valid receipt and nothing else", async () => {
    const directory = await packageOf();
    const before = fs.readdirSync(directory).toSorted();
    const outcomes = await Promise.allSettled(
      Array.from({ length: 8 }, () => verifyPackage(directory, { full: true })),
    );
    const failed = outcomes.filter((outcome) => outcome.status === "rejected");
    expect(failed.length).toBeLessThan(8);
    for (const { reason } of failed) expect(reason).toMatchObject({ code: "install.busy" });
    expect(fs.readdirSync(directory).toSorted()).toEqual(before);
    await open(directory, "trusted-receipt");
  });

  test("verifies a package that may only be read, and writes no receipt", async () => {
    const directory = await packageOf();
    const receipt = path.join(directory, "verified-install.json");
    fs.rmSync(receipt);
    const lock = (): never => {
      const cause = Object.assign(new Error("read-only file system"), { code: "EROFS" });
      throw new MferenceError("native.lock", "cannot open the lock file", { cause });
    };
    const verified = await verifyPackage(directory, { full: true, lock });
    expect(verified.receiptPath).toBeUndefined();
    expect(verified.notice).toContain("cannot be written");
    expect(fs.existsSync(receipt)).toBe(false);
    flipByte(path.join(directory, LAYER), 3);
    const failure = await failureOf(() => verifyPackage(directory, { full: true, lock }));
    expect(failure.message).toContain("layer_04.bin");
  });

  test("stops on a signal and keeps the old receipt", async () => {
    const directory = await packageOf();
    const receipt = path.join(directory, "verified-install.json");
    const before = fs.readFileSync(receipt);
    const controller = new AbortController();
    const failure = await failureOf(() =>
      verifyPackage(directory, {
        full: true,
        signal: controller.signal,
        onProgress: () => controller.abort(),
      }),
    );
    expect(failure.code).toBe("install.cancelled");
    expect(fs.readFileSync(receipt)).toEqual(before);
    expect(fs.readdirSync(directory).filter((name) => name.endsWith(".tmp"))).toEqual([]);
  });

  test.each([
    ["no folder", (d: string) => fs.rmSync(d, { recursive: true }), "model.unknown"],
    ["no manifest", (d: string) => fs.rmSync(path.join(d, "manifest.json")), "model.partial"],
  ])("refuses %s", async (_, damage, code) => {
    const directory = await packageOf();
    damage(directory);
    const failure = await failureOf(() => verifyPackage(directory, { full: true }));
    expect(failure.code).toBe(code as "model.partial");
  });
});
