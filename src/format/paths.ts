import { MferenceError } from "../util/errors.ts";

/**
 * The names of a package's files, and the rules for names that a manifest or a layout may contain.
 * A path that could leave the package, hide a reserved file or collide on a file system that ignores
 * case is refused before it is opened.
 */
export const MANIFEST_FILE = "manifest.json";
export const RECEIPT_FILE = "verified-install.json";
export const WEIGHTS_FILE = "model_weights.bin";
export const EXPERTS_FOLDER = "packed_experts";
export const LAYOUT_FILE = "packed_experts/layout.json";
export const TOKENIZER_FOLDER = "tokenizer";
export const CONFIG_FILE = "tokenizer/config.json";
export const TOKENIZER_FILE = "tokenizer/tokenizer.json";
export const TOKENIZER_CONFIG_FILE = "tokenizer/tokenizer_config.json";

const MIB = 1024 * 1024;

/** Largest accepted size of each metadata file, checked before it is read. */
export const METADATA_BYTES_MAX = {
  manifest: 4 * MIB,
  layout: 64 * MIB,
  receipt: 4 * MIB,
  sourceIndex: 4 * MIB,
  config: MIB,
  residentIndex: 16 * MIB,
} as const;

/** A file that travels verbatim from the checkpoint into `tokenizer/`. */
export interface Sidecar {
  readonly name: string;
  readonly bytesMax: number;
  /** `text` files make up the text side: both or none; `config` is always needed. */
  readonly need: "config" | "text" | "optional";
}

export const SIDECARS: readonly Sidecar[] = [
  { name: "config.json", bytesMax: MIB, need: "config" },
  { name: "tokenizer.json", bytesMax: 64 * MIB, need: "text" },
  { name: "tokenizer_config.json", bytesMax: 4 * MIB, need: "text" },
  { name: "special_tokens_map.json", bytesMax: MIB, need: "optional" },
  { name: "chat_template.jinja", bytesMax: 4 * MIB, need: "optional" },
  { name: "chat_template.json", bytesMax: 4 * MIB, need: "optional" },
];

/** The layer file of a layer, relative to the package. */
export function layerFile(layerIndex: number): string {
  return `${EXPERTS_FOLDER}/${layerFileName(layerIndex)}`;
}

/** The bare name of a layer file. */
export function layerFileName(layerIndex: number): string {
  return `layer_${String(layerIndex).padStart(2, "0")}.bin`;
}

/**
 * Checks the paths that a manifest lists.
 *
 * @throws MferenceError "format.path"
 */
export function checkPackagePaths(paths: readonly string[]): void {
  const folded = new Map<string, string>();
  for (const path of paths) {
    checkPackagePath(path);
    const key = path.normalize("NFC").toLowerCase();
    const other = folded.get(key);
    if (other !== undefined) {
      refuse(path, `is the same file as ${JSON.stringify(other)} where case is ignored`);
    }
    folded.set(key, path);
  }
  for (const [key, path] of folded) {
    const components = key.split("/");
    for (let depth = 1; depth < components.length; depth += 1) {
      const folder = components.slice(0, depth).join("/");
      if (folded.has(folder)) refuse(path, `lies below ${JSON.stringify(folder)}, which is a file`);
    }
  }
}

function checkPackagePath(path: string): void {
  if (path === "") refuse(path, "is empty");
  if (path.startsWith("/")) refuse(path, "is absolute");
  if (path.includes("\0") || path.includes("\\")) refuse(path, "holds a NUL or a backslash");
  if (path !== path.normalize("NFC")) refuse(path, "is not in Unicode normal form C");
  const components = path.split("/");
  if (components.some((part) => part === "" || part === "." || part === "..")) {
    refuse(path, "has an empty, . or .. component");
  }
  const first = components[0]?.toLowerCase();
  const isReserved = first === MANIFEST_FILE || first === RECEIPT_FILE;
  if (isReserved || path.toLowerCase() === TOKENIZER_FOLDER) refuse(path, "is a reserved name");
}

/**
 * Checks the file name of a layer in layout.json.
 *
 * @throws MferenceError "format.path"
 */
export function checkLayerFileName(name: string): void {
  checkPackagePath(name);
  if (name.includes("/")) refuse(name, "is not a bare file name");
  if (name.toLowerCase() === "layout.json") refuse(name, "is a reserved name");
}

function refuse(path: string, problem: string): never {
  throw new MferenceError("format.path", `the package path ${JSON.stringify(path)} ${problem}`);
}
