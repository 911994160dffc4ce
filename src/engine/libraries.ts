/**
 * The native libraries that a run needs: those that the program carries, else built when they are missing
 * or stale. Owns the choice of the device, where its library comes from, and what people are told where a
 * library cannot be had.
 */
import { buildDeviceLibrary } from "../native/build.ts";
import { buildMetalLibrary } from "../native/build-metal.ts";
import { findTokenizerLibrary, type TokenizerBuild } from "../native/build-tokenizer.ts";
import { buildFolder } from "../native/built.ts";
import { copyOutLibrary, embedded, type Embedded } from "../util/embedded.ts";
import { env } from "../util/env.ts";
import { MferenceError } from "../util/errors.ts";

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
 * @throws MferenceError "native.build" when there is no device library and none can be built,
 * "native.load" when one cannot be copied out of the program
 */
export async function prepareLibraries(options: LibraryOptions = {}): Promise<Libraries> {
  const { device = defaultDevice(), onProgress } = options;
  const library = await deviceLibrary(device, onProgress);
  const carried = embedded();
  const tokenizer = await findTokenizerLibrary(
    { buildDir: buildFolder(undefined), onProgress },
    carried && (() => carriedTokenizer(carried)),
  );
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
 * Path of a device's library, copied out of the program or built if need be; `MFERENCE_LIBRARY` names
 * another one, which is not looked into.
 *
 * @throws MferenceError "native.build", "native.load"
 */
export async function deviceLibrary(
  device: DeviceKind,
  onProgress?: (sentence: string) => void,
): Promise<string> {
  const given = env("MFERENCE_LIBRARY");
  if (given !== undefined) return given;
  const carried = embedded();
  if (carried !== undefined) return await carriedDevice(carried, device);
  return await (device === "metal" ? buildMetalLibrary : buildDeviceLibrary)({ onProgress });
}

async function carriedDevice({ files }: Embedded, device: DeviceKind): Promise<string> {
  const [library] = files[device] ?? [];
  if (library !== undefined) return await copyOutLibrary(library);
  const others = ["metal", "cpu"].filter((kind) => files[kind] !== undefined);
  throw new MferenceError(
    "native.load",
    `this program was built without the ${device} device: use --device ${others.join(" or ")}, or name a device library in MFERENCE_LIBRARY`,
  );
}

async function carriedTokenizer({ files }: Embedded): Promise<TokenizerBuild> {
  const [library] = files["tokenizer"] ?? [];
  if (library !== undefined) return { path: await copyOutLibrary(library) };
  return { unavailable: "this program was built without the tokenizer library" };
}
