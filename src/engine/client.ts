/**
 * The main thread's face of the engine, which lives in one long-lived Worker and may block there in
 * native waits. Nothing here blocks. Cancelling works while the Worker is blocked: through a word that
 * it polls, and through the device's own cancel flag, set from this thread.
 */
import { cancelDevice } from "../native/device.ts";
import { MferenceError } from "../util/errors.ts";
import { CancelWord } from "./cancel.ts";
import type {
  CallName,
  Calls,
  EngineStatus,
  FromWorker,
  GenerateEvent,
  GenerateRequest,
  GenerateResult,
  LoadedInfo,
  LoadRequest,
  Prompt,
} from "./protocol.ts";

interface Waiting {
  readonly resolve: (answer: never) => void;
  readonly reject: (error: Error) => void;
  readonly onEvent?: ((event: GenerateEvent) => void) | undefined;
}

export interface GenerateHandlers {
  readonly onEvent?: (event: GenerateEvent) => void;
  /** Aborting ends the generation within a token or a chunk; the result's reason is "cancelled". */
  readonly signal?: AbortSignal;
}

export class EngineClient {
  readonly #worker: Worker;
  readonly #waiting = new Map<number, Waiting>();
  /** Of the requests that have no answer yet. */
  readonly #cancels = new Set<CancelWord>();
  #lastId = 0;
  #library = "";
  #info: LoadedInfo | undefined;
  #dead: Error | undefined;
  #closing: Promise<void> | undefined;

  private constructor(worker: Worker) {
    this.#worker = worker;
    worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => this.#receive(data));
    worker.addEventListener("error", ({ message }) =>
      this.#die(new MferenceError("engine.state", `the engine stopped: ${message}`)),
    );
  }

  /**
   * Starts the engine and loads a model. The thread begins to load its code at once, so that a caller who
   * still has to find out what to load hands over a promise.
   *
   * @throws MferenceError as loading a model does, and whatever the promise fails with
   */
  static async start(request: LoadRequest | Promise<LoadRequest>): Promise<EngineClient> {
    const worker = new Worker(new URL("./worker.ts", import.meta.url).href);
    const client = new EngineClient(worker);
    try {
      const known = await request;
      client.#library = known.library;
      client.#info = await client.#call("load", known);
    } catch (error) {
      worker.terminate();
      throw error;
    }
    return client;
  }

  /** What was loaded. */
  get info(): LoadedInfo {
    if (this.#info === undefined) throw new MferenceError("engine.state", "no model is loaded");
    return this.#info;
  }

  /**
   * Runs one request; requests are served one after another in the order of the calls.
   *
   * @throws MferenceError of the groups "engine", "expert", "text", "native", "format"
   */
  async generate(
    request: GenerateRequest,
    handlers: GenerateHandlers = {},
  ): Promise<GenerateResult> {
    const { onEvent, signal } = handlers;
    const word = new CancelWord();
    const cancel = (): void => word.cancel(() => this.#interrupt());
    this.#cancels.add(word);
    signal?.addEventListener("abort", cancel, { once: true });
    if (signal?.aborted === true) cancel();
    try {
      return await this.#call("generate", { request, cancel: word.memory }, onEvent);
    } finally {
      signal?.removeEventListener("abort", cancel);
      this.#cancels.delete(word);
    }
  }

  /** The ids of a prompt, without running it. */
  tokenize(prompt: Prompt): Promise<readonly number[]> {
    return this.#call("tokenize", prompt);
  }

  /** The text of a chat prompt, as the model's template renders it. */
  render(prompt: Prompt): Promise<string> {
    return this.#call("render", prompt);
  }

  /** The text of ids, special tokens included. */
  detokenize(ids: readonly number[]): Promise<string> {
    return this.#call("detokenize", ids);
  }

  /** Forgets the conversation so far. */
  async reset(): Promise<void> {
    await this.#call("reset", null);
  }

  status(): Promise<EngineStatus> {
    return this.#call("status", null);
  }

  /** Frees the model and ends the Worker. Requests that run or wait are cancelled first. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    try {
      if (this.#dead !== undefined) return;
      for (const word of this.#cancels) word.cancel(() => this.#interrupt());
      await this.#call("close", null);
    } finally {
      this.#worker.terminate();
      this.#die(new MferenceError("engine.state", "the engine is closed"));
    }
  }

  /** Ends the device's work at once; a request that runs has a loaded model. */
  #interrupt(): void {
    cancelDevice(this.#library, this.info.deviceId);
  }

  #call<Name extends CallName>(
    name: Name,
    request: Calls[Name]["request"],
    onEvent?: (event: GenerateEvent) => void,
  ): Promise<Calls[Name]["answer"]> {
    if (this.#dead !== undefined) return Promise.reject(this.#dead);
    this.#lastId += 1;
    const id = this.#lastId;
    const answer = new Promise<Calls[Name]["answer"]>((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, onEvent });
    });
    this.#worker.postMessage({ id, name, request });
    return answer;
  }

  #receive(message: FromWorker): void {
    const waiting = this.#waiting.get(message.id);
    if (waiting === undefined) return;
    if (message.kind === "event") {
      waiting.onEvent?.(message.event);
      return;
    }
    this.#waiting.delete(message.id);
    if (message.kind === "answer") waiting.resolve(message.answer as never);
    else waiting.reject(new MferenceError(message.code ?? "engine.state", message.message));
  }

  #die(error: Error): void {
    this.#dead ??= error;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}
