/**
 * What `chat` and `generate` have in common: a model loaded for the time of a run, with progress and
 * signals, and closed whatever happens; and the same for long work without a model. Knows no prompt.
 */
import type { DeviceKind } from "../engine/libraries.ts";
import { MferenceError } from "../util/errors.ts";
import type { ExitCode } from "./exit.ts";
import { type Interrupts, listenForInterrupts } from "./interrupt.ts";
import { loadModel, type LoadedModel } from "./load.ts";
import { readLoadFlags, type Values } from "./options.ts";
import { Progress } from "./progress.ts";
import { systemTerminal, type Terminal } from "./terminal.ts";

export interface ModelRun {
  readonly model: LoadedModel;
  readonly terminal: Terminal;
  readonly progress: Progress;
  readonly interrupts: Interrupts;
  readonly isQuiet: boolean;
}

/** Loads the model that the flags mean, runs `use` with it, and closes it. */
export async function withModel(
  values: Values,
  use: (run: ModelRun) => Promise<ExitCode>,
): Promise<ExitCode> {
  const { model: name, device } = values as {
    readonly model?: string;
    readonly device?: DeviceKind;
  };
  const flags = { ...readLoadFlags(values), model: name, device };
  const interrupts = listenForInterrupts();
  const terminal = systemTerminal();
  const isQuiet = values["quiet"] === true;
  const progress = new Progress({ output: terminal.err, isQuiet });
  let model: LoadedModel | undefined;
  try {
    model = await loadModel(flags, { progress, signal: interrupts.signal });
    const exitCode = await use({ model, terminal, progress, interrupts, isQuiet });
    await model.recordUse();
    return exitCode;
  } catch (error) {
    if (interrupts.exitCode !== undefined) return interrupts.exitCode;
    throw error;
  } finally {
    progress.done();
    await model?.engine.close();
  }
}

/** What long work without a model needs. */
export interface WorkContext {
  readonly terminal: Terminal;
  readonly progress: Progress;
  readonly signal: AbortSignal;
}

/** Runs work that shows progress and that a signal ends. */
export async function withProgress(
  values: Values,
  work: (context: WorkContext) => Promise<ExitCode>,
): Promise<ExitCode> {
  const interrupts = listenForInterrupts();
  const terminal = systemTerminal();
  const progress = new Progress({ output: terminal.err, isQuiet: values["quiet"] === true });
  try {
    return await work({ terminal, progress, signal: interrupts.signal });
  } catch (error) {
    if (interrupts.exitCode === undefined) throw error;
    progress.done();
    const isSaid = error instanceof MferenceError && error.code === "install.cancelled";
    terminal.err.write(isSaid ? `${error.message}\n` : "interrupted\n");
    return interrupts.exitCode;
  } finally {
    progress.done();
  }
}
