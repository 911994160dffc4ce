/** Held-out dialogues of a trained demo model, whole: messages, tools, what was rendered, wanted and got. */
import { readFileSync } from "node:fs";
import { z } from "zod";
import { complete } from "../../src/engine/generate.ts";
import { loadModel, type ModelOptions } from "../../src/engine/model.ts";
import { Session } from "../../src/engine/session.ts";
import {
  type AssistantEvent,
  type ChatRequest,
  decode,
  findTextFiles,
  openText,
  parseMessages,
  parseTools,
  textParameters,
  writeJson,
} from "../../src/text/index.ts";
import { toJsonValue } from "../../src/text/json.ts";

const schema = z.object({
  messages: z.array(z.unknown()),
  tools: z.array(z.unknown()).optional(),
  think: z.boolean(),
  prompt: z.string(),
  want: z.string(),
  got: z.string(),
});

/** One turn that the model was not trained on. */
export interface Dialogue extends ChatRequest {
  /** As the template rendered it when the model was trained. */
  readonly prompt: string;
  readonly want: string;
  readonly got: string;
}

/** The dialogues beside a demo model's recipe. */
export function dialoguesOf(name: string): Dialogue[] {
  const file = `${import.meta.dir}/../../tools/${name}/held-out.jsonl`;
  const dialogues: Dialogue[] = [];
  for (const line of readFileSync(file, "utf8").trim().split("\n")) {
    const { messages, tools, ...rest } = schema.parse(JSON.parse(line));
    dialogues.push({
      ...rest,
      messages: parseMessages(toJsonValue(messages)),
      tools: tools === undefined ? undefined : parseTools(toJsonValue(tools)),
    });
  }
  return dialogues;
}

/** What became of a dialogue. */
export interface Answer {
  readonly rendered: string;
  /** The turn with its special tokens written out. */
  readonly written: string;
  /** `name(arguments)` of each call. */
  readonly calls: readonly string[];
  readonly content: string;
  readonly reasoning: string;
}

/** Greedy answers. */
export async function answersOf(
  options: ModelOptions,
  dialogues: readonly Dialogue[],
): Promise<Answer[]> {
  const model = await loadModel(options);
  const files = findTextFiles(`${options.directory}/tokenizer`)!;
  const text = openText({ files, dialect: model.family.chat });
  const session = new Session(model, text.tokenizer.vocabularySize);
  const answers: Answer[] = [];
  for (const dialogue of dialogues) {
    const promptIds = text.encodeChat(dialogue);
    const result = await complete(session, {
      promptIds,
      sampling: { temperature: 0 },
      maxNew: 256,
      stop: [],
      stopReason: (id) => text.stopIds.get(id),
      onEvent: () => {},
      isCancelled: () => false,
    });
    const toolNames = new Set((dialogue.tools ?? []).map(({ name }) => name));
    const isText = textParameters(dialogue.tools);
    const decoder = text.assistantDecoder({ toolNames, isText, promptIds });
    const shown = result.ids.filter((id) => !text.stopIds.has(id));
    const events = [
      ...shown.flatMap((id) => decoder.push(id)),
      ...decoder.finish({ isTruncated: false }),
    ];
    const texts = (type: AssistantEvent["type"]): string =>
      events.map((event) => (event.type === type && "text" in event ? event.text : "")).join("");
    answers.push({
      rendered: text.renderChat(dialogue),
      written: decode(text.tokenizer, result.ids, { specials: "text" }),
      calls: events.flatMap((event) =>
        event.type === "toolCall" ? [`${event.call.name}(${writeJson(event.call.arguments)})`] : [],
      ),
      content: texts("content"),
      reasoning: texts("reasoning"),
    });
  }
  session.close();
  text.close();
  model.close();
  return answers;
}
