import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { listModels, recordUse, resolveModel } from "../../src/install/models.ts";
import { editJson, GOLDEN, temporaryFolder } from "../fixtures/checkpoints.ts";
import { packageOf } from "../fixtures/packages.ts";

/** A home with the named models installed. */
async function homeWith(...names: readonly string[]): Promise<string> {
  const home = temporaryFolder();
  fs.mkdirSync(path.join(home, "models"));
  for (const [index, name] of names.entries()) {
    const directory = path.join(home, "models", `${name}.gturbo`);
    fs.renameSync(await packageOf(), directory);
    fs.utimesSync(path.join(directory, "manifest.json"), 1000 - index, 1000 - index);
  }
  return home;
}

const resolve = (name: string | undefined, home: string) => {
  const { name: found, reason } = resolveModel(name, home);
  return [found, reason];
};

describe("listModels", () => {
  test("of a home that does not exist is empty", () => {
    expect(listModels(path.join(temporaryFolder(), "absent"))).toEqual([]);
  });

  test("tells installed from partial models", async () => {
    const home = await homeWith("a", "b", "c");
    const models = path.join(home, "models");
    fs.rmSync(path.join(models, "a.gturbo", "manifest.json"));
    editJson(
      path.join(models, "b.gturbo", "manifest.json"),
      (json) => (json["arch"].family = "other"),
    );
    fs.mkdirSync(path.join(models, "d.gturbo.partial"));
    fs.writeFileSync(path.join(models, "d.gturbo.partial", "x"), "12345");
    fs.writeFileSync(path.join(models, "d.gturbo.install.lock"), "");
    fs.mkdirSync(path.join(models, "unrelated"));
    const found = listModels(home);
    expect(found.map(({ name, status }) => [name, status])).toEqual([
      ["c", "installed"],
      ["a", "partial"],
      ["b", "partial"],
      ["d", "partial"],
    ]);
    expect(found[0]).toMatchObject({
      family: "gemma4",
      modelId: "unknown/snapshot",
      hasText: false,
    });
    expect(found[0]!.bytes).toBeGreaterThan(1_000_000);
    expect(found[1]!.reason).toContain("did not finish");
    expect(found[2]!.reason).toContain('"other"');
    expect(found[3]!.bytes).toBe(5);
  });
});

describe("resolveModel", () => {
  test("says how to get a model when there is none", () => {
    expect(() => resolveModel(undefined, temporaryFolder())).toThrow("mference install demo");
  });

  test("takes the only one, else the last used, else the newest", async () => {
    expect(resolve(undefined, await homeWith("a"))).toEqual(["a", "only"]);
    const home = await homeWith("a", "b", "c");
    expect(resolve(undefined, home)).toEqual(["a", "newest"]);
    recordUse(path.join(home, "models", "c.gturbo"), home);
    expect(resolve(undefined, home)).toEqual(["c", "last-used"]);
    await Bun.sleep(2);
    recordUse(path.join(home, "models", "b.gturbo"), home);
    expect(resolve(undefined, home)).toEqual(["b", "last-used"]);
    fs.rmSync(path.join(home, "models", "b.gturbo"), { recursive: true });
    expect(resolve(undefined, home)).toEqual(["c", "last-used"]);
  });

  test("survives a damaged state file and mends it", async () => {
    const home = await homeWith("a", "b");
    for (const text of ["{", '{"lastUsed":{"x":3}}', "[]", ""]) {
      fs.writeFileSync(path.join(home, "state.json"), text);
      expect(resolve(undefined, home)).toEqual(["a", "newest"]);
    }
    recordUse(path.join(home, "models", "b.gturbo"), home);
    expect(resolve(undefined, home)).toEqual(["b", "last-used"]);
  });

  test("finds a model by name, with or without the ending, and by folder", async () => {
    const home = await homeWith("a", "b");
    const directory = path.join(home, "models", "b.gturbo");
    expect(resolve("b", home)).toEqual(["b", "named"]);
    expect(resolve("b.gturbo", home)).toEqual(["b", "named"]);
    expect(resolve(directory, home)).toEqual(["b", "folder"]);
    expect(resolveModel(path.relative(process.cwd(), directory), home).directory).toBe(directory);
  });

  test.each([
    ["nobody", "model.unknown", "installed are a"],
    ["Maple", "model.unknown", '; "mference install maple" installs it'],
    ["/does/not/exist", "model.unknown", "no package folder"],
    [path.join(GOLDEN, "gemma4-a"), "model.unknown", "mference install --source"],
    [GOLDEN, "model.partial", "no manifest.json"],
    ["half", "model.partial", "cannot be used"],
  ])("refuses %s", async (name, code, sentence) => {
    const home = await homeWith("a");
    fs.mkdirSync(path.join(home, "models", "half.gturbo"));
    expect(() => resolveModel(name, home)).toThrow(sentence);
    expect(() => resolveModel(name, home)).toThrow(expect.objectContaining({ code }));
  });

  test("does not advise to remove a folder that is no package", () => {
    const folder = temporaryFolder();
    expect(() => resolveModel(folder, temporaryFolder())).not.toThrow(/remove|delete/);
  });

  test("says what is wrong with the only model instead of that there is none", async () => {
    const home = await homeWith("a");
    const manifest = path.join(home, "models", "a.gturbo", "manifest.json");
    fs.writeFileSync(manifest, "");
    expect(() => resolveModel(undefined, home)).toThrow(/"a" .*not valid JSON/);
    // An install that was killed is none, however far it came.
    fs.renameSync(path.dirname(manifest), `${path.dirname(manifest)}.partial`);
    expect(() => resolveModel(undefined, home)).toThrow(
      expect.objectContaining({ code: "model.none" }),
    );
  });

  test("remembering in a home that cannot be written is no failure", () => {
    const file = path.join(temporaryFolder(), "file");
    fs.writeFileSync(file, "");
    recordUse("/x", path.join(file, "home"));
  });
});
