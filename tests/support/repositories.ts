import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { DEMO, decodeSafetensors, temporaryFolder } from "../fixtures/checkpoints.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import type { Repositories } from "./hub.ts";

/** What the stand-alone Hub serves: a tiny checkpoint of each family, and the demo, which can talk. */
const INDEX = "model.safetensors.index.json";
export const DEMO_REPOSITORY = "mference/talking";

export type FamilyName = keyof typeof SNAPSHOTS;
export const FAMILY_NAMES = Object.keys(SNAPSHOTS) as FamilyName[];

/** Folders of the repositories; those of some families, or all and the demo. */
export function makeRepositories(families?: readonly FamilyName[]): Repositories {
  const repositories = new Map<string, string>();
  if (families === undefined) repositories.set(DEMO_REPOSITORY, writeDemo());
  for (const family of families ?? FAMILY_NAMES) {
    repositories.set(`tiny/${family}`, writeSnapshot(SNAPSHOTS[family]("tiny")));
  }
  return repositories;
}

/** Digest of a repository's index. */
export function indexDigest(folder: string): string {
  return sha256(fs.readFileSync(path.join(folder, INDEX)));
}

/** The demo has one file and no index; the Hub's checkpoints have one. */
function writeDemo(): string {
  const folder = temporaryFolder();
  for (const name of fs.readdirSync(DEMO)) {
    fs.symlinkSync(path.join(DEMO, name), path.join(folder, name));
  }
  const names = decodeSafetensors(fs.readFileSync(path.join(DEMO, "model.safetensors"))).keys();
  const weightMap = Object.fromEntries([...names].map((name) => [name, "model.safetensors"]));
  fs.writeFileSync(path.join(folder, INDEX), JSON.stringify({ weight_map: weightMap }));
  return folder;
}
