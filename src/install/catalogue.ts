import fs from "node:fs";
import path from "node:path";
import { MferenceError } from "../util/errors.ts";
import { allFamilies } from "../families/index.ts";
import type { CheckpointPin, Family } from "../families/family.ts";
import { parseManifest } from "../format/manifest.ts";
import { readManifestBytes } from "../format/package.ts";
import { MANIFEST_FILE } from "../format/paths.ts";
import { bundledNames } from "./demo.ts";
import { checkModelName, modelsHome, packageDirectory } from "./home.ts";

/** The checkpoints that can be installed by their names. Asks no server. */
export interface CatalogueEntry {
  readonly pin: CheckpointPin & { readonly remote: NonNullable<CheckpointPin["remote"]> };
  readonly family: string;
  /** Whether this program can run it, and not only keep it. */
  readonly canRun: boolean;
}

/** Every checkpoint that can be downloaded. */
export function catalogue(): readonly CatalogueEntry[] {
  return allFamilies().flatMap((family) =>
    family.sources.flatMap((pin) => {
      const { remote } = pin;
      const canRun = (family as Family<unknown>).createForward !== undefined;
      return remote === undefined ? [] : [{ pin: { ...pin, remote }, family: family.id, canRun }];
    }),
  );
}

/**
 * The checkpoint of a name, in any case.
 *
 * @throws MferenceError "usage.value" with the names there are
 */
export function pinNamed(name: string): CatalogueEntry {
  const entries = catalogue();
  const found = entries.find(({ pin }) => pin.name.toLowerCase() === name.toLowerCase());
  if (found !== undefined) return found;
  const names = [...bundledNames(), ...entries.map(({ pin }) => pin.name)].join(", ");
  throw new MferenceError(
    "usage.value",
    `unknown model "${name}"; the names are ${names}; a checkpoint of your own is installed with --source`,
  );
}

/**
 * The folder of a checkpoint that is installed completely, and its bytes; without asking any server.
 *
 * @throws MferenceError "install.exists" when another checkpoint has its name, "format.*"
 */
export function installedPin(
  { name, sourceSha256 }: Pick<CheckpointPin, "name" | "sourceSha256">,
  models: string = modelsHome(),
): { readonly directory: string; readonly bytes: number } | undefined {
  const directory = packageDirectory(checkModelName(name), models);
  if (!fs.existsSync(path.join(directory, MANIFEST_FILE))) return undefined;
  const manifest = parseManifest(readManifestBytes(directory), path.join(directory, MANIFEST_FILE));
  if (manifest.sourceSnapshotHash === `sha256:${sourceSha256}`) {
    const bytes = Object.values(manifest.files).reduce((total, { size }) => total + size, 0);
    return { directory, bytes };
  }
  throw new MferenceError(
    "install.exists",
    `"${name}" is taken: ${directory} holds another checkpoint, ${manifest.modelID}; choose another name with --name, or remove that folder first`,
  );
}
