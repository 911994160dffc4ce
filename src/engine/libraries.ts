/**
 * The native libraries that a run needs, built when they are missing or stale. Owns the choice between a
 * given library and a built one, and what people are told where a library cannot be had.
 */
import path from "node:path";
import { buildDeviceLibrary } from "../native/build.ts";
import { findTokenizerLibrary } from "../native/build-tokenizer.ts";
import { env } from "../util/env.ts";

export interface LibraryOptions {
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
  const { onProgress } = options;
  const library = await buildDeviceLibrary({ onProgress });
  const buildDir = env("MFERENCE_BUILD_DIR") ?? path.join(import.meta.dir, "../../build");
  const tokenizer = await findTokenizerLibrary({ buildDir, onProgress });
  if ("path" in tokenizer) return { library, tokenizerLibrary: tokenizer.path, notices: [] };
  const isAsked = env("MFERENCE_TOKENIZER") === "script";
  const notices = isAsked ? [] : [`${tokenizer.unavailable}; text runs on the slower tokenizer`];
  return { library, notices };
}
