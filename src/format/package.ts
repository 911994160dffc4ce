import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { hashDescriptor, sameDigest, sha256 } from "./digest.ts";
import {
  identityOf,
  openInside,
  readCapped,
  type FileIdentity,
  type OpenFile,
  type OpenOptions,
} from "./files.ts";
import { parseJson, type JsonValue } from "./json.ts";
import { parseLayout, type LayerLayout, type SubTensors } from "./layout.ts";
import {
  checkManifestStructure,
  denseLayerCount,
  parseManifest,
  type FileRecord,
  type Manifest,
} from "./manifest.ts";
import {
  CONFIG_FILE,
  EXPERTS_FOLDER,
  LAYOUT_FILE,
  MANIFEST_FILE,
  METADATA_BYTES_MAX,
  RECEIPT_FILE,
  SIDECARS,
  TOKENIZER_FOLDER,
  WEIGHTS_FILE,
} from "./paths.ts";
import { checkReceiptBinding, checkReceiptFiles, parseReceipt, type Receipt } from "./receipt.ts";
import { readResidentIndex, type ResidentEntry, type ResidentIndex } from "./resident.ts";

/**
 * Opening an installed package: everything is checked here, in one order, and what comes back is plain
 * data with absolute offsets that may travel to another thread. Common weights, layout, manifest and
 * text files are hashed at once; layer files are measured at once and hashed when `openLayer` first
 * touches them. Knows no family: the caller passes the rules of the manifest's family.
 */
export type Policy = "full-sha256" | "trusted-receipt";

/** What a family has to say about a package. */
export interface PackageRules {
  /** The name of the family. */
  readonly id: string;
  /** Checks architecture and quantization of the manifest. */
  checkManifest(manifest: Pick<Manifest, "arch" | "quant" | "flashHead">): void;
  /** Checks that config, manifest, resident tensors and experts fit together and are complete. */
  checkContents(contents: PackageContents): void;
}

/** The parts of a package that a family checks together. */
export interface PackageContents {
  readonly manifest: Pick<Manifest, "arch" | "flashHead">;
  readonly config: JsonValue;
  readonly resident: ReadonlyMap<string, ResidentTensor>;
  readonly layers: readonly LayerLayout[];
}

export interface OpenPackageOptions {
  readonly policy: Policy;
  /** The rules of a family by the name in the manifest; undefined is the manifest without a name. */
  readonly rulesOf: (family: string | undefined) => PackageRules;
  readonly signal?: AbortSignal;
}

/** A tensor of the common file; ranges are absolute in it. */
export interface ResidentTensor extends ResidentEntry {
  /** Width of the codes of a quantized matrix; absent otherwise. */
  readonly bits?: number;
  /** Values that share a scale; absent for tensors that are not quantized. */
  readonly groupSize?: number;
}

/** A file of the package that was checked. */
export interface CheckedFile {
  /** Absolute. */
  readonly path: string;
  readonly sizeBytes: number;
  readonly sha256: string;
  readonly identity: FileIdentity;
}

/** The experts of a layer; `subTensors` is absent and the file does not exist where a layer is dense. */
export interface PackageLayer {
  readonly index: number;
  /** Absolute. */
  readonly path: string;
  readonly sizeBytes: number;
  readonly sha256: string;
  readonly strideBytes: number;
  readonly expertCount: number;
  /** Absolute offset in the file by logical expert id. */
  readonly expertOffsets: readonly number[];
  readonly subTensors?: SubTensors;
}

/** The files of the text side. */
export interface TextFiles {
  readonly tokenizerPath: string;
  readonly tokenizerConfigPath: string;
  readonly specialTokensMapPath?: string;
  readonly chatTemplatePath?: string;
  readonly chatTemplateJsonPath?: string;
}

/** An opened package. */
export interface Package {
  /** Absolute, as the caller named it. */
  readonly directory: string;
  readonly policy: Policy;
  readonly family: string;
  readonly manifest: Manifest;
  /** The checkpoint's own config.json. */
  readonly config: JsonValue;
  readonly configPath: string;
  /** Absent when the package takes and gives token ids only. */
  readonly text?: TextFiles;
  /** A sentence for people about what the package lacks. */
  readonly notice?: string;
  readonly weights: CheckedFile & { readonly indexBytes: number; readonly residentBytes: number };
  readonly resident: ReadonlyMap<string, ResidentTensor>;
  readonly strideBytes: number;
  readonly expertCount: number;
  readonly layers: readonly PackageLayer[];
}

const SIZE_OPTIONS: OpenOptions = { missing: "install.missing", unsafe: "format.path" };

/**
 * Opens and checks a package.
 *
 * @throws MferenceError "model.partial" without a manifest, "model.unknown" without the folder,
 * "model.family" for an unknown family, "format.*" for what is malformed, "format.changed" for a file
 * whose size or digest is not the manifest's, "install.missing" for an absent one
 */
export async function openPackage(
  directory: string,
  options: OpenPackageOptions,
): Promise<Package> {
  const root = path.resolve(directory);
  const bytes = readManifestBytes(root);
  const record: FileRecord = { size: bytes.length, sha256: sha256(bytes) };
  const isTrusted = options.policy === "trusted-receipt";
  const receipt = isTrusted ? readReceipt(root) : undefined;
  if (receipt !== undefined) checkReceiptBinding(receipt, record.sha256, root);
  const manifest = parseManifest(bytes, path.join(root, MANIFEST_FILE));
  const rules = options.rulesOf(manifest.arch.family);
  rules.checkManifest(manifest);
  checkManifestStructure(manifest);
  if (receipt !== undefined) checkReceiptFiles(receipt, manifest, record);
  const { file: weights, index } = await checkWeights(root, manifest, options.signal);
  const layout = parseLayout(
    await readChecked(root, { path: LAYOUT_FILE, bytesMax: METADATA_BYTES_MAX.layout }, manifest),
    {
      strideBytes: manifest.expertStride,
      layerCount: manifest.numLayers,
      expertCount: manifest.expertsPerLayer,
      denseLayerCount: denseLayerCount(manifest),
    },
    path.join(root, LAYOUT_FILE),
  );
  const layers = layout.layers.map((layer) => measureLayer(root, layer, manifest));
  const { config, text } = await checkSidecars(root, manifest);
  const resident = residentTensors(index);
  rules.checkContents({ manifest, config, resident, layers: layout.layers });
  return {
    directory: root,
    policy: options.policy,
    family: rules.id,
    manifest,
    config,
    configPath: path.join(root, CONFIG_FILE),
    ...(text === undefined ? { notice: NO_TEXT_NOTICE } : { text }),
    weights: { ...weights, indexBytes: index.indexBytes, residentBytes: index.residentBytes },
    resident,
    strideBytes: manifest.expertStride,
    expertCount: manifest.expertsPerLayer,
    layers,
  };
}

/** Said about a package without a tokenizer. */
export const NO_TEXT_NOTICE = "this package has no tokenizer, so it takes and gives token ids only";

/**
 * The bytes of a package's manifest.
 *
 * @throws MferenceError "model.unknown" when the folder is absent, "model.partial" without a manifest
 */
export function readManifestBytes(root: string): Uint8Array {
  const status = fs.statSync(root, { throwIfNoEntry: false });
  if (status === undefined || !status.isDirectory()) {
    throw new MferenceError("model.unknown", `there is no package folder ${root}`);
  }
  if (fs.lstatSync(path.join(root, MANIFEST_FILE), { throwIfNoEntry: false }) === undefined) {
    throw new MferenceError(
      "model.partial",
      // Nobody is told to remove a folder that may hold anything: a mistyped path ends here too.
      `${root} has no manifest.json: it is no model package, or its install did not finish; install the model again, or name another folder`,
    );
  }
  const file = openInside(root, MANIFEST_FILE, { missing: "model.partial", unsafe: "format.path" });
  return closing(file, () => readCapped(file, METADATA_BYTES_MAX.manifest, "format.manifest"));
}

function readReceipt(root: string): Receipt {
  const file = openInside(root, RECEIPT_FILE, { missing: "format.receipt", unsafe: "format.path" });
  const bytes = closing(file, () => readCapped(file, METADATA_BYTES_MAX.receipt, "format.receipt"));
  return parseReceipt(bytes, path.join(root, RECEIPT_FILE));
}

async function checkWeights(
  root: string,
  manifest: Manifest,
  signal: AbortSignal | undefined,
): Promise<{ file: CheckedFile; index: ResidentIndex }> {
  const file = openInside(root, WEIGHTS_FILE, SIZE_OPTIONS);
  try {
    const record = recordOf(manifest, WEIGHTS_FILE);
    const identity = identityOf(file.descriptor);
    await checkDigest(file, record, signal);
    const { path: filePath, sizeBytes } = file;
    const checked = { path: filePath, sizeBytes, sha256: record.sha256, identity };
    return { file: checked, index: readResidentIndex(file) };
  } finally {
    fs.closeSync(file.descriptor);
  }
}

/** Reads a small declared file and checks its digest on the very bytes that are used. */
async function readChecked(
  root: string,
  wanted: { readonly path: string; readonly bytesMax: number },
  manifest: Manifest,
): Promise<Uint8Array> {
  const file = openInside(root, wanted.path, SIZE_OPTIONS);
  const record = recordOf(manifest, wanted.path);
  const bytes = closing(file, () => {
    checkSize(file, record);
    return readCapped(file, wanted.bytesMax, "format.changed");
  });
  compareDigest(file.path, sha256(bytes), record);
  return bytes;
}

async function checkSidecars(
  root: string,
  manifest: Manifest,
): Promise<{ config: JsonValue; text: TextFiles | undefined }> {
  let config: JsonValue | undefined;
  const found = new Map<string, string>();
  for (const sidecar of SIDECARS) {
    const relative = `${TOKENIZER_FOLDER}/${sidecar.name}`;
    if (manifest.files[relative] === undefined) continue;
    const bytes = await readChecked(root, { path: relative, bytesMax: sidecar.bytesMax }, manifest);
    const absolute = path.join(root, relative);
    found.set(sidecar.name, absolute);
    if (sidecar.need === "config")
      config = parseJson(bytes, { code: "format.config", what: absolute });
  }
  if (config === undefined) {
    throw new MferenceError(
      "format.manifest",
      `manifest.json lists no ${CONFIG_FILE}; it holds what the architecture fields leave out, so install the model again`,
    );
  }
  return { config, text: textFiles(found) };
}

function textFiles(found: ReadonlyMap<string, string>): TextFiles | undefined {
  const tokenizerPath = found.get("tokenizer.json");
  const tokenizerConfigPath = found.get("tokenizer_config.json");
  if (tokenizerPath === undefined || tokenizerConfigPath === undefined) return undefined;
  const optional = {
    specialTokensMapPath: found.get("special_tokens_map.json"),
    chatTemplatePath: found.get("chat_template.jinja"),
    chatTemplateJsonPath: found.get("chat_template.json"),
  };
  const present = Object.entries(optional).filter(([, value]) => value !== undefined);
  return { tokenizerPath, tokenizerConfigPath, ...Object.fromEntries(present) };
}

/** Checks that a layer file is there in full size; its digest waits for the first touch. */
function measureLayer(root: string, layer: LayerLayout, manifest: Manifest): PackageLayer {
  const relative = `${EXPERTS_FOLDER}/${layer.file}`;
  const place = {
    index: layer.index,
    path: path.join(root, relative),
    strideBytes: manifest.expertStride,
    expertCount: layer.expertOffsets.length,
    expertOffsets: layer.expertOffsets,
  };
  if (layer.subTensors === undefined) return { ...place, sizeBytes: 0, sha256: "" };
  const record = recordOf(manifest, relative);
  const expected = manifest.expertStride * layer.expertOffsets.length;
  if (record.size !== expected) {
    throw new MferenceError(
      "format.manifest",
      `manifest.json gives ${relative} ${record.size} bytes; ${layer.expertOffsets.length} experts of ${manifest.expertStride} are ${expected}`,
    );
  }
  const file = openInside(root, relative, SIZE_OPTIONS);
  closing(file, () => checkSize(file, record));
  return { ...place, sizeBytes: record.size, sha256: record.sha256, subTensors: layer.subTensors };
}

/** The tensors of an index with the widths of their codes. */
export function residentTensors(index: ResidentIndex): ReadonlyMap<string, ResidentTensor> {
  const tensors = new Map<string, ResidentTensor>();
  for (const entry of index.entries.values()) tensors.set(entry.name, withWidth(entry));
  return tensors;
}

/** Derives width and group of a quantized matrix from its sizes; the manifest's slots are a summary. */
function withWidth(entry: ResidentEntry): ResidentTensor {
  if (entry.scales === undefined) return entry;
  const values = entry.shape.reduce((left, right) => left * right, 1);
  const bits = (entry.bytes * 8) / values;
  const groupSize = values / (entry.scales.bytes / 2);
  return { ...entry, bits, groupSize };
}

/** Successful checks of layer files, so that a file is hashed once per process. */
const verifiedLayers = new WeakMap<Package, Map<number, Promise<FileIdentity>>>();

/**
 * Opens a layer file, verified as the policy asks: under "full-sha256" its digest is checked on the
 * first touch, through the descriptor that is returned. The caller closes it. A failure is not
 * remembered.
 *
 * @throws MferenceError "format.changed", "install.missing" or "format.path"
 */
export async function openLayer(
  model: Package,
  layerIndex: number,
  signal?: AbortSignal,
): Promise<OpenFile> {
  const layer = layerOf(model, layerIndex);
  const relative = `${EXPERTS_FOLDER}/${path.basename(layer.path)}`;
  const file = openInside(model.directory, relative, SIZE_OPTIONS);
  try {
    await verifyLayer(model, layerIndex, { file, signal });
    return file;
  } catch (error) {
    fs.closeSync(file.descriptor);
    throw error;
  }
}

/**
 * Verifies a layer file through a descriptor that the caller opened, as `openLayer` does.
 *
 * @throws MferenceError "format.changed"
 */
export async function verifyLayer(
  model: Package,
  layerIndex: number,
  options: { readonly file: OpenFile; readonly signal?: AbortSignal | undefined },
): Promise<void> {
  const layer = layerOf(model, layerIndex);
  checkSize(options.file, { size: layer.sizeBytes, sha256: layer.sha256 });
  if (model.policy === "trusted-receipt") return;
  const checks = verifiedLayers.get(model) ?? new Map<number, Promise<FileIdentity>>();
  verifiedLayers.set(model, checks);
  const identity = identityOf(options.file.descriptor);
  const earlier = await checks.get(layerIndex)?.catch(() => undefined);
  if (earlier !== undefined && isSameIdentity(earlier, identity)) return;
  const record = { size: layer.sizeBytes, sha256: layer.sha256 };
  const check = checkDigest(options.file, record, options.signal).then(() => identity);
  checks.set(layerIndex, check);
  try {
    await check;
  } catch (error) {
    checks.delete(layerIndex);
    throw error;
  }
}

function isSameIdentity(left: FileIdentity, right: FileIdentity): boolean {
  return (
    left.device === right.device &&
    left.inode === right.inode &&
    left.modifiedMs === right.modifiedMs
  );
}

function layerOf(model: Package, layerIndex: number): PackageLayer {
  const layer = model.layers[layerIndex];
  if (layer?.subTensors === undefined) {
    throw new MferenceError("engine.state", `layer ${layerIndex} has no routed experts`);
  }
  return layer;
}

function recordOf(manifest: Manifest, relative: string): FileRecord {
  const record = manifest.files[relative];
  if (record === undefined) {
    throw new MferenceError("format.manifest", `manifest.json: files has no entry ${relative}`);
  }
  return record;
}

async function checkDigest(
  file: OpenFile,
  record: FileRecord,
  signal: AbortSignal | undefined,
): Promise<void> {
  checkSize(file, record);
  compareDigest(file.path, await hashDescriptor(file.descriptor, file, { signal }), record);
}

function checkSize(file: OpenFile, record: FileRecord): void {
  if (file.sizeBytes === record.size) return;
  throw new MferenceError(
    "format.changed",
    `${file.path} has ${file.sizeBytes} bytes, but its package recorded ${record.size}: it was truncated or altered; install the model again`,
  );
}

function compareDigest(filePath: string, found: string, record: FileRecord): void {
  if (sameDigest(found, record.sha256)) return;
  throw new MferenceError(
    "format.changed",
    `${filePath} is damaged: its SHA-256 is ${found}, but its package recorded ${record.sha256.toLowerCase()}; install the model again`,
  );
}

function closing<Result>(file: OpenFile, use: () => Result): Result {
  try {
    return use();
  } finally {
    fs.closeSync(file.descriptor);
  }
}
