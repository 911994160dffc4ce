import fs from "node:fs";
import path from "node:path";
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

/**
 * Installs the bundled checkpoint.
 *
 * @throws MferenceError as `installLocal` does
 */
export function installDemo(options: DemoOptions = {}): Promise<Installed> {
  return installLocal({ ...options, source: demoSource(), name: DEMO_NAME });
}

/**
 * The folder of the installed demo, after installing it if necessary. When another process is
 * installing it, waits for that one; `onWait` is called once.
 */
export async function ensureDemo(
  options: DemoOptions & { readonly onWait?: () => void } = {},
): Promise<string> {
  const directory = packageDirectory(DEMO_NAME, options.models ?? modelsHome());
  let isWaiting = false;
  for (;;) {
    if (fs.existsSync(path.join(directory, MANIFEST_FILE))) return directory;
    try {
      return (await installDemo(options)).directory;
    } catch (error) {
      const code = error instanceof MferenceError ? error.code : undefined;
      const isDone =
        code === "install.exists" && fs.existsSync(path.join(directory, MANIFEST_FILE));
      if (isDone) return directory;
      if (code !== "install.busy") throw error;
    }
    if (!isWaiting) options.onWait?.();
    isWaiting = true;
    await Bun.sleep(WAIT_MS);
    checkCancelled(options.signal);
  }
}
