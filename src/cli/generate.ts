/** `mference generate`: continues a text or a list of token ids, without a chat's framing. */
import path from "node:path";
import type { Prompt } from "../engine/protocol.ts";
import { MferenceError } from "../util/errors.ts";
import { answerJson, showAnswer } from "./answer.ts";
import { repeatedValues } from "./args.ts";
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { textOf } from "./input.ts";
import {
  modelArgs,
  outputArgs,
  readMaxNew,
  readSamplingFlags,
  resolveSampling,
  samplingArgs,
  type Values,
} from "./options.ts";
import { withModel } from "./run.ts";

const args = {
  prompt: {
    type: "string",
    valueHint: "text",
    description: "the text to continue; without it and --ids the standard input is read whole",
  },
  ids: {
    type: "string",
    valueHint: "1,2,3",
    description: "token ids to continue; for packages without a tokenizer",
  },
  trace: {
    type: "string",
    valueHint: "file",
    description: "write which experts were used and what they cost, a line of JSON for each token",
  },
  ...modelArgs,
  ...samplingArgs,
  ...outputArgs,
} as const;

export const generate = declareCommand({
  name: "generate",
  description: "Continue a text as it is, without a chat's framing.",
  args,
  run: runGenerate,
});

async function runGenerate(values: Values, strict: readonly string[]): Promise<ExitCode> {
  const sampling = readSamplingFlags(values);
  const maxNew = readMaxNew(values);
  const stop = repeatedValues(strict, "stop");
  const prompt = await readPrompt(values);
  return await withModel(values, async ({ model, terminal, progress, interrupts, isQuiet }) => {
    checkStops(stop, model.info.hasText);
    const isJson = values["json"] === true;
    const answer = await showAnswer(
      {
        engine: model.engine,
        terminal,
        progress,
        style: { isQuiet, isJson, hidesThinking: false, printsIds: !model.info.hasText },
      },
      {
        prompt,
        sampling: resolveSampling(sampling, model.info.sampling),
        maxNew,
        stop,
        ...traceOf(values),
      },
      interrupts.signal,
    );
    if (isJson) {
      const facts = { model: model.name, ids: answer.result.ids };
      terminal.out.write(`${answerJson(answer, facts)}\n`);
    }
    return interrupts.exitCode ?? EXIT.ok;
  });
}

/** The file of `--trace`, in the folder of the command and not of whoever writes it. */
function traceOf({ trace }: Values): { readonly trace?: string } {
  return typeof trace === "string" ? { trace: path.resolve(trace) } : {};
}

/**
 * Refuses texts to stop at where there will be no text.
 *
 * @throws MferenceError "usage.flag"
 */
export function checkStops(stop: readonly string[], hasText: boolean): void {
  if (hasText || stop.length === 0) return;
  throw new MferenceError(
    "usage.flag",
    "--stop looks for a text, and this model has no tokenizer; leave it out",
  );
}

async function readPrompt(values: Values): Promise<Prompt> {
  const { prompt, ids } = values as { prompt?: string; ids?: string };
  if (prompt !== undefined && ids !== undefined) {
    throw new MferenceError(
      "usage.flag",
      "--prompt and --ids exclude each other; give one of them",
    );
  }
  if (ids !== undefined) return { kind: "ids", ids: readIds(ids) };
  if (prompt === undefined && process.stdin.isTTY) {
    throw new MferenceError(
      "usage.flag",
      "give the text to continue with --prompt, or through a pipe",
    );
  }
  const text = prompt ?? (await textOf(Bun.stdin.stream()));
  if (text === "") throw new MferenceError("engine.prompt", "the prompt is empty");
  return { kind: "text", text };
}

/**
 * Token ids out of a list with commas or spaces.
 *
 * @throws MferenceError "usage.value", or "engine.prompt" for an empty list
 */
export function readIds(text: string): number[] {
  const parts = text.split(/[\s,]+/).filter((part) => part !== "");
  if (parts.length === 0) throw new MferenceError("engine.prompt", "--ids holds no token id");
  return parts.map((part) => {
    if (/^\d{1,9}$/.test(part)) return Number(part);
    throw new MferenceError(
      "usage.value",
      `--ids must be whole numbers like 2,105,2364, not "${part}"`,
    );
  });
}
