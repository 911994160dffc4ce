import { describe, expect, test } from "bun:test";
import { checkLayerFileName, checkPackagePaths, layerFile } from "../../src/format/paths.ts";

describe("checkPackagePaths", () => {
  test("accepts the files of a package", () => {
    checkPackagePaths([
      "model_weights.bin",
      "packed_experts/layout.json",
      layerFile(7),
      "tokenizer/config.json",
    ]);
    expect(layerFile(7)).toBe("packed_experts/layer_07.bin");
  });

  test.each([
    [["/etc/passwd"], "absolute"],
    [["../x"], ". or .."],
    [["a/../b"], ". or .."],
    [["a//b"], "empty"],
    [["a/"], "empty"],
    [["./a"], ". or .."],
    [[""], "empty"],
    [["a\0b"], "NUL"],
    [["a\\b"], "backslash"],
    [["cafe\u0301"], "normal form"],
    [["manifest.json"], "reserved"],
    [["Manifest.JSON/x"], "reserved"],
    [["verified-install.json"], "reserved"],
    [["tokenizer"], "reserved"],
    [["a", "A"], "where case is ignored"],
    [["a", "a/b"], "which is a file"],
    [["x/y/z", "X"], "which is a file"],
  ])("refuses %j", (paths, sentence) => {
    expect(() => checkPackagePaths(paths)).toThrow(sentence);
  });
});

describe("checkLayerFileName", () => {
  test.each(["a/b", "..", "layout.json", "LAYOUT.json", "", "manifest.json"])(
    "refuses %j",
    (name) => {
      expect(() => checkLayerFileName(name)).toThrow(
        expect.objectContaining({ code: "format.path" }),
      );
    },
  );
});
