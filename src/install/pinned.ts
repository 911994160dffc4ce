import { MferenceError } from "../util/errors.ts";
import type { CheckpointPin } from "../families/family.ts";
import { sha256 } from "../format/digest.ts";
import { TOKENIZER_FOLDER } from "../format/paths.ts";
import type { SourceSidecar } from "./source.ts";

/**
 * Files of a pinned checkpoint whose digests are known beforehand. The index that a pin names says nothing
 * of the configuration or the text files: these are held to digests of their own, where there are any.
 * Knows no checkpoint by name.
 */
export type Digests = Readonly<Record<string, { readonly sha256: string }>>;

/**
 * Checks files of a package, by their paths in it.
 *
 * @throws MferenceError "install.hash" naming the file that is another one
 */
export function checkPinned(pin: CheckpointPin | undefined, files: Digests): void {
  for (const [file, expected] of Object.entries(pin?.files ?? {})) {
    const found = files[file]?.sha256;
    if (found === undefined || found === expected) continue;
    throw new MferenceError(
      "install.hash",
      `${file} of ${pin?.name} has the digest ${found}; the pinned one is ${expected}: somebody changed it`,
    );
  }
}

/** Digests of the small files that travel as they are. */
export function sidecarDigests(sidecars: readonly SourceSidecar[]): Digests {
  const digests = sidecars.map(
    ({ name, bytes }) => [`${TOKENIZER_FOLDER}/${name}`, { sha256: sha256(bytes) }] as const,
  );
  return Object.fromEntries(digests);
}
