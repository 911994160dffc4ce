/** The commands of the program, each loaded only when it is asked for: start-up time is felt. */
import type { CommandDef } from "citty";
import type { Arguments } from "./args.ts";

/** A command, and what the strict reading of its arguments needs. */
export interface Command {
  readonly definition: CommandDef;
  readonly args: Arguments;
}

export interface CommandEntry {
  readonly summary: string;
  readonly load: () => Promise<Command>;
}

export const commands: Readonly<Record<string, CommandEntry>> = {
  chat: {
    summary: "talk with a model",
    load: async () => (await import("./chat.ts")).chat,
  },
  generate: {
    summary: "continue a text, without a chat's framing",
    load: async () => (await import("./generate.ts")).generate,
  },
  install: {
    summary: "install a model by its name, or a checkpoint; goes on where it was interrupted",
    load: async () => (await import("./install.ts")).install,
  },
  discard: {
    summary: "remove what an unfinished install has left",
    load: async () => (await import("./discard.ts")).discard,
  },
  verify: {
    summary: "check an installed model's files",
    load: async () => (await import("./verify.ts")).verify,
  },
  models: {
    summary: "list the installed models",
    load: async () => (await import("./models.ts")).models,
  },
  bench: {
    summary: "measure a model on this machine",
    load: async () => (await import("./bench.ts")).bench,
  },
  doctor: {
    summary: "say what this machine can run",
    load: async () => (await import("./doctor.ts")).doctor,
  },
};
