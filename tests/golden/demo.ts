/** The demo model's held-out dialogues: what was asked, what the training program answered. */
import { readFileSync } from "node:fs";
import { complete } from "../../src/engine/generate.ts";
import { loadModel, type ModelOptions } from "../../src/engine/model.ts";
import { Session } from "../../src/engine/session.ts";
import { families } from "../../src/families/index.ts";
import { decode, findTextFiles, openText } from "../../src/text/index.ts";

export interface Dialogue {
  readonly prompt: string;
  readonly want: string;
}

export const EMPTY_THOUGHT = "<|channel>thought\n<channel|>";

export const heldOut: readonly Dialogue[] = readFileSync(
  `${import.meta.dir}/../../tools/demo-model/held-out.jsonl`,
  "utf8",
)
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line) as Dialogue);

/** Greedy answers to recorded prompts, special tokens written out, an empty thought removed. */
export async function answer(
  options: ModelOptions,
  dialogues: readonly Dialogue[],
): Promise<string[]> {
  const model = await loadModel(options);
  const { chat: dialect } = families.gemma4;
  const text = openText({ files: findTextFiles(`${options.directory}/tokenizer`)!, dialect });
  const session = new Session(model);
  const answers: string[] = [];
  for (const { prompt } of dialogues) {
    const result = await complete(session, {
      promptIds: text.tokenizer.encode(prompt, { specials: true }),
      sampling: { temperature: 0 },
      maxNew: 256,
      stop: [],
      stopReason: (id) => text.stopIds.get(id),
      onEvent: () => {},
      isCancelled: () => false,
    });
    const written = decode(text.tokenizer, result.ids, { specials: "text" });
    answers.push(written.replace(EMPTY_THOUGHT, ""));
  }
  session.close();
  text.close();
  model.close();
  return answers;
}
