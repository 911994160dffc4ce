/**
 * One completion over a session: prefill what the caches lack, then choose, report and decode token by
 * token until something ends it. Knows text only as a decoder that turns ids into events.
 */
import type { AssistantEvent } from "../text/assistant-decoder.ts";
import { StopStrings } from "../text/stop-strings.ts";
import { writeJson } from "../text/json.ts";
import { MferenceError } from "../util/errors.ts";
import { peakMemoryBytes } from "../util/memory.ts";
import type { GenerateEvent, GenerateResult, GenerateStats, StopReason } from "./protocol.ts";
import {
  checkMaxNewTokens,
  type SamplingOptions,
  samplingOptions,
  type SamplingRequest,
  seedFromClock,
  SeenTokens,
} from "./sampler.ts";
import type { Session } from "./session.ts";

/** Turns chosen ids into what the user sees. */
export interface AnswerDecoder {
  push(id: number): AssistantEvent[];
  finish(options: { readonly isTruncated: boolean }): AssistantEvent[];
}

export interface Completion {
  readonly promptIds: readonly number[];
  readonly sampling: SamplingRequest;
  readonly maxNew: number;
  readonly stop: readonly string[];
  /** Absent: ids only. */
  readonly decoder?: AnswerDecoder | undefined;
  /** Why an id ends the answer; undefined for an id that does not. */
  readonly stopReason: (id: number) => StopReason | undefined;
  readonly onEvent: (event: GenerateEvent) => void;
  readonly isCancelled: () => boolean;
}

/** What is checked before anything changes. */
interface Checked {
  readonly ids: Uint32Array;
  readonly options: SamplingOptions & { readonly seed: bigint };
  readonly maxNew: number;
}

/**
 * Runs a completion. Everything about the request is checked before the session is touched.
 *
 * @throws MferenceError "engine.prompt", "engine.context", "engine.options", "expert.read", "text.tools"
 */
export async function complete(session: Session, completion: Completion): Promise<GenerateResult> {
  const checked = check(session, completion);
  const run = new Run(session, completion, checked);
  try {
    await run.prefill();
    await run.decode();
  } catch (error) {
    if (!(error instanceof MferenceError && error.code === "native.cancelled")) throw error;
    run.end("cancelled");
  }
  return run.result();
}

function check(session: Session, completion: Completion): Checked {
  const { kv, shape } = session.model;
  const { promptIds } = completion;
  if (promptIds.length === 0) throw new MferenceError("engine.prompt", "the prompt is empty");
  const bad = promptIds.find((id) => !(Number.isInteger(id) && id >= 0 && id < shape.vocabSize));
  if (bad !== undefined) {
    throw new MferenceError(
      "engine.prompt",
      `token id ${bad} is not in the vocabulary of ${shape.vocabSize}`,
    );
  }
  if (promptIds.length >= kv.contextRows) {
    throw new MferenceError(
      "engine.context",
      `the prompt has ${promptIds.length} tokens and the context holds ${kv.contextRows}, the answer included: ` +
        "shorten the prompt or ask for a larger context",
    );
  }
  const options = samplingOptions(completion.sampling);
  const maxNew = checkMaxNewTokens(completion.maxNew);
  const seed = options.seed ?? seedFromClock(BigInt(Bun.nanoseconds()));
  return { ids: Uint32Array.from(promptIds), options: { ...options, seed }, maxNew };
}

class Run {
  readonly #session: Session;
  readonly #completion: Completion;
  readonly #checked: Checked;
  readonly #stops: StopStrings;
  readonly #seen: SeenTokens;
  readonly #before: ReturnType<typeof counters>;
  readonly #begin = performance.now();
  readonly #ids: number[] = [];
  #cached = 0;
  #prefillSeconds = 0;
  #firstTokenSeconds = 0;
  #decodeBegin = 0;
  #decodeSeconds = 0;
  #reason: StopReason | undefined;

  constructor(session: Session, completion: Completion, checked: Checked) {
    this.#session = session;
    this.#completion = completion;
    this.#checked = checked;
    this.#stops = new StopStrings(completion.stop);
    this.#seen = new SeenTokens(session.model.shape.vocabSize);
    this.#before = counters(session);
  }

  async prefill(): Promise<void> {
    const { ids } = this.#checked;
    const { onEvent, isCancelled } = this.#completion;
    this.#session.model.checkFiles();
    this.#cached = this.#session.reuse(ids);
    onEvent({ type: "prompt", tokens: ids.length, cached: this.#cached });
    const rest = ids.subarray(this.#cached);
    const total = rest.length;
    const onChunk = (done: number): void => {
      onEvent({ type: "prefill", done, total });
      // The last chunk's work may still be under way.
      if (done < total) this.#relieve();
    };
    await this.#session.extend(rest, { onChunk, isCancelled });
    for (const id of ids) this.#seen.add(id);
  }

  async decode(): Promise<void> {
    const { maxNew } = this.#checked;
    const { kv } = this.#session.model;
    let id = await this.#choose();
    this.#firstTokenSeconds = (performance.now() - this.#begin) / 1000;
    this.#prefillSeconds = this.#firstTokenSeconds;
    this.#decodeBegin = performance.now();
    for (;;) {
      this.#accept(id);
      if (this.#reason !== undefined) return;
      if (this.#ids.length >= maxNew) return this.end("maxTokens");
      if (kv.cursor >= kv.contextRows) return this.end("context");
      if (this.#completion.isCancelled()) return this.end("cancelled");
      this.#relieve();
      await this.#session.extend(Uint32Array.of(id));
      id = await this.#choose();
    }
  }

  /** Gives memory back where it is scarce. */
  #relieve(): void {
    const sentence = this.#session.model.relieve();
    if (sentence !== undefined) this.#completion.onEvent({ type: "notice", text: sentence });
  }

  /** Ends the answer and releases the text that was held back. */
  end(reason: StopReason): void {
    this.#reason ??= reason;
    if (this.#decodeBegin > 0) this.#decodeSeconds = (performance.now() - this.#decodeBegin) / 1000;
    if (this.#stops.hit !== undefined) return;
    const isTruncated = reason === "maxTokens" || reason === "context" || reason === "cancelled";
    const { decoder } = this.#completion;
    if (reason !== "malformedCall") this.#decode(() => decoder?.finish({ isTruncated }) ?? []);
    this.#emitContent(this.#stops.flush());
  }

  result(): GenerateResult {
    return { reason: this.#reason ?? "cancelled", ids: this.#ids, stats: this.#stats() };
  }

  async #choose(): Promise<number> {
    const { options } = this.#checked;
    const index = this.#ids.length;
    return await this.#session.choose({ options, index, seen: this.#seen.ids });
  }

  #accept(id: number): void {
    const { onEvent, stopReason, decoder } = this.#completion;
    this.#ids.push(id);
    this.#seen.add(id);
    onEvent({ type: "token", id });
    const reason = stopReason(id);
    if (reason !== undefined) return this.end(reason);
    this.#decode(() => decoder?.push(id) ?? []);
    if (this.#stops.hit !== undefined) this.end("stopString");
  }

  /** Reports what ids mean. A malformed call ends the answer; what was said before it stays. */
  #decode(events: () => AssistantEvent[]): void {
    try {
      this.#report(events());
    } catch (error) {
      if (!(error instanceof MferenceError && error.code === "text.tools")) throw error;
      this.#completion.onEvent({ type: "notice", text: error.message });
      this.#reason = undefined;
      this.end("malformedCall");
    }
  }

  #report(events: readonly AssistantEvent[]): void {
    for (const event of events) {
      if (event.type === "content") {
        this.#emitContent(this.#stops.push(event.text));
      } else if (event.type === "reasoning") {
        this.#completion.onEvent(event);
      } else {
        const { id, name } = event.call;
        this.#completion.onEvent({
          type: "toolCall",
          id,
          name,
          arguments: writeJson(event.call.arguments),
        });
      }
    }
  }

  #emitContent(text: string): void {
    if (text !== "") this.#completion.onEvent({ type: "content", text });
  }

  #stats(): GenerateStats {
    const after = counters(this.#session);
    const before = this.#before;
    return {
      promptTokens: this.#checked.ids.length,
      cachedTokens: this.#cached,
      prefillSeconds: this.#prefillSeconds,
      newTokens: this.#ids.length,
      decodeSeconds: this.#decodeSeconds,
      firstTokenSeconds: this.#firstTokenSeconds,
      hits: after.hits - before.hits,
      misses: after.misses - before.misses,
      allHitLayers: after.allHitLayers - before.allHitLayers,
      layers: after.layers - before.layers,
      bytesRead: after.bytesRead - before.bytesRead,
      readSeconds: after.readSeconds - before.readSeconds,
      deviceWaitSeconds: after.waitSeconds - before.waitSeconds,
      peakMemoryBytes: peakMemoryBytes(),
    };
  }
}

function counters({ model }: Session) {
  return { ...model.experts.counters, waitSeconds: model.stream.waitSeconds };
}
