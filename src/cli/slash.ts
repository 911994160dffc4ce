/**
 * The commands that begin with a slash inside a chat. Each changes the session or says something; none
 * reads the keyboard.
 */
import fs from "node:fs";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { formatBytes, formatSeconds } from "../util/units.ts";
import { closest } from "./args.ts";
import { tokensPerSecond } from "./answer.ts";
import type { ChatSession } from "./chat-session.ts";
import { isSavedChat, SAVED_BYTES_MAX } from "./conversation.ts";
import { readMaxNew, readSamplingFlags } from "./options.ts";

/** What a slash command wants to happen next. */
export type SlashOutcome =
  | { readonly kind: "say"; readonly text: string }
  | { readonly kind: "retry" }
  | { readonly kind: "quit" };

const HELP: Readonly<Record<string, string>> = {
  "/help": "this list",
  "/reset": "forget the conversation (also /clear)",
  "/system [TEXT]": 'show or set the system text; "/system -" removes it',
  "/history": "show the conversation",
  "/undo": "take the last turn back",
  "/retry": "ask the last question again",
  "/set NAME VALUE": "temp, top-p, top-k, repetition-penalty, seed, max-new or think (on, off)",
  "/show": "show the settings",
  "/stats": "figures of the last answer",
  "/save FILE": "write the conversation to a file",
  "/load FILE": "go on with a saved conversation",
  "/quit": "end (also /exit, Ctrl-D)",
};

const SETTINGS = [
  "temp",
  "top-p",
  "top-k",
  "repetition-penalty",
  "seed",
  "max-new",
  "think",
] as const;

type Handler = (session: ChatSession, argument: string) => SlashOutcome;

const say = (text: string): SlashOutcome => ({ kind: "say", text });

const HANDLERS: Readonly<Record<string, Handler>> = {
  "/help": () => say(helpText()),
  "/reset": reset,
  "/clear": reset,
  "/system": setSystem,
  "/history": ({ conversation }) =>
    say(
      conversation.messages
        .map(({ role, content, isInterrupted }) => {
          return `${role}> ${content}${isInterrupted === true ? " [interrupted]" : ""}`;
        })
        .join("\n") || "nothing has been said yet",
    ),
  "/undo": ({ conversation }) =>
    say(
      conversation.undo() === undefined
        ? "there is no turn to take back"
        : "took the last turn back",
    ),
  "/retry": ({ conversation }) =>
    conversation.messages.length === 0 ? say("there is no question yet") : { kind: "retry" },
  "/set": setSetting,
  "/show": (session) => say(settingsText(session)),
  "/stats": (session) => say(statsText(session)),
  "/save": save,
  "/load": load,
  "/quit": () => ({ kind: "quit" }),
  "/exit": () => ({ kind: "quit" }),
};

/** Whether a message is a command. Two slashes begin a message with one. */
export function isSlashCommand(message: string): boolean {
  return /^\/(?!\/)/.test(message);
}

/** Two slashes at the beginning stand for one. */
export function unescapeSlash(message: string): string {
  return message.startsWith("//") ? message.slice(1) : message;
}

/**
 * Runs a command.
 *
 * @throws MferenceError "usage.flag" for an unknown one, "usage.value" and "usage.input" for bad values
 */
export function runSlashCommand(session: ChatSession, message: string): SlashOutcome {
  const [, name = "", argument = ""] = /^(\S+)\s*([\s\S]*)$/.exec(message) ?? [];
  const handler = Object.hasOwn(HANDLERS, name) ? HANDLERS[name] : undefined;
  if (handler !== undefined) return handler(session, argument.trim());
  const close = closest(name, Object.keys(HANDLERS));
  const hint = close === undefined ? "/help lists the commands" : `did you mean ${close}?`;
  throw new MferenceError(
    "usage.flag",
    `unknown command ${name}; ${hint} (a message that begins with a slash is written with two)`,
  );
}

function helpText(): string {
  const width = Math.max(...Object.keys(HELP).map(({ length }) => length));
  const lines = Object.entries(HELP).map(([name, text]) => `${name.padEnd(width)}  ${text}`);
  return [
    ...lines,
    'Several lines: a backslash at the end of a line, or """ before and after them. Ctrl-C stops an answer.',
  ].join("\n");
}

function reset({ conversation }: ChatSession): SlashOutcome {
  conversation.clear();
  return say("the conversation is forgotten");
}

function setSystem({ conversation }: ChatSession, argument: string): SlashOutcome {
  if (argument === "") return say(conversation.system ?? "there is no system text");
  conversation.system = argument === "-" ? undefined : argument;
  return say(argument === "-" ? "the system text is removed" : "the system text is set");
}

function setSetting({ settings }: ChatSession, argument: string): SlashOutcome {
  const [, name = "", value = ""] = /^(\S+)\s*=?\s*([\s\S]*)$/.exec(argument) ?? [];
  if (!SETTINGS.some((known) => known === name)) {
    const what = name === "" ? "say what to set" : `there is no setting "${name}"`;
    throw new MferenceError("usage.value", `${what}: ${SETTINGS.join(", ")}`);
  }
  if (name === "think") {
    if (value !== "on" && value !== "off") {
      throw new MferenceError("usage.value", `think must be on or off, not "${value}"`);
    }
    settings.think = value === "on";
  } else if (name === "max-new") {
    settings.maxNew = readMaxNew({ "max-new": value });
  } else {
    settings.sampling = { ...settings.sampling, ...readSamplingFlags({ [name]: value }) };
  }
  return say(`${name} is ${value}`);
}

function settingsText({ settings, name, conversation, sampling }: ChatSession): string {
  const { temperature, topP, topK, repetitionPenalty, seed } = sampling;
  const think =
    settings.think === undefined ? "as the model has it" : settings.think ? "on" : "off";
  return [
    `model ${name}`,
    `temp ${temperature}, top-p ${topP}, top-k ${topK ?? 0}, repetition-penalty ${repetitionPenalty}, seed ${seed ?? "random"}`,
    `max-new ${settings.maxNew}, think ${think}`,
    `${conversation.messages.length / 2} turns, ${conversation.sentTurns} of them sent`,
  ].join("\n");
}

function statsText({ lastStats }: ChatSession): string {
  if (lastStats === undefined) return "there is no answer yet";
  const { promptTokens, cachedTokens, prefillSeconds, newTokens, decodeSeconds } = lastStats;
  const requests = lastStats.hits + lastStats.misses;
  const hits =
    requests === 0 ? "none asked for" : `${((100 * lastStats.hits) / requests).toFixed(1)}% hits`;
  return [
    `prompt: ${promptTokens} tokens, ${cachedTokens} of them kept from before, ${formatSeconds(prefillSeconds)}`,
    `answer: ${newTokens} tokens, ${formatSeconds(decodeSeconds)}, ${tokensPerSecond(lastStats).toFixed(1)} tokens/s, first after ${formatSeconds(lastStats.firstTokenSeconds)}`,
    `experts: ${hits}, ${formatBytes(lastStats.bytesRead)} read, ${formatSeconds(lastStats.readSeconds)} waited for reads`,
    `memory: ${formatBytes(lastStats.peakMemoryBytes)} at the peak`,
  ].join("\n");
}

function save({ conversation, name }: ChatSession, file: string): SlashOutcome {
  if (file === "") throw new MferenceError("usage.value", "say where to: /save FILE");
  const old = readIfPresent(file);
  if (old !== undefined && !isSavedChat(old)) {
    throw new MferenceError(
      "usage.value",
      `${file} exists and is not a saved chat; choose another name`,
    );
  }
  const partial = `${file}.${process.pid}.partial`;
  try {
    fs.writeFileSync(partial, conversation.save(name), { mode: 0o600 });
    fs.renameSync(partial, file);
  } catch (error) {
    fs.rmSync(partial, { force: true });
    throw new MferenceError("usage.input", `cannot write ${file}: ${sentenceOf(error)}`, {
      cause: error,
    });
  }
  return say(`saved ${conversation.messages.length / 2} turns to ${file}`);
}

function load({ conversation }: ChatSession, file: string): SlashOutcome {
  if (file === "") throw new MferenceError("usage.value", "say what: /load FILE");
  const text = readIfPresent(file);
  if (text === undefined) throw new MferenceError("usage.input", `there is no file ${file}`);
  conversation.load(text, file);
  return say(`loaded ${conversation.messages.length / 2} turns from ${file}`);
}

function readIfPresent(file: string): string | undefined {
  const status = fs.statSync(file, { throwIfNoEntry: false });
  if (status === undefined) return undefined;
  if (!status.isFile() || status.size > SAVED_BYTES_MAX) {
    throw new MferenceError(
      "usage.input",
      `${file} is not a saved chat: it is no file, or too large`,
    );
  }
  try {
    return fs.readFileSync(file, "utf8");
  } catch (error) {
    throw new MferenceError("usage.input", `cannot read ${file}: ${sentenceOf(error)}`, {
      cause: error,
    });
  }
}
