import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { checkShardsUnchanged, openCheckpoint } from "../../src/install/source.ts";
import { failureOf } from "../fixtures/failures.ts";
import { copyOfGolden, DEMO, editJson } from "../fixtures/checkpoints.ts";

const INDEX = "model.safetensors.index.json";

describe("openCheckpoint", () => {
  test("hashes the single file of the demo and finds its text files", async () => {
    const checkpoint = await openCheckpoint(DEMO);
    checkpoint.close();
    expect(checkpoint.sourceSha256).toBe(
      "abbfd093acebd69a275a51ea5d6bdf707918e4a55f4d840d430b9fe5e2ca6089",
    );
    expect(checkpoint.sidecars.map(({ name }) => name)).toEqual([
      "config.json",
      "tokenizer.json",
      "tokenizer_config.json",
      "chat_template.jinja",
    ]);
    expect(checkpoint.quantization.overrides.size).toBe(8);
  });

  test("hashes the index where there is one", async () => {
    const folder = copyOfGolden("gemma4-a");
    const checkpoint = await openCheckpoint(folder);
    checkpoint.close();
    expect(checkpoint.sourceSha256).toBe(sha256(fs.readFileSync(path.join(folder, INDEX))));
  });

  const NORM = "language_model.model.norm.weight";
  test.each<[string, (weightMap: Record<string, string>) => unknown, string]>([
    [
      "a tensor that the shard lacks",
      (map) => (map["x"] = "model.safetensors"),
      "lacks the tensor x",
    ],
    ["a tensor that it does not list", (map) => delete map[NORM], "lists 267"],
    ["a shard outside the folder", (map) => (map[NORM] = "../model.safetensors"), "bare file name"],
    ["an absolute shard", (map) => (map[NORM] = "/etc/passwd.safetensors"), "bare file name"],
    ["a shard with a NUL", (map) => (map[NORM] = "a\0.safetensors"), "bare file name"],
    ["a shard of another kind", (map) => (map[NORM] = "model.bin"), "bare file name"],
    ["a shard that is not there", (map) => (map[NORM] = "%2e%2e.safetensors"), "is missing"],
  ])("refuses an index with %s", async (_, damage, sentence) => {
    const folder = copyOfGolden("gemma4-a");
    editJson(path.join(folder, INDEX), (json) =>
      damage(json["weight_map"] as Record<string, string>),
    );
    const failure = await failureOf(() => openCheckpoint(folder));
    expect(failure.message).toContain(sentence);
    expect(failure.code).toBe("install.source");
  });

  test("refuses a tensor in two shards", async () => {
    const folder = copyOfGolden("gemma4-a");
    fs.copyFileSync(path.join(folder, "model.safetensors"), path.join(folder, "b.safetensors"));
    editJson(path.join(folder, INDEX), (json) => (json["weight_map"]["x"] = "b.safetensors"));
    expect((await failureOf(() => openCheckpoint(folder))).message).toContain("is in both");
  });

  test("refuses a shard that is a pipe, without waiting for it", async () => {
    const folder = copyOfGolden("gemma4-a");
    fs.rmSync(path.join(folder, "model.safetensors"));
    Bun.spawnSync(["mkfifo", path.join(folder, "model.safetensors")]);
    expect((await failureOf(() => openCheckpoint(folder))).message).toContain("not a regular file");
  });

  test("notices a shard that is written to", async () => {
    const folder = copyOfGolden("gemma4-a");
    const checkpoint = await openCheckpoint(folder);
    checkShardsUnchanged(checkpoint);
    fs.appendFileSync(path.join(folder, "model.safetensors"), "x");
    expect(() => checkShardsUnchanged(checkpoint)).toThrow("written to");
    checkpoint.close();
  });
});
