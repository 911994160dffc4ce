/**
 * One mutable timeline over a loaded model: which ids the KV cache holds, extending it, going back, and
 * choosing the next token. A failure poisons it until `reset`; a cancellation does not, because the
 * cursor moves only when a chunk is complete.
 */
import type { Tap } from "../families/family.ts";
import { assert, MferenceError } from "../util/errors.ts";
import { type Choice, Head } from "./head.ts";
import type { Model } from "./model.ts";

export interface ExtendOptions {
  /** Whose logits are wanted: the last id's, every id's (a chunk must then fit `logitRows`), or none. */
  readonly head?: "none" | "last" | "all";
  /** Rows of each chunk; at most the model's. */
  readonly chunkRows?: number;
  readonly tap?: Tap;
  /** Called after each chunk with the ids done so far. */
  readonly onChunk?: (done: number) => void;
  /** Polled before each chunk. */
  readonly isCancelled?: () => boolean;
}

export class Session {
  readonly model: Model;
  readonly #head: Head;
  #ids: number[] = [];
  /** Positions whose rows the device has certainly finished. */
  #complete = 0;
  #fault: MferenceError | undefined;

  /** `tokenCount`: ids from there on pad the vocabulary and are never chosen. */
  constructor(model: Model, tokenCount = model.shape.vocabSize) {
    this.model = model;
    const { logits } = model.forward;
    this.#head = new Head({
      stream: model.stream,
      logits: { ...logits, columns: Math.min(logits.columns, tokenCount), rows: 1 },
      finalSoftcap: model.shape.finalSoftcap,
      contextRows: model.kv.contextRows,
    });
  }

  /** The ids whose keys and values are held, in order. */
  get ids(): readonly number[] {
    return this.#ids;
  }

  get scratchBytes(): number {
    return this.#head.scratchBytes;
  }

  /**
   * Appends ids, in chunks. After an error the session must be reset; after a cancellation it holds the
   * complete chunks.
   *
   * @throws MferenceError "engine.context" when they do not fit, "engine.state" on a poisoned session,
   *   "native.cancelled"
   */
  async extend(ids: Uint32Array, options: ExtendOptions = {}): Promise<void> {
    const { head = "last", onChunk, isCancelled } = options;
    const { model } = this;
    this.#check(ids);
    const chunkRows = Math.min(options.chunkRows ?? model.chunkRows, model.chunkRows);
    assert(chunkRows >= 1, "a chunk has one row at least");
    await this.#guard(async () => {
      for (let done = 0; done < ids.length; done += chunkRows) {
        if (isCancelled?.() === true) throw new MferenceError("native.cancelled", "cancelled");
        const chunk = ids.subarray(done, done + chunkRows);
        const isLast = done + chunk.length === ids.length;
        const wanted = head === "last" && !isLast ? "none" : head;
        // What the last chunk reads is about to be written by the host, and states are copied.
        this.#settle();
        model.kv.begin(chunk.length, done === 0);
        await this.#run(chunk, wanted, options.tap);
        onChunk?.(done + chunk.length);
      }
    });
  }

  /** Chooses the token after the last id; the logits of `extend` must be there. */
  async choose(choice: Choice): Promise<number> {
    return await this.#guard(() => {
      const id = this.#head.choose(choice);
      this.#finished();
      return Promise.resolve(id);
    });
  }

  /**
   * Goes back so that the session holds a prefix of `ids`, the longest that the caches still allow, and
   * returns its length: at most `ids.length - 1`, since one id has to be computed for its logits.
   */
  reuse(ids: Uint32Array): number {
    let common = 0;
    const most = Math.min(this.#ids.length, ids.length - 1);
    while (common < most && this.#ids[common] === ids[common]) common += 1;
    const kept = this.#fault === undefined ? this.model.kv.restorable(common) : 0;
    if (kept === 0) this.reset();
    else this.#goBack(kept);
    return kept;
  }

  /** Forgets everything; the only way out of a poisoned session. */
  reset(): void {
    this.model.kv.reset();
    this.#ids = [];
    this.#complete = 0;
    this.#fault = undefined;
  }

  close(): void {
    this.model.stream.abandon();
    this.#head.close();
  }

  async #run(ids: Uint32Array, head: "none" | "last" | "all", tap: Tap | undefined): Promise<void> {
    const { kv, forward, stream, experts } = this.model;
    assert(head !== "all" || ids.length <= forward.logits.rows, "the logits of a chunk fit");
    this.model.checkMapped();
    const position = kv.cursor;
    await forward.run({ ids, position, head, tap });
    await experts.settle();
    kv.advance(ids.length);
    for (const id of ids) this.#ids.push(id);
    // The head's passes join the open list; without a head the chunk is completed here.
    if (head !== "none") return;
    stream.flush();
    this.#finished();
  }

  /** Waits for everything recorded, if anything may still run. */
  #settle(): void {
    if (this.#complete === this.model.kv.cursor) return;
    this.model.stream.flush();
    this.#finished();
  }

  /** The device has certainly finished everything up to the cursor. */
  #finished(): void {
    this.#complete = this.model.kv.cursor;
    this.model.kv.settle();
  }

  #check(ids: Uint32Array): void {
    const { kv, shape } = this.model;
    if (this.#fault !== undefined) {
      throw new MferenceError(
        "engine.state",
        `the session failed earlier and must be reset: ${this.#fault.message}`,
      );
    }
    if (ids.length === 0)
      throw new MferenceError("engine.prompt", "there is nothing to compute: the prompt is empty");
    if (kv.cursor + ids.length > kv.contextRows) {
      throw new MferenceError(
        "engine.context",
        `${kv.cursor + ids.length} tokens do not fit the context of ${kv.contextRows}: shorten the prompt or raise --context`,
      );
    }
    const bad = ids.find((id) => id >= shape.vocabSize);
    if (bad !== undefined) {
      throw new MferenceError(
        "engine.prompt",
        `token id ${bad} is not in the vocabulary of ${shape.vocabSize}`,
      );
    }
  }

  /** Runs work; a failure leaves no list waiting, and poisons the session unless it was cancelled. */
  async #guard<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const cause = this.#explain(error);
      await this.#recover(cause);
      throw cause;
    }
  }

  /** Where a mapped file was cut under the device, that says more than that the device failed. */
  #explain(error: unknown): unknown {
    if (!(error instanceof MferenceError && error.code === "native.call")) return error;
    try {
      this.model.checkMapped();
      return error;
    } catch (cause) {
      return cause;
    }
  }

  async #recover(error: unknown): Promise<void> {
    const { stream, kv, experts } = this.model;
    // No read may go on into a slot, whether it arrives or not.
    await experts.settle().catch(() => undefined);
    stream.abandon();
    if (error instanceof MferenceError && error.code === "native.cancelled") {
      // What was under way was skipped; its rows are written again. Rings hold what came before a block;
      // behind more than that, a longer chunk, everything is.
      const kept = kv.restorable(this.#complete);
      if (kept === 0) this.reset();
      else this.#goBack(kept);
      return;
    }
    this.#fault =
      error instanceof MferenceError
        ? error
        : new MferenceError("engine.state", String(error), { cause: error });
  }

  #goBack(position: number): void {
    this.model.kv.rewind(position);
    this.#ids.length = position;
    this.#complete = position;
  }
}
