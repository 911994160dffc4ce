import { describe, expect, test } from "bun:test";
import {
  carriedProvenance,
  checkReceiptBinding,
  encodeReceipt,
  INSTALL_TOOL,
  parseReceipt,
  VERIFY_TOOL,
  type Receipt,
  type ReceiptContent,
} from "../../src/format/receipt.ts";

const record = (digit: string, size = 3) => ({ size, sha256: digit.repeat(64) });
const content: ReceiptContent = {
  directory: "/models/x.gturbo",
  manifest: record("a"),
  files: { "model_weights.bin": record("b") },
  tool: INSTALL_TOOL,
  provenance: { sourceRepoID: "owner/name", sourceRevision: "0".repeat(40) },
};
const parse = (bytes: Uint8Array) => parseReceipt(bytes, "the receipt");
const receipt = parse(encodeReceipt(content));

describe("receipts", () => {
  test("round trip", () => {
    expect(receipt.files).toEqual({ ...content.files, "manifest.json": content.manifest });
    expect(receipt.verificationTimestamp).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
    expect(receipt.sourceRepoID).toBe("owner/name");
  });

  test.each<[string, (json: Record<string, unknown>) => void, string]>([
    ["another schema", (json) => (json["schemaVersion"] = 2), "schemaVersion"],
    ["a short digest", (json) => (json["manifestSha256"] = "abc"), "64 hexadecimal"],
    ["no files", (json) => delete json["files"], "files"],
  ])("with %s are refused", (_, damage, sentence) => {
    const json = JSON.parse(new TextDecoder().decode(encodeReceipt(content)));
    damage(json);
    expect(() => parse(new TextEncoder().encode(JSON.stringify(json)))).toThrow(sentence);
  });

  test("bind a manifest and a folder", () => {
    checkReceiptBinding(receipt, "A".repeat(64), "/models/x.gturbo");
    expect(() => checkReceiptBinding(receipt, "c".repeat(64), "/models/x.gturbo")).toThrow(
      "manifest SHA mismatch",
    );
    expect(() => checkReceiptBinding(receipt, "a".repeat(64), "/models/y.gturbo")).toThrow(
      "model directory mismatch",
    );
  });
});

describe("carriedProvenance", () => {
  test.each([INSTALL_TOOL, VERIFY_TOOL])("keeps that of %s", (tool) => {
    expect(carriedProvenance({ ...receipt, toolVersion: tool }, content)).toEqual(
      content.provenance,
    );
  });

  test.each<[string, Partial<Receipt>]>([
    ["no repository", { sourceRepoID: undefined }],
    ["an empty revision", { sourceRevision: "" }],
    ["another tool", { toolVersion: "MferenceRepack 2" }],
    ["another folder", { modelDirectoryPath: "/elsewhere" }],
    ["another manifest", { manifestSha256: "d".repeat(64) }],
    ["a missing file", { files: { "manifest.json": content.manifest } }],
    ["another file", { files: { ...receipt.files, extra: record("e") } }],
    ["another digest", { files: { ...receipt.files, "model_weights.bin": record("e") } }],
    ["another size", { files: { ...receipt.files, "model_weights.bin": record("b", 4) } }],
  ])("drops it for %s", (_, change) => {
    expect(carriedProvenance({ ...receipt, ...change }, content)).toBeUndefined();
  });
});
