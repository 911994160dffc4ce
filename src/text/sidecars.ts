/**
 * The text files that lie beside a model: which there are, and what of their settings is used. Knows
 * where a template may be written, not what it says.
 */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { MferenceError, sentenceOf } from "../util/errors.ts";

/** Paths of a model's text files. */
export type TextFiles = {
  readonly tokenizer: string;
  readonly config?: string | undefined;
  /** Each of these decides before the settings in `config`. */
  readonly template?: string | undefined;
  readonly templateJson?: string | undefined;
};

export type TextSettings = {
  /** The chat template; absent for a model that only completes text. */
  readonly template: string | undefined;
  /** `bos_token` and the like, by the names that templates use. */
  readonly tokenNames: Readonly<Record<string, string>>;
};

/** The text files of a folder; `undefined` where it holds no tokenizer. */
export function findTextFiles(folder: string): TextFiles | undefined {
  const find = (name: string) => {
    const path = join(folder, name);
    return existsSync(path) ? path : undefined;
  };
  const tokenizer = find("tokenizer.json");
  if (tokenizer === undefined) return undefined;
  return {
    tokenizer,
    config: find("tokenizer_config.json"),
    template: find("chat_template.jinja"),
    templateJson: find("chat_template.json"),
  };
}

const tokenSchema = z.union([z.string(), z.object({ content: z.string() })]);
const templateSchema = z.union([
  z.string(),
  z.array(z.object({ name: z.string(), template: z.string() })),
]);
const configSchema = z.object({
  bos_token: tokenSchema.nullish(),
  eos_token: tokenSchema.nullish(),
  pad_token: tokenSchema.nullish(),
  unk_token: tokenSchema.nullish(),
  chat_template: templateSchema.nullish(),
});
const templateFileSchema = z.object({ chat_template: templateSchema });

/** @throws MferenceError "text.template" for a file that cannot be read or has another form */
export function readTextSettings(files: TextFiles): TextSettings {
  const config = files.config === undefined ? {} : readJson(files.config, configSchema);
  const { chat_template: configTemplate, ...tokens } = config;
  const tokenNames: Record<string, string> = {};
  for (const [name, token] of Object.entries(tokens)) {
    if (token !== null && token !== undefined) {
      tokenNames[name] = typeof token === "string" ? token : token.content;
    }
  }
  return { template: readTemplate(files) ?? chooseTemplate(configTemplate), tokenNames };
}

function readTemplate({ template, templateJson }: TextFiles): string | undefined {
  if (template !== undefined) return readText(template);
  if (templateJson === undefined) return undefined;
  return chooseTemplate(readJson(templateJson, templateFileSchema).chat_template);
}

/** Of several named templates, the one for chats. */
function chooseTemplate(value: z.infer<typeof templateSchema> | null | undefined) {
  if (value === null || value === undefined) return undefined;
  if (typeof value === "string") return value;
  return value.find(({ name }) => name === "default")?.template ?? value[0]?.template;
}

function readText(path: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(path));
  } catch (cause) {
    throw new MferenceError("text.template", `cannot read ${path}: ${sentenceOf(cause)}`, {
      cause,
    });
  }
}

function readJson<T>(path: string, schema: z.ZodType<T>): T {
  const text = readText(path);
  try {
    return schema.parse(JSON.parse(text));
  } catch (cause) {
    const sentence = cause instanceof z.ZodError ? z.prettifyError(cause) : sentenceOf(cause);
    throw new MferenceError("text.template", `${path}: ${sentence}`, { cause });
  }
}
