import fs from "node:fs";
import path from "node:path";
import { packageRulesOf } from "../families/index.ts";
import type { AnyFamily } from "../families/index.ts";
import type { CheckpointPin } from "../families/family.ts";
import { sha256 } from "../format/digest.ts";
import { openInside } from "../format/files.ts";
import { encodeLayout } from "../format/layout.ts";
import { encodeManifest, type FileRecord } from "../format/manifest.ts";
import { openPackage } from "../format/package.ts";
import {
  EXPERTS_FOLDER,
  LAYOUT_FILE,
  MANIFEST_FILE,
  RECEIPT_FILE,
  TOKENIZER_FOLDER,
} from "../format/paths.ts";
import type { Quantization } from "../format/quant.ts";
import { encodeReceipt, INSTALL_TOOL, type Provenance } from "../format/receipt.ts";
import { attempt, checkFolder, syncFolder, writeDurably, type InstallIo } from "./durable.ts";
import { HASH_THREADS, HashThreads } from "./hashing.ts";
import { checkPinned } from "./pinned.ts";
import type { InstallPlan, PlannedFile } from "./plan.ts";
import type { SourceSidecar } from "./source.ts";

/**
 * The second half of every install: the payload lies in the partial folder, and around it the package
 * is made, verified and moved to its place. Knows not where the payload came from.
 */
export interface Build {
  readonly plan: InstallPlan;
  readonly family: AnyFamily;
  readonly pin: CheckpointPin | undefined;
  /** SHA-256 of the index, or of the single file. */
  readonly sourceSha256: string;
  readonly quantization: Quantization;
  readonly sidecars: readonly SourceSidecar[];
  /** Recorded in the receipt of what was downloaded. */
  readonly provenance?: Provenance;
  /** Where the package is built. */
  readonly partial: string;
  /** Where it goes. */
  readonly directory: string;
  /** The same, as the user names it. */
  readonly addressed: string;
  readonly io: InstallIo;
  readonly signal: AbortSignal | undefined;
  readonly report: (progress: InstallProgress) => void;
}

/** What an install is doing. */
export interface InstallProgress {
  readonly phase: "reading" | "copying" | "downloading" | "hashing" | "finishing";
  readonly doneBytes: number;
  readonly totalBytes: number;
  /** Of `doneBytes`, what an earlier run had already brought. */
  readonly reusedBytes?: number;
}

/** Of a package, the outermost last. */
const FOLDERS = [EXPERTS_FOLDER, TOKENIZER_FOLDER, "."];
/** What manifests call a checkpoint that no pin knows. */
export const UNKNOWN_MODEL = "unknown/snapshot";
/** Left free for the file system when a pin names no reserve. */
const RESERVE_BYTES = 16 * 1024 * 1024;

/** The pin whose digest a checkpoint has. */
export function pinOf(source: {
  readonly family: AnyFamily;
  readonly sourceSha256: string;
}): CheckpointPin | undefined {
  return source.family.sources.find(({ sourceSha256 }) => sourceSha256 === source.sourceSha256);
}

/** Whether the text side comes along. */
export function hasText(sidecars: readonly SourceSidecar[]): boolean {
  return sidecars.some(({ name }) => name === "tokenizer.json");
}

/** Bytes of the finished package, and what is to stay free beside it. */
export function requiredBytes(
  build: Pick<Build, "plan" | "pin"> & { readonly sidecars: readonly SourceSidecar[] },
): number {
  let total = build.pin?.remote?.reserveBytes ?? RESERVE_BYTES;
  for (const { bytes } of build.plan.outputs) total += bytes;
  for (const { bytes } of build.sidecars) total += bytes.length;
  for (const piece of encodeLayout(build.plan.layout)) total += piece.length;
  return total;
}

/** The folder in which a package is built. */
export function partialOf(directory: string): string {
  return `${directory}.partial`;
}

/** Creates the folders of a package; those that are there stay. */
export function makePackageFolders({ partial, io }: Pick<Build, "partial" | "io">): void {
  for (const folder of [
    partial,
    `${partial}/${EXPERTS_FOLDER}`,
    `${partial}/${TOKENIZER_FOLDER}`,
  ]) {
    if (fs.lstatSync(folder, { throwIfNoEntry: false })?.isDirectory() === true) continue;
    attempt(folder, io, () => io.makeFolder(folder, 0o700));
  }
}

/**
 * Hashes the payload, writes everything else, and verifies the whole.
 *
 * @returns the bytes of the package
 * @throws MferenceError "install.io", "install.space", "install.hash", "format.*"
 */
export async function assemble(build: Build): Promise<number> {
  const { partial, plan, io } = build;
  const files = await hashOutputs(build);
  build.report({ phase: "finishing", doneBytes: 0, totalBytes: 0 });
  checkFolders(partial);
  files[LAYOUT_FILE] = writeLayout(build);
  for (const { name, bytes } of build.sidecars) {
    const relative = `${TOKENIZER_FOLDER}/${name}`;
    writeDurably(path.join(partial, relative), [bytes], io);
    files[relative] = { size: bytes.length, sha256: sha256(bytes) };
  }
  checkPinned(build.pin, files);
  const manifest = encodeManifest({
    modelID: build.pin?.modelId ?? UNKNOWN_MODEL,
    sourceSnapshotHash: `sha256:${build.sourceSha256}`,
    arch: plan.arch,
    quant: plan.quant,
    files,
    ...(plan.flashHead === undefined ? {} : { flashHead: plan.flashHead }),
    expertsPerLayer: plan.layout.expertCount,
    numLayers: plan.layout.layers.length,
    expertStride: plan.layout.strideBytes,
    bitWidthOverridesHonored: build.quantization.declaredCount ?? build.quantization.overrides.size,
  });
  writeDurably(path.join(partial, MANIFEST_FILE), [manifest], io);
  const record = { size: manifest.length, sha256: sha256(manifest) };
  const receipt = encodeReceipt({
    directory: build.addressed,
    manifest: record,
    files,
    tool: INSTALL_TOOL,
    provenance: build.provenance,
  });
  writeDurably(path.join(partial, RECEIPT_FILE), [receipt], io);
  for (const folder of FOLDERS) syncFolder(path.join(partial, folder), io);
  // What cannot be loaded must not be promoted.
  const signal = build.signal === undefined ? {} : { signal: build.signal };
  await openPackage(partial, { policy: "full-sha256", rulesOf: packageRulesOf, ...signal });
  return Object.values(files).reduce((total, { size }) => total + size, manifest.length);
}

/** Hashes what the disk holds now, not what was meant to be written. */
async function hashOutputs(build: Build): Promise<Record<string, FileRecord>> {
  const { outputs } = build.plan;
  const threads = new HashThreads();
  const digests = new Map<string, string>();
  let doneBytes = 0;
  const totalBytes = outputs.reduce((total, output) => total + output.bytes, 0);
  const onBytes = (bytes: number): void => {
    doneBytes += bytes;
    build.report({ phase: "hashing", doneBytes, totalBytes });
  };
  const pending = outputs.values();
  const hashSome = async (): Promise<void> => {
    for (const output of pending) {
      digests.set(output.path, await hashOutput(output, build, { threads, onBytes }));
    }
  };
  try {
    await Promise.all(Array.from({ length: HASH_THREADS }, hashSome));
  } finally {
    threads.close();
  }
  return Object.fromEntries(
    outputs.map(({ path: name, bytes: size }) => [name, { size, sha256: digests.get(name)! }]),
  );
}

async function hashOutput(
  { path: name, bytes }: PlannedFile,
  build: Build,
  { threads, onBytes }: { threads: HashThreads; onBytes: (bytes: number) => void },
): Promise<string> {
  const file = openInside(build.partial, name, { missing: "install.io", unsafe: "install.io" });
  try {
    return await threads.digest([{ ...file, offset: 0, bytes }], {
      signal: build.signal,
      onBytes,
    });
  } finally {
    fs.closeSync(file.descriptor);
  }
}

function writeLayout({ plan, partial, io }: Build): FileRecord {
  const hasher = new Bun.CryptoHasher("sha256");
  let size = 0;
  const encoder = new TextEncoder();
  const pieces = function* (): Generator<Uint8Array> {
    for (const text of encodeLayout(plan.layout)) {
      const piece = encoder.encode(text);
      hasher.update(piece);
      size += piece.length;
      yield piece;
    }
  };
  writeDurably(path.join(partial, LAYOUT_FILE), pieces(), io);
  return { size, sha256: hasher.digest("hex") };
}

function checkFolders(partial: string): void {
  for (const folder of FOLDERS.toReversed()) checkFolder(path.join(partial, folder));
}

/** Makes the finished folder the model. */
export function promote({ partial, directory, io }: Build): void {
  // Others on this machine may read what the user's umask lets them.
  const mode = 0o777 & ~process.umask();
  checkFolders(partial);
  for (const folder of FOLDERS.map((name) => path.join(partial, name))) {
    attempt(folder, io, () => io.setMode(folder, mode));
    syncFolder(folder, io);
  }
  attempt(directory, io, () => io.rename(partial, directory));
  syncFolder(path.dirname(directory), io);
}
