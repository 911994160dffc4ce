/**
 * Signals of the process as one AbortSignal: the first Ctrl-C or SIGTERM asks running work to end, a
 * second one ends the process at once. Owns the handlers; knows no work.
 */
import { EXIT, type ExitCode } from "./exit.ts";

export interface Interrupts {
  /** Aborts with the first signal. */
  readonly signal: AbortSignal;
  /** The exit code that a signal asked for. */
  readonly exitCode: ExitCode | undefined;
  /** Gives a signal of Ctrl-C to `handler` until the returned function is called. */
  divert(handler: () => void): () => void;
}

/** Listens for the process's signals from now on. */
export function listenForInterrupts(): Interrupts {
  const controller = new AbortController();
  let exitCode: ExitCode | undefined;
  let diverted: (() => void) | undefined;
  const onSignal = (code: ExitCode) => (): void => {
    if (code === EXIT.interrupted && diverted !== undefined) return diverted();
    if (exitCode !== undefined) process.exit(code);
    exitCode = code;
    controller.abort(new DOMException("interrupted", "AbortError"));
  };
  process.on("SIGINT", onSignal(EXIT.interrupted));
  process.on("SIGTERM", onSignal(EXIT.terminated));
  process.on("SIGHUP", onSignal(EXIT.terminated));
  return {
    signal: controller.signal,
    get exitCode() {
      return exitCode;
    },
    divert(handler) {
      diverted = handler;
      return () => {
        diverted = undefined;
      };
    },
  };
}
