import fs from "node:fs";
import path from "node:path";
import { z } from "zod";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { formatBytes } from "../util/units.ts";
import { familyOfManifest } from "../families/index.ts";
import { parseJsonAs } from "../format/json.ts";
import { checkManifestStructure, parseManifest } from "../format/manifest.ts";
import { readManifestBytes } from "../format/package.ts";
import { MANIFEST_FILE, TOKENIZER_FILE } from "../format/paths.ts";
import { acquireLock, type FileLock } from "../native/lock.ts";
import { catalogue } from "./catalogue.ts";
import { bundledNames } from "./demo.ts";
import { makeFolders, replaceDurably, systemIo } from "./durable.ts";
import { mferenceHome, PACKAGE_SUFFIX } from "./home.ts";
import { readSaved, type SavedDownload } from "./resume.ts";

/**
 * Which models are installed, and which one a command means. Looks at manifests only; whether the bytes
 * behind them are right is for loading and verifying.
 */
export interface ModelEntry {
  readonly name: string;
  readonly directory: string;
  readonly status: "installed" | "partial";
  /** Why a model is not complete. */
  readonly reason?: string;
  readonly family?: string;
  readonly modelId?: string;
  readonly hasText?: boolean;
  /** Bytes that the manifest declares; of a partial model, what lies on the disk. */
  readonly bytes: number;
  readonly lastUsed?: Date;
  readonly installedAt?: Date;
}

/** A model that a command will use, and why it is this one. */
export interface ResolvedModel {
  readonly name: string;
  readonly directory: string;
  readonly reason: "named" | "folder" | "only" | "last-used" | "newest";
}

const PARTIAL_SUFFIX = `${PACKAGE_SUFFIX}.partial`;
const STATE_FILE = "state.json";
const STATE_BYTES_MAX = 1024 * 1024;
const stateSchema = z.object({ lastUsed: z.record(z.string(), z.string()) });

/** The models below a home, installed ones first, then by name. */
export function listModels(home: string = mferenceHome()): readonly ModelEntry[] {
  const models = path.join(home, "models");
  const lastUsed = readLastUsed(home);
  const entries: ModelEntry[] = [];
  for (const folder of listFolders(models)) {
    const directory = path.join(models, folder);
    if (folder.endsWith(PACKAGE_SUFFIX)) {
      const name = folder.slice(0, -PACKAGE_SUFFIX.length);
      entries.push(describe(name, directory, lastUsed[directory]));
    } else if (folder.endsWith(PARTIAL_SUFFIX)) {
      const name = folder.slice(0, -PARTIAL_SUFFIX.length);
      const reason = partialReason(path.join(models, `${name}${PACKAGE_SUFFIX}`), name);
      entries.push({ name, directory, status: "partial", reason, bytes: bytesBelow(directory) });
    }
  }
  return entries.toSorted(
    (left, right) =>
      Number(left.status === "partial") - Number(right.status === "partial") ||
      (left.name < right.name ? -1 : 1),
  );
}

/** How far an unfinished install has come, if its record can be read. */
function partialReason(directory: string, name: string): string {
  const lock = lockUnlessHeld(directory);
  try {
    const saved = readSaved(directory);
    if (lock === "held") return `its install is running now${portionOf(saved)}`;
    if (saved === undefined) return "its install did not finish";
    return `its install did not finish${portionOf(saved)}; it goes on with the command that began it`;
  } catch {
    return `its install did not finish, and its record is damaged; "mference discard ${name}" removes it`;
  } finally {
    if (lock !== "held") lock?.release();
  }
}

/** Undefined where this user may not lock. */
function lockUnlessHeld(directory: string): FileLock | "held" | undefined {
  try {
    return acquireLock(`${directory}.install.lock`);
  } catch (error) {
    return error instanceof MferenceError && error.code === "install.busy" ? "held" : undefined;
  }
}

function portionOf(saved: SavedDownload | undefined): string {
  if (saved === undefined) return "";
  const done = saved.completedRanges.reduce((total, { sourceBytes }) => total + sourceBytes, 0);
  return `, ${formatBytes(done)} of ${formatBytes(saved.totalSourceBytes)} downloaded`;
}

function listFolders(models: string): readonly string[] {
  try {
    return fs
      .readdirSync(models)
      .filter((name) =>
        fs.statSync(path.join(models, name), { throwIfNoEntry: false })?.isDirectory(),
      );
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw new MferenceError("install.io", `cannot list ${models}: ${sentenceOf(error)}`, {
      cause: error,
    });
  }
}

function describe(name: string, directory: string, lastUsed: string | undefined): ModelEntry {
  try {
    const manifest = parseManifest(
      readManifestBytes(directory),
      path.join(directory, MANIFEST_FILE),
    );
    const family = familyOfManifest(manifest.arch.family).id;
    checkManifestStructure(manifest);
    const bytes = Object.values(manifest.files).reduce((total, { size }) => total + size, 0);
    const date = lastUsed === undefined ? undefined : new Date(lastUsed);
    return {
      name,
      directory,
      status: "installed",
      family,
      modelId: manifest.modelID,
      hasText: manifest.files[TOKENIZER_FILE] !== undefined,
      bytes,
      installedAt: fs.statSync(path.join(directory, MANIFEST_FILE)).mtime,
      ...(date === undefined || Number.isNaN(date.getTime()) ? {} : { lastUsed: date }),
    };
  } catch (error) {
    if (!(error instanceof MferenceError)) throw error;
    return {
      name,
      directory,
      status: "partial",
      reason: error.message,
      bytes: bytesBelow(directory),
    };
  }
}

/** What lies in a folder now; an install may be moving it at this moment. */
function bytesBelow(folder: string): number {
  let bytes = 0;
  for (const relative of entriesBelow(folder)) {
    const status = fs.lstatSync(path.join(folder, relative), { throwIfNoEntry: false });
    // A file being filled is sparse; what counts is what it takes.
    if (status?.isFile() === true) bytes += Math.min(status.size, status.blocks * 512);
  }
  return bytes;
}

function entriesBelow(folder: string): readonly string[] {
  try {
    return fs.readdirSync(folder, { recursive: true }) as string[];
  } catch {
    return [];
  }
}

/**
 * The model a command means: the one named, the folder given, the only one installed, or the last one
 * used. The caller tells the user which it is when `reason` is none of the first two.
 *
 * @throws MferenceError "model.none", "model.unknown" or "model.partial"
 */
export function resolveModel(
  nameOrFolder: string | undefined,
  home: string = mferenceHome(),
): ResolvedModel {
  if (nameOrFolder !== undefined) return resolveNamed(nameOrFolder, home);
  const models = listModels(home);
  const installed = models.filter(({ status }) => status === "installed");
  const [first] = installed;
  if (first === undefined) {
    // One that is damaged is not none: its owner wants to know.
    const damaged = models.find(
      ({ directory }) =>
        directory.endsWith(PACKAGE_SUFFIX) && fs.existsSync(path.join(directory, MANIFEST_FILE)),
    );
    if (damaged !== undefined) throw cannotBeUsed(damaged.name, damaged.reason);
    throw new MferenceError(
      "model.none",
      `no model is installed in ${path.join(home, "models")}; install one with "mference install demo"`,
    );
  }
  if (installed.length === 1) return { ...place(first), reason: "only" };
  const used = latest(installed, ({ lastUsed }) => lastUsed);
  if (used !== undefined) return { ...place(used), reason: "last-used" };
  return {
    ...place(latest(installed, ({ installedAt }) => installedAt) ?? first),
    reason: "newest",
  };
}

function place({ name, directory }: ModelEntry): { name: string; directory: string } {
  return { name, directory };
}

function latest(
  models: readonly ModelEntry[],
  dateOf: (model: ModelEntry) => Date | undefined,
): ModelEntry | undefined {
  return models
    .filter((model) => dateOf(model) !== undefined)
    .toSorted((left, right) => dateOf(right)!.getTime() - dateOf(left)!.getTime())[0];
}

function resolveNamed(nameOrFolder: string, home: string): ResolvedModel {
  const isPath = nameOrFolder.startsWith(".") || nameOrFolder.includes(path.sep);
  if (!isPath) {
    const name = nameOrFolder.endsWith(PACKAGE_SUFFIX)
      ? nameOrFolder.slice(0, -PACKAGE_SUFFIX.length)
      : nameOrFolder;
    const models = listModels(home);
    const normal = name.normalize("NFC");
    const entry =
      models.find((model) => model.name === normal) ??
      models.find((model) => model.name.toLowerCase() === normal.toLowerCase());
    if (entry?.status === "installed") return { ...place(entry), reason: "named" };
    if (entry !== undefined) throw cannotBeUsed(name, entry.reason);
    if (!fs.existsSync(nameOrFolder)) throw unknownModel(nameOrFolder, models);
  }
  return resolveFolder(nameOrFolder);
}

function cannotBeUsed(name: string, reason: string | undefined): MferenceError {
  return new MferenceError("model.partial", `the model "${name}" cannot be used: ${reason}`);
}

function resolveFolder(folder: string): ResolvedModel {
  const directory = path.resolve(folder);
  if (
    fs.existsSync(path.join(directory, "config.json")) &&
    !fs.existsSync(path.join(directory, MANIFEST_FILE))
  ) {
    throw new MferenceError(
      "model.unknown",
      `${directory} is a checkpoint and not an installed package; install it with "mference install --source ${folder}"`,
    );
  }
  readManifestBytes(directory);
  const base = path.basename(directory);
  const name = base.endsWith(PACKAGE_SUFFIX) ? base.slice(0, -PACKAGE_SUFFIX.length) : base;
  return { name, directory, reason: "folder" };
}

function unknownModel(name: string, models: readonly ModelEntry[]): MferenceError {
  const names = models.filter(({ status }) => status === "installed").map((model) => model.name);
  const known = names.length === 0 ? "no model is installed" : `installed are ${names.join(", ")}`;
  const offers = [...bundledNames(), ...catalogue().map(({ pin }) => pin.name)];
  const offer = offers.find((each) => each.toLowerCase() === name.toLowerCase());
  const advice = offer === undefined ? "" : `; "mference install ${offer}" installs it`;
  return new MferenceError(
    "model.unknown",
    `no model or folder is called "${name}"; ${known}${advice}`,
  );
}

/** Remembers that a model was used just now. A home that cannot be written is no error. */
export function recordUse(directory: string, home: string = mferenceHome()): void {
  const lastUsed = { ...readLastUsed(home), [path.resolve(directory)]: new Date().toISOString() };
  const kept = Object.entries(lastUsed).filter(([folder]) => fs.existsSync(folder));
  const text = JSON.stringify({ lastUsed: Object.fromEntries(kept) }, null, 2);
  try {
    makeFolders(home, systemIo);
    replaceDurably(path.join(home, STATE_FILE), new TextEncoder().encode(`${text}\n`));
  } catch {
    // The choice of a default is a convenience; answering matters more.
  }
}

/** A damaged state file means only that nothing is remembered. */
function readLastUsed(home: string): Readonly<Record<string, string>> {
  const file = path.join(home, STATE_FILE);
  try {
    if (fs.statSync(file).size > STATE_BYTES_MAX) return {};
    return parseJsonAs(fs.readFileSync(file), stateSchema, { code: "format.json", what: file })
      .lastUsed;
  } catch {
    return {};
  }
}
