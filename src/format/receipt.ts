import { z } from "zod";
import { MferenceError } from "../util/errors.ts";
import { isSha256, sameDigest } from "./digest.ts";
import { parseJsonAs } from "./json.ts";
import { filesSchema, type FileRecord, type Manifest } from "./manifest.ts";
import { MANIFEST_FILE } from "./paths.ts";

/**
 * `verified-install.json`: a record that a tool once hashed these bytes at this path. It is a hint that
 * spares hashing experts again, and no proof of origin: whoever can write the folder can write it.
 */
const receiptSchema = z.object({
  schemaVersion: z.literal(1),
  manifestSha256: z.string().refine(isSha256, "expected 64 hexadecimal digits"),
  modelDirectoryPath: z.string(),
  sourceRepoID: z.string().optional(),
  sourceRevision: z.string().optional(),
  verificationTimestamp: z.string(),
  toolVersion: z.string(),
  files: filesSchema,
});
export type Receipt = z.output<typeof receiptSchema>;

/** Literals that other tools compare; their spelling is part of the format. */
export const INSTALL_TOOL = "MferenceRepack";
export const VERIFY_TOOL = "MferenceRepack verify-install";

/** Where a package came from, as a receipt tells. */
export interface Provenance {
  readonly sourceRepoID: string;
  readonly sourceRevision: string;
}

/** What a receipt states. */
export interface ReceiptContent {
  /** Absolute and lexically normalised. */
  readonly directory: string;
  readonly manifest: FileRecord;
  readonly files: Readonly<Record<string, FileRecord>>;
  readonly tool: typeof INSTALL_TOOL | typeof VERIFY_TOOL;
  readonly provenance?: Provenance | undefined;
}

/** The bytes of a receipt, dated now. */
export function encodeReceipt(content: ReceiptContent): Uint8Array {
  const receipt: Receipt = {
    schemaVersion: 1,
    manifestSha256: content.manifest.sha256,
    modelDirectoryPath: content.directory,
    ...content.provenance,
    verificationTimestamp: `${new Date().toISOString().slice(0, 19)}Z`,
    toolVersion: content.tool,
    files: { ...content.files, [MANIFEST_FILE]: content.manifest },
  };
  return new TextEncoder().encode(JSON.stringify(receipt, null, 2));
}

/**
 * Parses a receipt.
 *
 * @throws MferenceError "format.receipt"
 */
export function parseReceipt(bytes: Uint8Array, what: string): Receipt {
  return parseJsonAs(bytes, receiptSchema, { code: "format.receipt", what });
}

/**
 * Checks that a receipt is about this manifest and this folder; nothing in the manifest may be
 * trusted before.
 *
 * @throws MferenceError "format.receipt"
 */
export function checkReceiptBinding(
  receipt: Receipt,
  manifestSha256: string,
  directory: string,
): void {
  if (!sameDigest(receipt.manifestSha256, manifestSha256)) {
    fail(`manifest SHA mismatch: it records ${receipt.manifestSha256}, found ${manifestSha256}`);
  }
  if (receipt.modelDirectoryPath !== directory) {
    fail(`model directory mismatch: it is about ${receipt.modelDirectoryPath}, not ${directory}`);
  }
}

/**
 * Checks that a receipt lists exactly the manifest's files with its sizes and digests.
 *
 * @throws MferenceError "format.receipt"
 */
export function checkReceiptFiles(receipt: Receipt, manifest: Manifest, record: FileRecord): void {
  const expected = new Map(Object.entries({ ...manifest.files, [MANIFEST_FILE]: record }));
  const missing = [...expected.keys()].filter((path) => receipt.files[path] === undefined);
  const extra = Object.keys(receipt.files).filter((path) => !expected.has(path));
  if (missing.length > 0 || extra.length > 0) {
    fail(`file set mismatch: missing ${list(missing)}, extra ${list(extra)}`);
  }
  for (const [path, { size, sha256 }] of expected) {
    const found = receipt.files[path];
    if (found?.size !== size || !sameDigest(found.sha256, sha256)) {
      fail(`it records ${path} with another size or digest than the manifest`);
    }
  }
}

/**
 * The provenance that a new receipt may keep: only that of a receipt which agrees with what was just
 * measured in every respect.
 */
export function carriedProvenance(
  old: Receipt,
  measured: Pick<ReceiptContent, "directory" | "manifest" | "files">,
): Provenance | undefined {
  const { sourceRepoID, sourceRevision } = old;
  if (sourceRepoID === undefined || sourceRepoID === "") return undefined;
  if (sourceRevision === undefined || sourceRevision === "") return undefined;
  if (old.toolVersion !== INSTALL_TOOL && old.toolVersion !== VERIFY_TOOL) return undefined;
  if (old.modelDirectoryPath !== measured.directory) return undefined;
  if (!sameDigest(old.manifestSha256, measured.manifest.sha256)) return undefined;
  const expected = Object.entries({ ...measured.files, [MANIFEST_FILE]: measured.manifest });
  const isSame =
    expected.length === Object.keys(old.files).length &&
    expected.every(([path, { size, sha256 }]) => {
      const found = old.files[path];
      return found?.size === size && sameDigest(found.sha256, sha256);
    });
  return isSame ? { sourceRepoID, sourceRevision } : undefined;
}

function list(paths: readonly string[]): string {
  return paths.length === 0 ? "none" : paths.slice(0, 5).join(", ");
}

function fail(problem: string): never {
  throw new MferenceError(
    "format.receipt",
    `verified-install.json cannot be trusted: ${problem}; verify the package to write a new one`,
  );
}
