/**
 * The face of the text layer: opens a model's text files and gives everything between strings and ids.
 * Refuses to know which family a dialect belongs to.
 */
import { MferenceError } from "../util/errors.ts";
import { AssistantDecoder, type AssistantDecoderOptions } from "./assistant-decoder.ts";
import { Detokenizer, type DetokenizerOptions } from "./detokenizer.ts";
import type { ChatDialect, StopMeaning } from "./dialect.ts";
import { type Markers, resolveMarkers } from "./markers.ts";
import { type ChatRequest, PromptRenderer } from "./prompt.ts";
import { readTextSettings, type TextFiles } from "./sidecars.ts";
import { ChatTemplate } from "./template.ts";
import { openTokenizer, type Tokenizer } from "./tokenizer.ts";

export { AssistantDecoder, type AssistantEvent } from "./assistant-decoder.ts";
export { decode, Detokenizer } from "./detokenizer.ts";
export type { ChatDialect, StopMeaning } from "./dialect.ts";
export { type JsonObject, type JsonValue, parseJson, writeJson } from "./json.ts";
export {
  type ChatMessage,
  parseMessages,
  parseTools,
  textParameters,
  type ToolCall,
  type ToolDefinition,
} from "./messages.ts";
export type { ChatRequest } from "./prompt.ts";
export { findTextFiles, type TextFiles } from "./sidecars.ts";
export { StopStrings } from "./stop-strings.ts";
export type { Tokenizer } from "./tokenizer.ts";

export type TextOptions = {
  readonly files: TextFiles;
  readonly dialect: ChatDialect;
  /** The native tokenizer library; without it the slower one in TypeScript is used. */
  readonly libraryPath?: string | undefined;
};

/** Everything between strings and ids for one model. */
export class Text {
  readonly tokenizer: Tokenizer;
  readonly dialect: ChatDialect;
  readonly markers: Markers;
  readonly #prompts: PromptRenderer | undefined;

  constructor(tokenizer: Tokenizer, { files, dialect }: TextOptions) {
    const { template, tokenNames } = readTextSettings(files);
    this.tokenizer = tokenizer;
    this.dialect = dialect;
    this.markers = resolveMarkers(tokenizer, dialect);
    this.#prompts =
      template === undefined
        ? undefined
        : new PromptRenderer({
            tokenizer,
            markers: this.markers,
            dialect,
            template: new ChatTemplate(template),
            tokenNames,
          });
  }

  /** Ids that end an answer, with what each means. */
  get stopIds(): ReadonlyMap<number, StopMeaning> {
    return this.markers.stops;
  }

  /** Whether the model came with a chat template. */
  get canChat(): boolean {
    return this.#prompts !== undefined;
  }

  /**
   * Ids of a text that is no chat. Spellings of control tokens in it stay text, unless `specials` asks
   * for tokens, as a person may who writes a prompt by hand.
   */
  encodeRaw(
    text: string,
    options: { readonly bos: boolean; readonly specials?: boolean },
  ): number[] {
    const ids = this.tokenizer.encode(text, { specials: options.specials ?? false });
    const { bos } = this.markers;
    return options.bos && bos !== undefined ? [bos, ...ids] : ids;
  }

  /** @throws MferenceError "text.messages", "text.tools", "text.template" */
  encodeChat(request: ChatRequest): number[] {
    return this.#chat().encode(request);
  }

  /** The prompt as text. @throws MferenceError like `encodeChat` */
  renderChat(request: ChatRequest): string {
    return this.#chat().render(request);
  }

  /**
   * The ids that follow the last assistant message of `request` once it was generated: the stop token
   * that ended it, the messages after it and the next generation prompt. `undefined` where there are
   * none; then the whole prompt has to be computed.
   */
  encodeBridge(request: ChatRequest): number[] | undefined {
    return this.#chat().bridge(request);
  }

  detokenizer(options: Omit<DetokenizerOptions, "barriers" | "exempt"> = {}): Detokenizer {
    const { barriers, exempt } = this.markers;
    return new Detokenizer(this.tokenizer, { ...options, barriers, exempt });
  }

  assistantDecoder(options: AssistantDecoderOptions = {}): AssistantDecoder {
    return new AssistantDecoder(this, options);
  }

  close(): void {
    this.tokenizer.close();
  }

  #chat(): PromptRenderer {
    if (this.#prompts !== undefined) return this.#prompts;
    throw new MferenceError(
      "text.template",
      "this model has no chat template, so it can only complete text: use `generate`",
    );
  }
}

/**
 * Opens the text files of a model.
 *
 * @throws MferenceError "text.tokenizer", "text.template", "native.load", "native.abi"
 */
export function openText(options: TextOptions): Text {
  const tokenizer = openTokenizer(options.files.tokenizer, options.libraryPath);
  try {
    return new Text(tokenizer, options);
  } catch (cause) {
    tokenizer.close();
    throw cause;
  }
}
