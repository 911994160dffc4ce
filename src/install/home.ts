import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { env } from "../util/env.ts";
import { MferenceError } from "../util/errors.ts";

/** Where installed models and the program's own state live. Creates nothing. */
export const PACKAGE_SUFFIX = ".gturbo";

/** The folder of everything this program keeps: `$MFERENCE_HOME`, else the platform's data folder. */
export function mferenceHome(): string {
  const own = env("MFERENCE_HOME");
  if (own !== undefined) return path.resolve(own);
  const user = env("HOME") ?? os.homedir();
  if (process.platform === "darwin") {
    return path.join(user, "Library", "Application Support", "mference");
  }
  const data = env("XDG_DATA_HOME");
  // The standard says to ignore a relative one.
  const isUsable = data !== undefined && path.isAbsolute(data);
  return path.join(isUsable ? data : path.join(user, ".local", "share"), "mference");
}

/** The folder of the installed models. */
export function modelsHome(): string {
  return path.join(mferenceHome(), "models");
}

/** A model's package folder. */
export function packageDirectory(name: string, models: string = modelsHome()): string {
  return path.join(models, `${name}${PACKAGE_SUFFIX}`);
}

const NAME = /^[\p{L}\p{N}][\p{L}\p{N}._+-]{0,99}$/u;

/**
 * Checks the name under which a model is to be installed and brings it into normal form.
 *
 * @throws MferenceError "usage.value"
 */
export function checkModelName(name: string): string {
  const normal = name.normalize("NFC");
  if (NAME.test(normal) && !normal.endsWith(PACKAGE_SUFFIX)) return normal;
  throw new MferenceError(
    "usage.value",
    `"${name}" cannot name a model: use up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or a digit and without "${PACKAGE_SUFFIX}" at the end`,
  );
}

/**
 * The model that is meant where nothing else is said and only one is there. Reads no manifest, so that
 * a start is quick; whether it can be used shows when it is loaded.
 */
export function onlyModel(
  models: string = modelsHome(),
): { readonly name: string; readonly directory: string } | undefined {
  const folders = fs.existsSync(models) ? fs.readdirSync(models) : [];
  const packages = folders.filter(
    (folder) =>
      folder.endsWith(PACKAGE_SUFFIX) && fs.existsSync(path.join(models, folder, "manifest.json")),
  );
  const [folder] = packages;
  if (folder === undefined || packages.length > 1) return undefined;
  const name = folder.slice(0, -PACKAGE_SUFFIX.length);
  return { name, directory: path.join(models, folder) };
}
