/**
 * The native libraries that a run needs, built when they are missing or stale. Owns the choice of the
 * device, the choice between a given library and a built one, and what people are told where a library
 * cannot be had.
 */
import path from "node:path";
import { buildDeviceLibrary } from "../native/build.ts";
import { buildMetalLibrary } from "../native/build-metal.ts";
import { findTokenizerLibrary } from "../native/build-tokenizer.ts";
import { env } from "../util/env.ts";

/** What computes. */
export type DeviceKind = "metal" | "cpu";

export interface LibraryOptions {
  /** By default Metal on macOS, the CPU elsewhere. */
  readonly device?: DeviceKind | undefined;
  /** Called with a sentence before anything that takes longer than a second. */
  readonly onProgress?: ((sentence: string) => void) | undefined;
}

export interface Libraries {
  /** Path of the device library. */
  readonly library: string;
  /** Path of the tokenizer library; absent: text runs on the tokenizer in TypeScript. */
  readonly tokenizerLibrary?: string | undefined;
  /** Sentences for people. */
  readonly notices: readonly string[];
}

/**
 * Finds or builds the libraries.
 *
 * @throws MferenceError "native.build" when there is no device library and none can be built
 */
export async function prepareLibraries(options: LibraryOptions = {}): Promise<Libraries> {
  const { device = defaultDevice(), onProgress } = options;
  const library = await deviceLibrary(device, onProgress);
  const buildDir = env("MFERENCE_BUILD_DIR") ?? path.join(import.meta.dir, "../../build");
  const tokenizer = await findTokenizerLibrary({ buildDir, onProgress });
  const notices = device === "metal" && process.platform !== "darwin" ? [SOFTWARE_METAL] : [];
  if ("path" in tokenizer) return { library, tokenizerLibrary: tokenizer.path, notices };
  if (env("MFERENCE_TOKENIZER") !== "script") {
    notices.push(`${tokenizer.unavailable}; text runs on the slower tokenizer`);
  }
  return { library, notices };
}

const SOFTWARE_METAL = "Metal runs in software here, which is for tests and slow";

/** Metal on macOS, the CPU elsewhere. */
export const defaultDevice = (): DeviceKind => (process.platform === "darwin" ? "metal" : "cpu");

/**
 * Path of a device's library, built if need be; `MFERENCE_LIBRARY` names another one, which is not looked
 * into.
 *
 * @throws MferenceError "native.build"
 */
export async function deviceLibrary(
  device: DeviceKind,
  onProgress?: (sentence: string) => void,
): Promise<string> {
  const given = env("MFERENCE_LIBRARY");
  if (given !== undefined) return given;
  return await (device === "metal" ? buildMetalLibrary : buildDeviceLibrary)({ onProgress });
}
