/**
 * Generated ids to what an assistant does: thinks, says, calls tools. Marker ids never appear as text,
 * a call is reported only when it is complete, and anything malformed fails for good. Knows markers and
 * a grammar by the dialect; no family.
 */
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { Detokenizer } from "./detokenizer.ts";
import type { ChatDialect } from "./dialect.ts";
import type { Markers } from "./markers.ts";
import type { TextParameter, ToolCall } from "./messages.ts";
import type { Tokenizer } from "./tokenizer.ts";

export type AssistantEvent =
  | { readonly type: "reasoning"; readonly text: string }
  | { readonly type: "content"; readonly text: string }
  | { readonly type: "toolCall"; readonly call: ToolCall };

export type AssistantDecoderOptions = {
  /** Names that may be called; every other call is malformed. */
  readonly toolNames?: ReadonlySet<string>;
  /** Which parameters of those tools are texts, whatever they look like. */
  readonly isText?: TextParameter;
  /** The prompt: what it leaves open is where the answer begins. */
  readonly promptIds?: readonly number[];
  /** Makes the id of a call; random by default. */
  readonly createId?: () => string;
};

type DecoderParts = {
  readonly tokenizer: Tokenizer;
  readonly dialect: ChatDialect;
  readonly markers: Markers;
};

type State = "visible" | "label" | "hidden" | "call" | "failed";

const CALL_BYTES_MAX = 262_144;
const CALL_TOKENS_MAX = CALL_BYTES_MAX / 4;
/** A label is a word; a region without a line feed for longer than this has none. */
const LABEL_CHARACTERS_MAX = 64;

export class AssistantDecoder {
  readonly #parts: DecoderParts;
  readonly #toolNames: ReadonlySet<string>;
  readonly #isText: TextParameter | undefined;
  readonly #createId: () => string;
  readonly #detokenizer: Detokenizer;
  #state: State = "visible";
  #label = "";
  #call: CallBuffer | undefined;
  /** White space that is shown only if text follows it in the same region. */
  #held = "";
  /** Whether the region has shown text. */
  #hasText = false;

  constructor(parts: DecoderParts, options: AssistantDecoderOptions = {}) {
    const { barriers, exempt } = parts.markers;
    this.#parts = parts;
    this.#toolNames = options.toolNames ?? new Set();
    this.#isText = options.isText;
    this.#createId = options.createId ?? createCallId;
    this.#detokenizer = new Detokenizer(parts.tokenizer, { barriers, exempt });
    this.#begin(options.promptIds ?? []);
  }

  /** Whether the text to come is a thought. */
  get isHidden(): boolean {
    return this.#state === "hidden" || this.#state === "label";
  }

  /** Whether a call has begun and not ended. */
  get isInCall(): boolean {
    return this.#state === "call";
  }

  /**
   * What the next generated id, no stop id, adds.
   *
   * @throws MferenceError "text.tools" on a malformed call, and ever after
   */
  push(id: number): AssistantEvent[] {
    if (this.#state === "failed") this.#fail("the answer was malformed before");
    const { markers } = this.#parts;
    if (this.#call !== undefined) return this.#pushToCall(this.#call, id);
    const events = this.#route(this.#detokenizer.push(id));
    if (id === markers.callOpen) {
      this.#enter("call");
      this.#call = new CallBuffer(this.#parts.tokenizer);
    } else if (id === markers.callClose) {
      this.#fail("a tool call ends that never began");
    } else if (id === markers.hiddenOpen) {
      this.#openRegion();
    } else if (id === markers.hiddenClose) {
      this.#enter("visible");
    }
    return events;
  }

  /**
   * What is held at the end of the answer. An open call is dropped if the answer was cut short by its
   * limit or by a cancel, and malformed otherwise.
   *
   * @throws MferenceError "text.tools"
   */
  finish({ isTruncated }: { readonly isTruncated: boolean }): AssistantEvent[] {
    if (this.#state === "failed") this.#fail("the answer was malformed before");
    if (this.#call !== undefined) {
      if (!isTruncated) this.#fail("the answer ends inside a tool call");
      this.#call = undefined;
      this.#enter("visible");
      return [];
    }
    return this.#route(this.#detokenizer.flush());
  }

  #openRegion(): void {
    this.#enter(this.#parts.dialect.hidden?.isLabelled === true ? "label" : "hidden");
    this.#label = "";
  }

  /** Enters the region that the prompt opened last, unless it closed or its turn ended. */
  #begin(promptIds: readonly number[]): void {
    const { hiddenOpen, hiddenClose, stops } = this.#parts.markers;
    if (hiddenOpen === undefined) return;
    const isEdge = (id: number) => id === hiddenOpen || id === hiddenClose || stops.has(id);
    const last = promptIds.findLastIndex(isEdge);
    if (promptIds[last] !== hiddenOpen) return;
    this.#openRegion();
    const opened = new Detokenizer(this.#parts.tokenizer);
    for (const id of promptIds.slice(last + 1)) this.#route(opened.push(id));
  }

  /** Gives text to the state in force. */
  #route(text: string): AssistantEvent[] {
    if (text === "") return [];
    if (this.#state === "label") return this.#routeLabel(text);
    const shown = this.#parts.dialect.isTrimmed === true ? this.#trim(text) : text;
    if (shown === "") return [];
    return [{ type: this.#state === "hidden" ? "reasoning" : "content", text: shown }];
  }

  /** Drops white space at both ends of a region: what may be the end is held until text follows. */
  #trim(text: string): string {
    const all = this.#held + text;
    const end = all.trimEnd().length;
    const begin = this.#hasText ? 0 : all.length - all.trimStart().length;
    if (end <= begin) {
      this.#held = this.#hasText ? all : "";
      return "";
    }
    this.#held = all.slice(end);
    this.#hasText = true;
    return all.slice(begin, end);
  }

  /** Enters another region, whose white space is judged anew. */
  #enter(state: State): void {
    this.#state = state;
    this.#held = "";
    this.#hasText = false;
  }

  #routeLabel(text: string): AssistantEvent[] {
    this.#label += text;
    const end = this.#label.indexOf("\n");
    if (end < 0) {
      if (this.#label.length <= LABEL_CHARACTERS_MAX) return [];
      this.#state = "hidden";
      return this.#route(this.#label);
    }
    const label = this.#label.slice(0, end).trim().toLowerCase();
    const rest = this.#label.slice(end + 1);
    const isVisible = this.#parts.dialect.hidden?.visibleLabels.includes(label) === true;
    this.#state = isVisible ? "visible" : "hidden";
    return this.#route(rest);
  }

  #pushToCall(buffer: CallBuffer, id: number): AssistantEvent[] {
    const { callOpen, callClose } = this.#parts.markers;
    if (id === callOpen) this.#fail("a tool call begins inside a tool call");
    if (id !== callClose) {
      if (!buffer.push(id)) this.#fail(`a tool call is longer than ${CALL_BYTES_MAX} bytes`);
      return [];
    }
    const call = this.#readCall(buffer.text());
    this.#call = undefined;
    this.#enter("visible");
    return [{ type: "toolCall", call }];
  }

  #readCall(body: string): ToolCall {
    let parsed;
    try {
      parsed = this.#parts.dialect.calls!.parse(body, this.#isText);
    } catch (cause) {
      return this.#fail(`a tool call is malformed: ${sentenceOf(cause)}`, cause);
    }
    if (!this.#toolNames.has(parsed.name)) {
      const known = [...this.#toolNames].join(", ") || "none";
      return this.#fail(`the model called the unknown tool ${parsed.name}; known are ${known}`);
    }
    return { id: this.#createId(), ...parsed };
  }

  #fail(sentence: string, cause?: unknown): never {
    this.#state = "failed";
    throw new MferenceError("text.tools", sentence, { cause });
  }
}

/** The text between a call's markers, every token written out. */
class CallBuffer {
  readonly #detokenizer: Detokenizer;
  readonly #deltas: string[] = [];
  #bytes = 0;
  #tokens = 0;

  constructor(tokenizer: Tokenizer) {
    this.#detokenizer = new Detokenizer(tokenizer, { specials: "text" });
  }

  /** Whether there was room. */
  push(id: number): boolean {
    const delta = this.#detokenizer.push(id);
    this.#deltas.push(delta);
    this.#bytes += Buffer.byteLength(delta);
    this.#tokens += 1;
    return this.#bytes <= CALL_BYTES_MAX && this.#tokens <= CALL_TOKENS_MAX;
  }

  text(): string {
    return this.#deltas.join("") + this.#detokenizer.flush();
  }
}

function createCallId(): string {
  return `call_${crypto.getRandomValues(new Uint8Array(12)).toHex()}`;
}
