/**
 * A loaded model with its text and its session: what the Worker serves. One request at a time; nothing
 * here is re-entrant.
 */
import type { CheckpointPin } from "../families/family.ts";
import { openText, type Text, textParameters } from "../text/index.ts";
import type { AssistantEvent } from "../text/assistant-decoder.ts";
import { decode } from "../text/detokenizer.ts";
import { MferenceError } from "../util/errors.ts";
import { peakMemoryBytes } from "../util/memory.ts";
import { Conversation, parseChat } from "./conversation.ts";
import { type AnswerDecoder, complete } from "./generate.ts";
import { loadModel, type Model } from "./model.ts";
import type {
  EngineStatus,
  GenerateEvent,
  GenerateRequest,
  GenerateResult,
  LoadedInfo,
  LoadRequest,
  Prompt,
  StopReason,
} from "./protocol.ts";
import type { SamplingRequest } from "./sampler.ts";
import { Session } from "./session.ts";
import { Trace } from "./trace.ts";

export interface RunHandlers {
  readonly onEvent: (event: GenerateEvent) => void;
  readonly isCancelled: () => boolean;
}

export class Engine {
  readonly model: Model;
  readonly session: Session;
  readonly #text: Text | undefined;
  readonly #conversation: Conversation | undefined;
  readonly #loadSeconds: number;

  private constructor(model: Model, text: Text | undefined, loadSeconds: number) {
    this.model = model;
    this.session = new Session(model, text?.tokenizer.vocabularySize);
    this.#text = text;
    this.#conversation = text?.canChat === true ? new Conversation(text) : undefined;
    this.#loadSeconds = loadSeconds;
  }

  /** @throws MferenceError as `loadModel` and `openText` do */
  static async load(request: LoadRequest): Promise<Engine> {
    const begin = performance.now();
    const model = await loadModel(definedOnly(request));
    try {
      const { text: files } = model.package;
      const text =
        files === undefined
          ? undefined
          : openText({
              files: {
                tokenizer: files.tokenizerPath,
                config: files.tokenizerConfigPath,
                template: files.chatTemplatePath,
                templateJson: files.chatTemplateJsonPath,
              },
              dialect: model.family.chat,
              libraryPath: request.tokenizerLibrary,
            });
      return new Engine(model, text, (performance.now() - begin) / 1000);
    } catch (error) {
      model.close();
      throw error;
    }
  }

  get info(): LoadedInfo {
    const { model } = this;
    const { manifest, directory, notice, layers } = model.package;
    return {
      directory,
      modelId: manifest.modelID,
      family: model.family.id,
      device: model.device.info,
      deviceId: model.device.id,
      precision: model.precision.name,
      slots: model.slots,
      expertCount: model.shape.expertCount,
      layerCount: layers.length,
      contextRows: model.kv.contextRows,
      chunkRows: model.chunkRows,
      vocabSize: model.shape.vocabSize,
      hasText: this.#text !== undefined,
      hasChat: this.#conversation !== undefined,
      notice,
      sampling: samplingOf(model.family.sources, manifest.modelID),
      loadSeconds: this.#loadSeconds,
    };
  }

  /** Runs one request to its end. */
  async generate(request: GenerateRequest, handlers: RunHandlers): Promise<GenerateResult> {
    if (request.trace === undefined) return await this.#generate(request, handlers);
    const trace = new Trace(request.trace, this.model);
    const onEvent = (event: GenerateEvent): void => {
      trace.show(event);
      handlers.onEvent(event);
    };
    try {
      return await this.#generate(request, { ...handlers, onEvent });
    } finally {
      trace.close();
    }
  }

  async #generate(request: GenerateRequest, handlers: RunHandlers): Promise<GenerateResult> {
    if (request.isCold === true) this.reset();
    const { prompt } = request;
    if (prompt.kind === "chat") return await this.#chat({ ...request, prompt }, handlers);
    const promptIds = this.tokenize(prompt);
    return await complete(this.session, {
      ...this.#common(request, handlers),
      promptIds,
      decoder: this.#rawDecoder(),
    });
  }

  /** The ids of a prompt. */
  tokenize(prompt: Prompt): number[] {
    if (prompt.kind === "ids") return [...prompt.ids];
    if (prompt.kind === "text") {
      if (prompt.text === "") throw new MferenceError("engine.prompt", "the prompt is empty");
      return this.#requireText().encodeRaw(prompt.text, { bos: true });
    }
    return this.#requireText().encodeChat(parseChat(prompt));
  }

  /** The text of a chat prompt. */
  render(prompt: Prompt): string {
    if (prompt.kind !== "chat") throw new MferenceError("text.template", "only a chat is rendered");
    return this.#requireText().renderChat(parseChat(prompt));
  }

  detokenize(ids: readonly number[]): string {
    return decode(this.#requireText().tokenizer, ids, { specials: "text" });
  }

  reset(): void {
    this.session.reset();
    this.#conversation?.forget();
  }

  status(): EngineStatus {
    const { model, session } = this;
    const memory = model.memory();
    return {
      cachedTokens: session.ids.length,
      contextRows: model.kv.contextRows,
      memory: { ...memory, scratchBytes: memory.scratchBytes + session.scratchBytes },
      counters: model.device.counters(),
      peakMemoryBytes: peakMemoryBytes(),
    };
  }

  close(): void {
    this.session.close();
    this.#text?.close();
    this.model.close();
  }

  async #chat(request: ChatGeneration, handlers: RunHandlers): Promise<GenerateResult> {
    const text = this.#requireText();
    const chat = parseChat(request.prompt);
    const promptIds = this.#conversation?.encode(chat) ?? text.encodeChat(chat);
    const toolNames = new Set((chat.tools ?? []).map(({ name }) => name));
    const answer = { content: "", calls: [] as { name: string; arguments: string }[] };
    const onEvent = (event: GenerateEvent): void => {
      if (event.type === "content") answer.content += event.text;
      if (event.type === "toolCall") answer.calls.push(event);
      handlers.onEvent(event);
    };
    const result = await complete(this.session, {
      ...this.#common(request, { ...handlers, onEvent }),
      promptIds,
      decoder: text.assistantDecoder({ toolNames, isText: textParameters(chat.tools), promptIds }),
    });
    this.#conversation?.finish(chat, promptIds, { ...result, ...answer });
    return result;
  }

  #common(request: GenerateRequest, handlers: RunHandlers) {
    return {
      sampling: request.sampling,
      maxNew: request.maxNew,
      stop: request.stop ?? [],
      stopReason: (id: number) => this.#stopReason(id),
      ...handlers,
    };
  }

  #stopReason(id: number): StopReason | undefined {
    const meaning = this.#text?.stopIds.get(id);
    if (meaning !== undefined) return meaning;
    return this.model.shape.stopIds.includes(id) ? "eos" : undefined;
  }

  /** Text of a raw completion: every id is content. */
  #rawDecoder(): AnswerDecoder | undefined {
    const detokenizer = this.#text?.detokenizer();
    if (detokenizer === undefined) return undefined;
    const content = (text: string): AssistantEvent[] =>
      text === "" ? [] : [{ type: "content", text }];
    return {
      push: (id) => content(detokenizer.push(id)),
      finish: () => content(detokenizer.flush()),
    };
  }

  #requireText(): Text {
    if (this.#text !== undefined) return this.#text;
    throw new MferenceError(
      "model.text",
      `${this.model.package.directory} has no tokenizer: it takes and gives token ids only; give them with --ids`,
    );
  }
}

type ChatGeneration = GenerateRequest & { readonly prompt: Extract<Prompt, { kind: "chat" }> };

/** Sampling that a known checkpoint asks for. */
function samplingOf(sources: readonly CheckpointPin[], modelId: string): SamplingRequest {
  return sources.find((source) => source.modelId === modelId)?.sampling ?? {};
}

type Defined<T> = { [K in keyof T]: Exclude<T[K], undefined> };

/** Without the members that are undefined: options say "absent" where messages say "undefined". */
function definedOnly<T extends object>(value: T): Defined<T> {
  return Object.fromEntries(
    Object.entries(value).filter(([, member]) => member !== undefined),
  ) as Defined<T>;
}
