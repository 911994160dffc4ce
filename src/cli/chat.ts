/** `mference chat`: one question, a piped list of them, or a conversation at the terminal. */
import { MferenceError } from "../util/errors.ts";
import { repeatedValues } from "./args.ts";
import { ChatSession, type ChatSettings } from "./chat-session.ts";
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { linesOf, MessageAssembler } from "./input.ts";
import {
  modelArgs,
  outputArgs,
  readMaxNew,
  readSamplingFlags,
  samplingArgs,
  type Values,
} from "./options.ts";
import { type ModelRun, withModel } from "./run.ts";
import { isSlashCommand, runSlashCommand, unescapeSlash } from "./slash.ts";

const args = {
  prompt: { type: "string", valueHint: "text", description: "ask this and end" },
  system: {
    type: "string",
    isRepeatable: true,
    valueHint: "text",
    description: "instructions before the conversation; several are joined by a line break",
  },
  ...modelArgs,
  ...samplingArgs,
  think: {
    type: "boolean",
    description: "let the model think before it answers",
    negativeDescription: "let the model answer at once",
  },
  "hide-thinking": { type: "boolean", description: "do not show what the model thinks" },
  history: {
    type: "boolean",
    description: "keep what is typed for the arrow keys (the default)",
    negativeDescription: "keep nothing of what is typed",
  },
  ...outputArgs,
} as const;

export const chat = declareCommand({
  name: "chat",
  description:
    "Talk with a model. Without --prompt and with input from a pipe, each line is a question.",
  args,
  run: runChat,
});

async function runChat(values: Values, strict: readonly string[]): Promise<ExitCode> {
  const prompt = values["prompt"] as string | undefined;
  if (prompt !== undefined && prompt.trim() === "") {
    throw new MferenceError("engine.prompt", "the prompt is empty; say something to the model");
  }
  const settings: ChatSettings = {
    sampling: readSamplingFlags(values),
    maxNew: readMaxNew(values),
    stop: repeatedValues(strict, "stop"),
    think: values["think"] as boolean | undefined,
  };
  const system = repeatedValues(strict, "system").join("\n");
  return await withModel(values, async (run) => {
    const { model, terminal, progress, isQuiet } = run;
    const session = new ChatSession({
      engine: model.engine,
      info: model.info,
      name: model.name,
      terminal,
      progress,
      settings,
      style: {
        isQuiet,
        isJson: values["json"] === true,
        hidesThinking: values["hide-thinking"] === true,
      },
      system,
    });
    if (prompt !== undefined) {
      await session.ask(prompt, run.interrupts.signal);
      return run.interrupts.exitCode ?? EXIT.ok;
    }
    if (!process.stdin.isTTY) return await chatByPipe(session, run);
    const { chatAtTerminal } = await import("./repl.ts");
    return await chatAtTerminal(session, run, { keepsHistory: values["history"] !== false });
  });
}

/** One message for each line, fences and backslashes joining several; the first failure ends it. */
async function chatByPipe(session: ChatSession, run: ModelRun): Promise<ExitCode> {
  const { interrupts, terminal } = run;
  const { signal } = interrupts;
  const assembler = new MessageAssembler();
  let asked = 0;
  const take = async (message: string | undefined): Promise<boolean> => {
    if (message === undefined || message.trim() === "") return true;
    asked += 1;
    if (!isSlashCommand(message)) {
      await session.ask(unescapeSlash(message), signal);
      return !signal.aborted;
    }
    const outcome = runSlashCommand(session, message);
    if (outcome.kind === "say") terminal.err.write(`${outcome.text}\n`);
    if (outcome.kind === "retry") await session.retry(signal);
    return outcome.kind !== "quit" && !signal.aborted;
  };
  for await (const line of interruptible(linesOf(Bun.stdin.stream()), signal)) {
    if (!(await take(assembler.push(line)))) return interrupts.exitCode ?? EXIT.ok;
  }
  await take(assembler.end());
  if (asked === 0 && !signal.aborted) {
    throw new MferenceError("engine.prompt", "the standard input holds no question");
  }
  return interrupts.exitCode ?? EXIT.ok;
}

/** Items until the signal aborts, even while the next one is awaited. */
async function* interruptible<T>(items: AsyncGenerator<T>, signal: AbortSignal): AsyncGenerator<T> {
  const aborted = new Promise<undefined>((resolve) => {
    signal.addEventListener("abort", () => resolve(undefined), { once: true });
  });
  for (;;) {
    const next = await Promise.race([items.next(), aborted]);
    if (next === undefined || signal.aborted || next.done === true) return;
    yield next.value;
  }
}
