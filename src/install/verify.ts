import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { familyOfManifest, packageRulesOf } from "../families/index.ts";
import { sha256 } from "../format/digest.ts";
import { openInside, readCapped } from "../format/files.ts";
import { openLayer, openPackage, readManifestBytes, type Package } from "../format/package.ts";
import {
  LAYOUT_FILE,
  MANIFEST_FILE,
  METADATA_BYTES_MAX,
  RECEIPT_FILE,
  TOKENIZER_FOLDER,
} from "../format/paths.ts";
import {
  carriedProvenance,
  encodeReceipt,
  parseReceipt,
  VERIFY_TOOL,
  type ReceiptContent,
} from "../format/receipt.ts";
import { acquireLock, type FileLock } from "../native/lock.ts";
import { checkCancelled } from "./copy.ts";
import { pinOf } from "./assemble.ts";
import { replaceDurably, type InstallIo } from "./durable.ts";
import { checkPinned } from "./pinned.ts";

/**
 * Verifying an installed package: the checks of loading, then, when full, the digest of every layer
 * file and a fresh receipt. Never repairs anything.
 */
export interface VerifyOptions {
  /** Also hash the expert files and write a receipt. */
  readonly full: boolean;
  readonly onProgress?: (progress: {
    readonly doneBytes: number;
    readonly totalBytes: number;
  }) => void;
  readonly signal?: AbortSignal;
  /** Replaced by tests. */
  readonly lock?: typeof acquireLock;
  /** Replaced by tests. */
  readonly io?: InstallIo;
}

export interface Verified {
  readonly directory: string;
  readonly fileCount: number;
  /** Bytes of all declared files. */
  readonly bytes: number;
  /** Absent unless the verification was full and the package can be written. */
  readonly receiptPath?: string;
  /** Paths in the folder that no manifest entry explains; harmless, but worth a sentence. */
  readonly unexpected: readonly string[];
  readonly notice?: string;
}

const SCAN_DEPTH_MAX = 16;
const SCAN_ENTRIES_MAX = 100_000;

/**
 * Verifies a package.
 *
 * @throws MferenceError as `openPackage` does, "install.busy" while it is being installed or verified
 */
export async function verifyPackage(directory: string, options: VerifyOptions): Promise<Verified> {
  const root = path.resolve(directory);
  readManifestBytes(root);
  const lock = lockPackage(root, options.lock ?? acquireLock);
  try {
    return await verifyLocked(root, { ...options, writesReceipt: lock !== undefined });
  } catch (error) {
    if (!(error instanceof MferenceError)) checkCancelled(options.signal);
    throw error;
  } finally {
    lock?.release();
  }
}

/**
 * Two spellings of a package share one lock. A package that this user may only read has none: its bytes
 * can be verified all the same, there is only no receipt to write.
 */
function lockPackage(root: string, acquire: typeof acquireLock): FileLock | undefined {
  try {
    return acquire(`${fs.realpathSync(root)}.install.lock`);
  } catch (error) {
    const cause =
      error instanceof MferenceError ? (error.cause as NodeJS.ErrnoException) : undefined;
    if (["EROFS", "EACCES", "EPERM"].includes(cause?.code ?? "")) return undefined;
    throw error;
  }
}

async function verifyLocked(
  root: string,
  options: VerifyOptions & { readonly writesReceipt: boolean },
): Promise<Verified> {
  const signal = options.signal === undefined ? {} : { signal: options.signal };
  const model = await openPackage(root, {
    policy: "full-sha256",
    rulesOf: packageRulesOf,
    ...signal,
  });
  const files = Object.entries(model.manifest.files);
  const result = {
    directory: root,
    fileCount: files.length + 1,
    bytes: files.reduce((total, [, { size }]) => total + size, 0),
    unexpected: unexpectedPaths(root, new Set(files.map(([file]) => file))),
    ...(model.notice === undefined ? {} : { notice: model.notice }),
  };
  checkUnread(model);
  checkPinned(pinOfPackage(model), model.manifest.files);
  if (!options.full) return result;
  await hashLayers(model, options);
  if (!options.writesReceipt) {
    const notices = [model.notice, `${root} cannot be written, so there is no new receipt`];
    return { ...result, notice: notices.filter((notice) => notice !== undefined).join("\n") };
  }
  return { ...result, receiptPath: writeReceipt(model, options.io) };
}

/** The checkpoint that a package says it was made of. */
function pinOfPackage({ manifest }: Package): ReturnType<typeof pinOf> {
  const family = familyOfManifest(manifest.arch.family);
  return pinOf({
    family,
    sourceSha256: manifest.sourceSnapshotHash?.slice("sha256:".length) ?? "",
  });
}

/** Files that loading does not read must still have their recorded digest; there should be none. */
function checkUnread(model: Package): void {
  const layers = new Set(
    model.layers.map(({ path: file }) => path.relative(model.directory, file)),
  );
  for (const [relative, record] of Object.entries(model.manifest.files)) {
    const isRead =
      layers.has(relative) ||
      relative.startsWith(`${TOKENIZER_FOLDER}/`) ||
      relative === LAYOUT_FILE ||
      path.join(model.directory, relative) === model.weights.path;
    if (isRead) continue;
    throw new MferenceError(
      "format.manifest",
      `manifest.json lists ${relative} (${record.size} bytes), which is no file of a package`,
    );
  }
}

async function hashLayers(model: Package, options: VerifyOptions): Promise<void> {
  const layers = model.layers.filter(({ subTensors }) => subTensors !== undefined);
  const totalBytes = layers.reduce((total, { sizeBytes }) => total + sizeBytes, 0);
  let doneBytes = 0;
  for (const layer of layers) {
    const file = await openLayer(model, layer.index, options.signal);
    fs.closeSync(file.descriptor);
    doneBytes += layer.sizeBytes;
    options.onProgress?.({ doneBytes, totalBytes });
  }
}

function writeReceipt(model: Package, io: InstallIo | undefined): string {
  const bytes = readManifestBytes(model.directory);
  const measured: ReceiptContent = {
    directory: model.directory,
    manifest: { size: bytes.length, sha256: sha256(bytes) },
    files: model.manifest.files,
    tool: VERIFY_TOOL,
  };
  const provenance = oldProvenance(model.directory, measured);
  const receiptPath = path.join(model.directory, RECEIPT_FILE);
  replaceDurably(receiptPath, encodeReceipt({ ...measured, provenance }), io);
  return receiptPath;
}

/** Whatever is wrong with an old receipt only means that its provenance is not kept. */
function oldProvenance(
  root: string,
  measured: ReceiptContent,
): ReturnType<typeof carriedProvenance> {
  try {
    const file = openInside(root, RECEIPT_FILE, {
      missing: "format.receipt",
      unsafe: "format.path",
    });
    try {
      const bytes = readCapped(file, METADATA_BYTES_MAX.receipt, "format.receipt");
      return carriedProvenance(parseReceipt(bytes, file.path), measured);
    } finally {
      fs.closeSync(file.descriptor);
    }
  } catch (error) {
    if (error instanceof MferenceError) return undefined;
    throw error;
  }
}

/** Entries below the package that nothing declares, in sorted order. */
function unexpectedPaths(root: string, declared: ReadonlySet<string>): readonly string[] {
  const folders = new Set([...declared].flatMap(ancestors));
  const known = new Set([...declared, ...folders, MANIFEST_FILE, RECEIPT_FILE, TOKENIZER_FOLDER]);
  const unexpected: string[] = [];
  let seen = 0;
  const scan = (relative: string, depth: number): void => {
    for (const entry of listFolder(path.join(root, relative))) {
      seen += 1;
      if (seen > SCAN_ENTRIES_MAX) return;
      const child = relative === "" ? entry.name : `${relative}/${entry.name}`;
      if (entry.name === ".DS_Store" || relative === TOKENIZER_FOLDER) continue;
      if (!known.has(child)) unexpected.push(child);
      else if (entry.isDirectory() && depth < SCAN_DEPTH_MAX) scan(child, depth + 1);
    }
  };
  scan("", 0);
  return unexpected.toSorted();
}

/** A folder's entries; one that vanished between two looks is empty. */
function listFolder(folder: string): readonly fs.Dirent[] {
  try {
    return fs.readdirSync(folder, { withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}

function ancestors(file: string): readonly string[] {
  const components = file.split("/");
  return components.slice(1).map((_, depth) => components.slice(0, depth + 1).join("/"));
}
