/**
 * From flags to a loaded model: native libraries built if they are missing or stale, the bundled demo
 * installed if there is no model at all, the engine started. Owns the order of these steps and what the
 * user is told meanwhile.
 */
import path from "node:path";
import type { EngineClient } from "../engine/client.ts";
import type { DeviceKind } from "../engine/libraries.ts";
import type { LoadedInfo } from "../engine/protocol.ts";
import { env } from "../util/env.ts";
import { MferenceError } from "../util/errors.ts";
import { formatBytes } from "../util/units.ts";
import type { LoadFlags } from "./options.ts";
import { portion, type Progress } from "./progress.ts";

export interface LoadContext {
  readonly progress: Progress;
  readonly signal: AbortSignal;
}

export interface LoadedModel {
  readonly engine: EngineClient;
  readonly name: string;
  readonly info: LoadedInfo;
  /** Remembers the use, for the choice of a default. */
  readonly recordUse: () => Promise<void>;
}

/** What flags say beyond the load request itself. */
export interface ModelChoice {
  readonly model?: string | undefined;
  readonly device?: DeviceKind | undefined;
}

/**
 * Loads the model that the flags mean.
 *
 * @throws MferenceError of the groups "model", "install", "native", "format", "engine"
 */
export async function loadModel(
  flags: LoadFlags & ModelChoice,
  context: LoadContext,
): Promise<LoadedModel> {
  const { progress, signal } = context;
  try {
    const { EngineClient } = await import("../engine/client.ts");
    const { model, device, ...load } = flags;
    const preparing = prepareLibraries(device, context);
    const choosing = chooseModel(model, context);
    // An install that has ended must not seem to go on while a library is still being built.
    choosing.then(
      () => progress.update("waiting for the native libraries"),
      () => undefined,
    );
    // The engine's thread loads its code meanwhile.
    const starting = EngineClient.start(
      Promise.all([preparing, choosing]).then(([libraries, { name, directory }]) => {
        progress.update(`loading ${name}`);
        return { ...load, ...libraries, simd: env("MFERENCE_SIMD"), directory };
      }),
    );
    // An install ends by itself when the signal comes, and cleans up; whatever else goes on is left.
    starting.catch(() => undefined);
    const { name, directory } = await choosing;
    const engine = await untilAborted(starting, signal);
    const { info } = engine;
    if (info.notice !== undefined) notice(context, info.notice);
    return { engine, name, info, recordUse: () => recordUse(directory) };
  } finally {
    progress.done();
  }
}

/** What a promise gives, or the signal's reason if that comes first. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const onAbort = (): void => reject(signal.reason as Error);
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

function notice({ progress }: LoadContext, sentence: string): void {
  progress.say(sentence);
}

async function prepareLibraries(
  device: DeviceKind | undefined,
  context: LoadContext,
): Promise<{ library: string; tokenizerLibrary?: string | undefined }> {
  const { prepareLibraries } = await import("../engine/libraries.ts");
  const { notices, ...libraries } = await prepareLibraries({
    device,
    onProgress: (sentence) => {
      notice(context, sentence);
    },
  });
  for (const sentence of notices) notice(context, sentence);
  return libraries;
}

interface Chosen {
  readonly name: string;
  readonly directory: string;
}

async function chooseModel(model: string | undefined, context: LoadContext): Promise<Chosen> {
  const { onlyModel } = await import("../install/home.ts");
  const only = model === undefined ? onlyModel() : undefined;
  if (only !== undefined) return only;
  const { resolveModel } = await import("../install/models.ts");
  try {
    const chosen = resolveModel(model);
    if (chosen.reason === "last-used" || chosen.reason === "newest") {
      const why = chosen.reason === "newest" ? "installed last" : "used last";
      notice(context, `using ${chosen.name}, the model ${why}; --model chooses another`);
    }
    return chosen;
  } catch (error) {
    const isNone = error instanceof MferenceError && error.code === "model.none";
    if (!isNone || model !== undefined) throw error;
    return await installDemo(context);
  }
}

async function installDemo(context: LoadContext): Promise<Chosen> {
  const { ensureDemo } = await import("../install/demo.ts");
  const { progress, signal } = context;
  notice(context, "No model is installed yet: installing the bundled demo");
  const directory = await ensureDemo({
    signal,
    onWait: () => progress.update("waiting for another process that installs the demo"),
    onProgress: ({ phase, doneBytes, totalBytes }) =>
      progress.update(installProgress(phase, doneBytes, totalBytes)),
  });
  return { directory, name: path.basename(directory, path.extname(directory)) };
}

/** `installing: copying, 40% of 29.1 MB`. */
export function installProgress(phase: string, doneBytes: number, totalBytes: number): string {
  if (totalBytes === 0) return `installing: ${phase}`;
  return `installing: ${phase}, ${portion(doneBytes, totalBytes, formatBytes)}`;
}

async function recordUse(directory: string): Promise<void> {
  const { recordUse } = await import("../install/models.ts");
  recordUse(directory);
}
