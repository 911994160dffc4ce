/** Libraries that a compiled program carries; building them has tests of its own. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { deviceLibrary, prepareLibraries } from "../../src/engine/libraries.ts";
import { type EmbeddedFile, registerEmbedded } from "../../src/util/embedded.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";

const NAMES = ["XDG_CACHE_HOME", "MFERENCE_LIBRARY", "MFERENCE_TOKENIZER"] as const;
const given = NAMES.map((name) => [name, process.env[name]] as const);

let folder = "";
/** A library as a compiled program carries it; that it is none does not matter before it is loaded. */
function carried(name: string): EmbeddedFile {
  const file = path.join(folder, name);
  fs.writeFileSync(file, name);
  const sha256 = new Bun.CryptoHasher("sha256").update(name).digest("hex");
  return { name, path: file, sizeBytes: name.length, sha256 };
}

beforeEach(() => {
  folder = temporaryFolder();
  for (const name of NAMES) delete process.env[name];
  process.env["XDG_CACHE_HOME"] = path.join(folder, "cache");
});
afterEach(() => {
  registerEmbedded(undefined);
  for (const [name, value] of given) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
});

describe("a program that carries its libraries", () => {
  test("copies them out and builds nothing", async () => {
    const files = { cpu: [carried("libdevice.so")], tokenizer: [carried("libtext.so")] };
    registerEmbedded({ needs: "nothing", files });
    const { library, tokenizerLibrary, notices } = await prepareLibraries({ device: "cpu" });
    expect(fs.readFileSync(library, "utf8")).toBe("libdevice.so");
    expect(fs.readFileSync(tokenizerLibrary!, "utf8")).toBe("libtext.so");
    expect(path.dirname(library)).toBe(path.join(folder, "cache/mference"));
    expect(notices).toEqual([]);
  });

  test("without a tokenizer library says so once, unless the script is asked for", async () => {
    registerEmbedded({ needs: "nothing", files: { cpu: [carried("libdevice.so")] } });
    const { tokenizerLibrary, notices } = await prepareLibraries({ device: "cpu" });
    expect(tokenizerLibrary).toBeUndefined();
    expect(notices).toEqual([
      "this program was built without the tokenizer library; text runs on the slower tokenizer",
    ]);
    process.env["MFERENCE_TOKENIZER"] = "script";
    expect((await prepareLibraries({ device: "cpu" })).notices).toEqual([]);
    process.env["MFERENCE_TOKENIZER"] = "native";
    const { code } = await failureOf(() => prepareLibraries({ device: "cpu" }));
    expect(code).toBe("native.build");
  });

  test("refuses a device that it does not carry, and takes a library named by hand", async () => {
    registerEmbedded({ needs: "nothing", files: { cpu: [carried("libdevice.so")] } });
    const { code, message } = await failureOf(() => deviceLibrary("metal"));
    expect(code).toBe("native.load");
    expect(message).toContain("without the metal device: use --device cpu");
    process.env["MFERENCE_LIBRARY"] = "/some/lib.so";
    expect(await deviceLibrary("metal")).toBe("/some/lib.so");
  });
});
