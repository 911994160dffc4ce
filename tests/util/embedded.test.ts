import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import {
  cacheFolder,
  copyOutLibrary,
  embedded,
  type EmbeddedFile,
  registerEmbedded,
  withCopies,
} from "../../src/util/embedded.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";

/** Three tiles and a ragged end. */
const BYTES = 3 * 524_288 + 17;
const MONTHS_AGO = new Date(Date.now() - 100 * 24 * 3600 * 1000);

const given = process.env["XDG_CACHE_HOME"];
let content: Uint8Array;
let file: EmbeddedFile;

beforeEach(() => {
  const folder = temporaryFolder();
  process.env["XDG_CACHE_HOME"] = path.join(folder, "cache");
  content = crypto.getRandomValues(new Uint8Array(65_536));
  content = Uint8Array.from({ length: BYTES }, (_, i) => content[i % 65_521]!);
  const inside = path.join(folder, "inside.so");
  fs.writeFileSync(inside, content);
  const sha256 = new Bun.CryptoHasher("sha256").update(content).digest("hex");
  file = { name: "libthing.so", path: inside, sizeBytes: BYTES, sha256 };
});
afterEach(() => {
  if (given === undefined) delete process.env["XDG_CACHE_HOME"];
  else process.env["XDG_CACHE_HOME"] = given;
});

describe("copyOutLibrary", () => {
  test("copies once, under a name with the hash, for this user alone", async () => {
    const copy = await copyOutLibrary(file);
    expect(path.basename(copy)).toBe(`libthing-${file.sha256.slice(0, 16)}.so`);
    expect(fs.readdirSync(cacheFolder())).toEqual([path.basename(copy)]);
    expect(Buffer.compare(fs.readFileSync(copy), content)).toBe(0);
    expect(fs.statSync(cacheFolder()).mode & 0o777).toBe(0o700);
    const { ino } = fs.statSync(copy);
    expect(await copyOutLibrary(file)).toBe(copy);
    expect(fs.statSync(copy).ino).toBe(ino);
  });

  const alterations: Readonly<Record<string, (copy: string) => void>> = {
    "one byte": (copy) => {
      const bytes = fs.readFileSync(copy);
      bytes[BYTES - 1]! ^= 1;
      fs.writeFileSync(copy, bytes);
    },
    "its length": (copy) => fs.truncateSync(copy, BYTES - 1),
    "a link in its place": (copy) => {
      const other = `${copy}.other`;
      fs.renameSync(copy, other);
      fs.symlinkSync(other, copy);
    },
  };
  test.each(Object.entries(alterations))("replaces a copy altered in %s", async (_, alter) => {
    const copy = await copyOutLibrary(file);
    const { ino } = fs.statSync(copy);
    alter(copy);
    expect(await copyOutLibrary(file)).toBe(copy);
    const status = fs.lstatSync(copy);
    expect(status.isFile()).toBe(true);
    // Never written in place: another process may have it loaded.
    expect(status.ino).not.toBe(ino);
    expect(Buffer.compare(fs.readFileSync(copy), content)).toBe(0);
  });

  test("starts at the same time do not collide and leave nothing", async () => {
    const copies = await Promise.all(Array.from({ length: 4 }, () => copyOutLibrary(file)));
    expect(new Set(copies).size).toBe(1);
    expect(fs.readdirSync(cacheFolder())).toEqual([path.basename(copies[0]!)]);
  });

  test("removes what nobody used for long, and leftovers, and nothing else", async () => {
    const copy = await copyOutLibrary(file);
    const cache = cacheFolder();
    for (const name of ["libold-0.so", "libnew-0.so", "libdead-0.so.tmp-1"]) {
      fs.writeFileSync(path.join(cache, name), "");
      if (name !== "libnew-0.so") fs.utimesSync(path.join(cache, name), MONTHS_AGO, MONTHS_AGO);
    }
    fs.utimesSync(copy, MONTHS_AGO, MONTHS_AGO);
    await copyOutLibrary(file);
    await copyOutLibrary({ ...file, name: "libother.so" });
    const kept = [path.basename(copy), path.basename(copy).replace("thing", "other")];
    expect(fs.readdirSync(cache).toSorted()).toEqual(["libnew-0.so", ...kept].toSorted());
  });

  test("refuses a file that is not what was built in", async () => {
    const sha256 = "0".repeat(64);
    const { code, message } = await failureOf(() => copyOutLibrary({ ...file, sha256 }));
    expect(code).toBe("native.load");
    expect(message).toContain("is damaged: the libthing.so inside");
    expect(fs.readdirSync(cacheFolder())).toEqual([]);
  });

  test("names the folder that cannot be written, and what to do", async () => {
    const taken = path.join(temporaryFolder(), "a-file");
    fs.writeFileSync(taken, "");
    process.env["XDG_CACHE_HOME"] = taken;
    const { code, message } = await failureOf(() => copyOutLibrary(file));
    expect(code).toBe("native.load");
    expect(message).toContain(`cannot be copied out into ${path.join(taken, "mference")}: `);
    expect(message).toContain("XDG_CACHE_HOME");
  });
});

describe("withCopies", () => {
  test("gives the files their names and takes them away afterwards, whatever happens", async () => {
    let seen = "";
    const { message } = await failureOf(() =>
      withCopies([file], async (folder) => {
        seen = folder;
        expect(fs.readdirSync(folder)).toEqual(["libthing.so"]);
        expect(Buffer.compare(fs.readFileSync(path.join(folder, file.name)), content)).toBe(0);
        throw new Error("no more");
      }),
    );
    expect(message).toBe("no more");
    expect(path.dirname(seen)).toBe(cacheFolder());
    expect(fs.readdirSync(cacheFolder())).toEqual([]);
  });

  test("a place that cannot be written", async () => {
    process.env["XDG_CACHE_HOME"] = file.path;
    const { code } = await failureOf(() => withCopies([file], async () => undefined));
    expect(code).toBe("install.io");
  });
});

test("the cache folder is the platform's unless an absolute one is named", () => {
  process.env["XDG_CACHE_HOME"] = "relative";
  const usual = process.platform === "darwin" ? "Library/Caches" : ".cache";
  expect(cacheFolder()).toBe(path.join(process.env["HOME"]!, usual, "mference"));
});

test("a checkout carries nothing; what is registered is carried", () => {
  expect(embedded()).toBeUndefined();
  registerEmbedded({ needs: "nothing", files: { cpu: [file] } });
  expect(embedded()?.files["cpu"]).toEqual([file]);
  registerEmbedded(undefined);
});
