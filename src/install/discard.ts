import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { acquireLock } from "../native/lock.ts";
import { partialOf } from "./assemble.ts";
import { remove, systemIo, type InstallIo } from "./durable.ts";
import { checkModelName, modelsHome, PACKAGE_SUFFIX, packageDirectory } from "./home.ts";
import { checkPathTypes } from "./install.ts";
import { removeSaved, resumePath } from "./resume.ts";

/** Gives up an unfinished install: its files and its record go, and nothing else does. */
export function discardPartial(
  name: string,
  models: string = modelsHome(),
  io: InstallIo = systemIo,
): string {
  const given = checkModelName(name);
  if (!fs.existsSync(models)) throw nothing(name, models);
  const checked = unfinishedName(given, models);
  const directory = packageDirectory(checked, fs.realpathSync(models));
  if (!isThere(directory)) throw nothing(name, models);
  const lock = acquireLock(`${directory}.install.lock`);
  try {
    checkPathTypes(directory);
    if (!isThere(directory)) throw nothing(name, models);
    // A record without its files is nothing; files without their record are not trusted either.
    removeSaved(directory, io);
    remove(partialOf(directory), io);
    return partialOf(packageDirectory(checked, path.resolve(models)));
  } finally {
    lock.release();
  }
}

/** The name as it was written when the install began. */
function unfinishedName(name: string, models: string): string {
  const suffixes = [partialOf(PACKAGE_SUFFIX), resumePath(PACKAGE_SUFFIX)];
  const names = fs.readdirSync(models).flatMap((entry) => {
    const suffix = suffixes.find((end) => entry.endsWith(end));
    return suffix === undefined ? [] : [entry.slice(0, -suffix.length)];
  });
  const isSame = (other: string): boolean => other.toLowerCase() === name.toLowerCase();
  return names.includes(name) ? name : (names.find(isSame) ?? name);
}

function isThere(directory: string): boolean {
  return [partialOf(directory), resumePath(directory)].some(
    (place) => fs.lstatSync(place, { throwIfNoEntry: false }) !== undefined,
  );
}

function nothing(name: string, models: string): MferenceError {
  return new MferenceError(
    "model.unknown",
    `there is no unfinished install of "${name}" in ${models}`,
  );
}
