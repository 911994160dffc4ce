import fs from "node:fs";
import path from "node:path";
import { embedded, withCopies } from "../util/embedded.ts";
import { MferenceError } from "../util/errors.ts";
import { MANIFEST_FILE } from "../format/paths.ts";
import { checkCancelled } from "./copy.ts";
import { modelsHome, packageDirectory } from "./home.ts";
import { installLocal, type Installed, type InstallOptions } from "./install.ts";

/** The checkpoint that comes with the program, and the wait of a second first run for the first. */
export const DEMO_NAME = "demo";

const WAIT_MS = 100;

export type DemoOptions = Omit<InstallOptions, "source" | "name">;

/**
 * The folder of the bundled checkpoint.
 *
 * @throws MferenceError "install.source" when this copy of the program has none
 */
export function demoSource(): string {
  const directory = path.resolve(import.meta.dir, "../../models/demo");
  if (fs.existsSync(path.join(directory, "model.safetensors"))) return directory;
  throw new MferenceError(
    "install.source",
    `the demo checkpoint is not in ${directory}; get a complete copy of the program, or install a model of your own`,
  );
}

/** Runs `use` with a folder of the checkpoint: the program's own for that time, else the repository's. */
async function withDemoSource<T>(use: (source: string) => Promise<T>): Promise<T> {
  const carried = embedded();
  if (carried === undefined) return await use(demoSource());
  const files = carried.files["demo"];
  if (files !== undefined) return await withCopies(files, use);
  throw new MferenceError(
    "install.source",
    "this program was built without the demo; install a model of your own with `mference install --source DIR`",
  );
}

/**
 * Installs the bundled checkpoint.
 *
 * @throws MferenceError as `installLocal` does, "install.source" when the program carries none
 */
export function installDemo(options: DemoOptions = {}): Promise<Installed> {
  return withDemoSource((source) => installLocal({ ...options, source, name: DEMO_NAME }));
}

/**
 * The folder of the installed demo, after installing it if necessary. When another process is
 * installing it, waits for that one; `onWait` is called once.
 */
export async function ensureDemo(
  options: DemoOptions & { readonly onWait?: () => void } = {},
): Promise<string> {
  const directory = packageDirectory(DEMO_NAME, options.models ?? modelsHome());
  const isThere = (): boolean => fs.existsSync(path.join(directory, MANIFEST_FILE));
  if (isThere()) return directory;
  return await withDemoSource(async (source) => {
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
