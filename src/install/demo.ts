import fs from "node:fs";
import path from "node:path";
import type { Family } from "../families/family.ts";
import { allFamilies } from "../families/index.ts";
import { embedded, withCopies } from "../util/embedded.ts";
import { MferenceError } from "../util/errors.ts";
import { MANIFEST_FILE } from "../format/paths.ts";
import { checkCancelled } from "./copy.ts";
import { modelsHome, packageDirectory } from "./home.ts";
import { installLocal, type Installed, type InstallOptions } from "./install.ts";

/** The checkpoint that a first run installs by itself. */
export const DEMO_NAME = "demo";

/** How often a second first run looks whether the first is done. */
const WAIT_MS = 100;

export type DemoOptions = Omit<InstallOptions, "source" | "name"> & {
  /** One of `bundledNames()`. */
  readonly name?: string;
};

/** The checkpoints that come with this copy of the program, by their names. */
export function bundledNames(): readonly string[] {
  const carried = embedded()?.files;
  return allFamilies()
    .flatMap(({ sources }: Pick<Family<unknown>, "sources">) => sources)
    .filter(
      ({ name, remote }) => remote === undefined && (carried === undefined || name in carried),
    )
    .map(({ name }) => name);
}

/**
 * The folder of a bundled checkpoint.
 *
 * @throws MferenceError "usage.value" for a name that none has, "install.source" when this copy of the
 *   program lacks it
 */
export function demoSource(name = DEMO_NAME): string {
  const names = bundledNames();
  if (!names.includes(name)) {
    throw new MferenceError(
      "usage.value",
      `"${name}" does not come with the program; ${names.join(" and ")} do`,
    );
  }
  const directory = path.resolve(import.meta.dir, "../../models", name);
  if (fs.existsSync(path.join(directory, "model.safetensors"))) return directory;
  throw new MferenceError(
    "install.source",
    `the demo checkpoint is not in ${directory}; get a complete copy of the program, or install a model of your own`,
  );
}

/**
 * Runs `use` with a folder of the checkpoint: the program's own for that time, else the repository's.
 *
 * @throws MferenceError "model.unknown" when this executable was built without it
 */
export async function withDemoSource<T>(
  name: string,
  use: (source: string) => Promise<T>,
): Promise<T> {
  const carried = embedded();
  if (carried === undefined) return await use(demoSource(name));
  const files = carried.files[name];
  if (files !== undefined) return await withCopies(files, use);
  throw new MferenceError(
    "model.unknown",
    `this program was built without the checkpoint ${name}; install a model of your own with \`mference install --source DIR\``,
  );
}

/**
 * Installs a bundled checkpoint.
 *
 * @throws MferenceError as `installLocal` does, "model.unknown" when this executable was built without it
 */
export function installDemo(options: DemoOptions = {}): Promise<Installed> {
  const { name = DEMO_NAME } = options;
  return withDemoSource(name, (source) => installLocal({ ...options, source, name }));
}

/**
 * The folder of the installed demo, after installing it if necessary. When another process is
 * installing it, waits for that one; `onWait` is called once.
 */
export async function ensureDemo(
  options: Omit<DemoOptions, "name"> & { readonly onWait?: () => void } = {},
): Promise<string> {
  const directory = packageDirectory(DEMO_NAME, options.models ?? modelsHome());
  const isThere = (): boolean => fs.existsSync(path.join(directory, MANIFEST_FILE));
  if (isThere()) return directory;
  return await withDemoSource(DEMO_NAME, async (source) => {
    let isWaiting = false;
    for (;;) {
      try {
        return (await installLocal({ ...options, source, name: DEMO_NAME })).directory;
      } catch (error) {
        const code = error instanceof MferenceError ? error.code : undefined;
        if (code === "install.exists" && isThere()) return directory;
        if (code !== "install.busy") throw error;
      }
      if (!isWaiting) options.onWait?.();
      isWaiting = true;
      await Bun.sleep(WAIT_MS);
      checkCancelled(options.signal);
      if (isThere()) return directory;
    }
  });
}
