/**
 * The exit codes of the program and the one table from an error's code to its exit code. Prints nothing
 * and ends nothing.
 *
 *   0    success, or help
 *   1    failure while running: the engine, a read, the text, anything without a code of its own
 *   2    usage: unknown flag, bad value, empty prompt, invalid UTF-8, a prompt longer than the context
 *   3    no such model, or one that this program cannot run
 *   4    a package or checkpoint is damaged, incomplete or was changed
 *   5    no space for an install
 *   6    another process holds what this one needs, or the name is taken
 *   7    a native library cannot be built or loaded
 *   8    a download failed: the line, the server, or who may have the file
 *   130  interrupted (Ctrl-C)
 *   141  whoever read stdout went away
 *   143  terminated (SIGTERM)
 */
import { type ErrorCode, MferenceError } from "../util/errors.ts";

export const EXIT = {
  ok: 0,
  failure: 1,
  usage: 2,
  model: 3,
  damaged: 4,
  space: 5,
  busy: 6,
  native: 7,
  network: 8,
  interrupted: 130,
  brokenPipe: 141,
  terminated: 143,
} as const;

export type ExitCode = (typeof EXIT)[keyof typeof EXIT];

type Group = ErrorCode extends infer Code
  ? Code extends `${infer Name}.${string}`
    ? Name
    : never
  : never;

const GROUP_EXITS: Readonly<Record<Group, ExitCode>> = {
  usage: EXIT.usage,
  native: EXIT.failure,
  format: EXIT.damaged,
  install: EXIT.failure,
  model: EXIT.model,
  expert: EXIT.failure,
  engine: EXIT.failure,
  text: EXIT.failure,
};

/** Codes whose exit differs from their group's. */
const CODE_EXITS: Readonly<Partial<Record<ErrorCode, ExitCode>>> = {
  "native.build": EXIT.native,
  "native.load": EXIT.native,
  "native.abi": EXIT.native,
  "native.cancelled": EXIT.interrupted,
  "install.cancelled": EXIT.interrupted,
  "install.source": EXIT.damaged,
  "install.hash": EXIT.damaged,
  "install.size": EXIT.damaged,
  "install.missing": EXIT.damaged,
  "install.network": EXIT.network,
  "install.remote": EXIT.network,
  "install.auth": EXIT.network,
  "install.offline": EXIT.network,
  "install.state": EXIT.damaged,
  "install.space": EXIT.space,
  "install.busy": EXIT.busy,
  "install.exists": EXIT.busy,
  "engine.prompt": EXIT.usage,
  "engine.context": EXIT.usage,
  "engine.options": EXIT.usage,
};

/** The exit code for anything thrown. */
export function exitCodeOf(error: unknown): ExitCode {
  if (!(error instanceof MferenceError)) {
    return isAbort(error) ? EXIT.interrupted : EXIT.failure;
  }
  const [group] = error.code.split(".") as [Group];
  return CODE_EXITS[error.code] ?? GROUP_EXITS[group];
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === "AbortError";
}
