import { describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import {
  checkUnchanged,
  identityOf,
  openInside,
  openRegular,
  readAt,
  readCapped,
  readExactly,
} from "../../src/format/files.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

const OPTIONS = { missing: "install.missing", unsafe: "format.path" } as const;

/** A folder with a file, a link to it, a linked folder and a pipe. */
function makeFolder(): string {
  const root = temporaryFolder();
  fs.mkdirSync(path.join(root, "real"));
  fs.writeFileSync(path.join(root, "real", "file"), "0123456789");
  fs.symlinkSync(path.join(root, "real", "file"), path.join(root, "link"));
  fs.symlinkSync(path.join(root, "real"), path.join(root, "linked"));
  spawnSync("mkfifo", [path.join(root, "pipe")]);
  return root;
}

describe("openInside", () => {
  const root = makeFolder();

  test("opens a regular file", () => {
    const file = openInside(root, "real/file", OPTIONS);
    expect(file.sizeBytes).toBe(10);
    fs.closeSync(file.descriptor);
  });

  test.each([
    ["link", "format.path", "symbolic link"],
    ["linked/file", "format.path", "not a folder"],
    ["real", "format.path", "not a regular file"],
    ["pipe", "format.path", "not a regular file"],
    ["absent", "install.missing", "missing"],
    ["absent/file", "install.missing", "missing"],
    ["real/file/below", "format.path", "not a folder"],
  ] as const)("refuses %s", (relative, code, sentence) => {
    const opening = () => openInside(root, relative, OPTIONS);
    expect(opening).toThrow(sentence);
    expect(opening).toThrow(expect.objectContaining({ code }));
  });

  test("lets the package's own folder be a link", () => {
    const file = openInside(path.join(root, "linked"), "file", OPTIONS);
    fs.closeSync(file.descriptor);
  });
});

describe("reading", () => {
  const root = makeFolder();
  const open = () => openRegular(path.join(root, "real", "file"), OPTIONS);

  test("returns what is there at the end of a file", async () => {
    const file = open();
    const buffer = new Uint8Array(8);
    expect(await readAt(file.descriptor, buffer, 6)).toBe(4);
    expect(new TextDecoder().decode(buffer.subarray(0, 4))).toBe("6789");
    fs.closeSync(file.descriptor);
  });

  test("says where a file ended early", () => {
    const file = open();
    expect(() => readExactly(file, { offset: 4, length: 8 }, "format.index")).toThrow("ends at 10");
    fs.closeSync(file.descriptor);
  });

  test("accepts a file of the cap and refuses one byte more", () => {
    const file = open();
    expect(readCapped(file, 10, "format.manifest").length).toBe(10);
    expect(() => readCapped(file, 9, "format.manifest")).toThrow("metadata cap of 9");
    fs.closeSync(file.descriptor);
  });
});

describe("checkUnchanged", () => {
  test("notices a replaced file and a written one", () => {
    const root = makeFolder();
    const name = path.join(root, "real", "file");
    const first = openRegular(name, OPTIONS);
    const identity = identityOf(first.descriptor);
    checkUnchanged(first.descriptor, identity, name);
    fs.renameSync(name, `${name}.old`);
    fs.writeFileSync(name, "0123456789");
    const second = openRegular(name, OPTIONS);
    expect(() => checkUnchanged(second.descriptor, identity, name)).toThrow("replaced");
    // The old descriptor still reads the old file.
    checkUnchanged(first.descriptor, identity, name);
    fs.truncateSync(`${name}.old`, 5);
    expect(() => checkUnchanged(first.descriptor, identity, name)).toThrow("10 bytes then, 5 now");
    for (const { descriptor } of [first, second]) fs.closeSync(descriptor);
  });
});
