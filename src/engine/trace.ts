/**
 * Writes what routing did and what it cost, a line of JSON for the model and one for each chunk or token:
 * bench/replay.ts argues about cache policies from it. Holds no line longer than it takes to write it.
 */
import { closeSync, openSync, writeSync } from "node:fs";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import type { Model } from "./model.ts";
import type { GenerateEvent } from "./protocol.ts";

/** The first line: what was traced. */
export interface TraceHeader {
  readonly type: "model";
  readonly layers: number;
  readonly experts: number;
  readonly perToken: number;
  readonly slots: number | "resident";
  readonly strideBytes: number;
}

/** Each other line: the chunk or token that ended, since the line before. */
export interface TraceStep {
  readonly type: "prefill" | "token";
  /** Ids in the caches. */
  readonly position: number;
  readonly ms: number;
  /** Of it, the host was blocked by the device. */
  readonly waitMs: number;
  /** Of it, the host awaited reads. */
  readonly readMs: number;
  readonly bytesRead: number;
  /** Distinct experts of each layer in the order of their requests, and how many were missing. */
  readonly routes: readonly {
    readonly layer: number;
    readonly experts: readonly number[];
    readonly misses: number;
  }[];
}

export class Trace {
  readonly #model: Model;
  readonly #file: number;
  #routes: TraceStep["routes"][number][] = [];
  #before: Snapshot;

  /** @throws MferenceError "engine.options" when the file cannot be written */
  constructor(path: string, model: Model) {
    this.#model = model;
    this.#file = opened(path);
    const { shape, package: source, slots } = model;
    const header: TraceHeader = {
      type: "model",
      layers: source.layers.length,
      experts: shape.expertCount,
      perToken: shape.expertsPerToken,
      slots,
      strideBytes: source.strideBytes,
    };
    this.#write(header);
    this.#before = snapshotOf(this.#model);
    model.experts.observer = (layer, experts, misses) =>
      this.#routes.push({ layer, experts, misses });
  }

  /** To be told of everything that a generation reports. */
  show({ type }: GenerateEvent): void {
    if (type !== "prefill" && type !== "token") return;
    const after = snapshotOf(this.#model);
    const before = this.#before;
    const step: TraceStep = {
      type,
      position: this.#model.kv.cursor,
      ms: after.ms - before.ms,
      waitMs: 1000 * (after.waitSeconds - before.waitSeconds),
      readMs: 1000 * (after.readSeconds - before.readSeconds),
      bytesRead: after.bytesRead - before.bytesRead,
      routes: this.#routes,
    };
    this.#write(step);
    this.#routes = [];
    this.#before = after;
  }

  close(): void {
    this.#model.experts.observer = undefined;
    closeSync(this.#file);
  }

  #write(line: TraceHeader | TraceStep): void {
    writeSync(this.#file, `${JSON.stringify(line)}\n`);
  }
}

type Snapshot = ReturnType<typeof snapshotOf>;

function snapshotOf({ experts, stream }: Model) {
  const { readSeconds, bytesRead } = experts.counters;
  return { ms: performance.now(), waitSeconds: stream.waitSeconds, readSeconds, bytesRead };
}

function opened(path: string): number {
  try {
    return openSync(path, "w");
  } catch (cause) {
    const reason = `the trace cannot be written: ${sentenceOf(cause)}`;
    throw new MferenceError("engine.options", reason, { cause });
  }
}
