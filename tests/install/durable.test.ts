import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import {
  checkSpace,
  createTarget,
  finishTarget,
  replaceDurably,
  sizeTarget,
  systemIo,
  writeDurably,
  type InstallIo,
} from "../../src/install/durable.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

const bytes = new TextEncoder().encode("content");
const fullIo: InstallIo = {
  ...systemIo,
  availableBytes: () => 0,
  write() {
    throw Object.assign(new Error("full"), { code: "ENOSPC" });
  },
};

describe("durable writing", () => {
  test("creates only what is not there", () => {
    const file = path.join(temporaryFolder(), "x");
    writeDurably(file, [bytes, bytes], systemIo);
    expect(fs.readFileSync(file, "utf8")).toBe("contentcontent");
    expect(() => writeDurably(file, [bytes], systemIo)).toThrow(
      expect.objectContaining({ code: "install.io" }),
    );
    expect(fs.readFileSync(file, "utf8")).toBe("contentcontent");
  });

  test("replaces all at once and leaves the old content when it fails", () => {
    const folder = temporaryFolder();
    const file = path.join(folder, "x");
    fs.writeFileSync(file, "old");
    expect(() => replaceDurably(file, bytes, fullIo)).toThrow(
      expect.objectContaining({ code: "install.space" }),
    );
    expect(fs.readFileSync(file, "utf8")).toBe("old");
    expect(fs.readdirSync(folder)).toEqual(["x"]);
    replaceDurably(file, bytes);
    expect(fs.readFileSync(file, "utf8")).toBe("content");
    expect(fs.readdirSync(folder)).toEqual(["x"]);
  });

  test("sizes a file with zeros", () => {
    const target = createTarget(path.join(temporaryFolder(), "x"), systemIo);
    sizeTarget(target, 10, systemIo);
    finishTarget(target, systemIo);
    expect([...fs.readFileSync(target.path)]).toEqual(Array.from({ length: 10 }, () => 0));
  });

  test("takes a write of no bytes as an error and not as a reason to try for ever", () => {
    const io: InstallIo = { ...systemIo, write: () => 0 };
    expect(() => writeDurably(path.join(temporaryFolder(), "x"), [bytes], io)).toThrow(
      "took no bytes",
    );
  });

  test("continues after an interrupted call", () => {
    let calls = 0;
    const io: InstallIo = {
      ...systemIo,
      write(descriptor, part, offset) {
        calls += 1;
        if (calls === 1) throw Object.assign(new Error("interrupted"), { code: "EINTR" });
        return systemIo.write(descriptor, part, offset);
      },
    };
    const file = path.join(temporaryFolder(), "x");
    writeDurably(file, [bytes], io);
    expect(fs.readFileSync(file, "utf8")).toBe("content");
  });
});

describe("checkSpace", () => {
  const io = (available: number): InstallIo => ({ ...systemIo, availableBytes: () => available });

  test("passes at the exact amount and names both numbers below it", () => {
    checkSpace("/x", 100, io(100));
    expect(() => checkSpace("/x", 100, io(99))).toThrow(/100 bytes.*99 bytes/);
  });

  test("asks the file system", () => {
    checkSpace(temporaryFolder(), 1, systemIo);
    expect(() => checkSpace(temporaryFolder(), Number.MAX_SAFE_INTEGER, systemIo)).toThrow(
      "not enough",
    );
  });
});

describe("every change of the disk", () => {
  const folder = path.resolve(import.meta.dir, "../../src/install");
  const sources = new Map(
    fs
      .readdirSync(folder)
      .map((name) => [name, fs.readFileSync(path.join(folder, name), "utf8")] as const),
  );
  /** What of `fs` changes nothing; any other call must be one of `systemIo`. */
  const reading =
    /^(constants|closeSync|existsSync|fstatSync|lstatSync|read|readSync|readdirSync|readFileSync|realpathSync|statSync)$/;
  const callsOf = (text: string) => [...text.matchAll(/\bfs\.(\w+)/g)].map((match) => match[1]!);

  test("goes through the seam", () => {
    const systemIoText = /systemIo: InstallIo = \{[^]*?\n\};\n/.exec(
      sources.get("durable.ts")!,
    )![0];
    expect(callsOf(systemIoText).filter((call) => !reading.test(call)).length).toBeGreaterThan(8);
    for (const [name, text] of sources) {
      const outside = text.replace(systemIoText, "");
      const changing = callsOf(outside).filter(
        (call) => !/^[A-Z]/.test(call) && !reading.test(call),
      );
      expect([name, changing]).toEqual([name, []]);
      expect([name, /Bun\.(write|file|spawn)|fs\/promises|node:child_process/.test(text)]).toEqual([
        name,
        false,
      ]);
      // Nor under another name.
      expect([name, /import (?!fs )[^;]* from "node:fs"/.test(text)]).toEqual([name, false]);
    }
  });
});
