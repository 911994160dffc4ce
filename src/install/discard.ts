import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { acquireLock } from "../native/lock.ts";
import { partialOf } from "./assemble.ts";
import { remove, systemIo, type InstallIo } from "./durable.ts";
import { checkModelName, modelsHome, packageDirectory } from "./home.ts";
import { checkPathTypes } from "./install.ts";
import { removeSaved, resumePath } from "./resume.ts";

/** Gives up an unfinished install: its files and its record go, and nothing else does. */
export function discardPartial(
  name: string,
  models: string = modelsHome(),
  io: InstallIo = systemIo,
): string {
  const checked = checkModelName(name);
  if (!fs.existsSync(models)) throw nothing(name, models);
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
