/** What the main thread and the engine's Worker say to each other: plain data, structured-cloned. */
import type { DeviceCounters, DeviceInfo } from "../native/device.ts";
import type { Precision } from "../ops/ops.ts";
import type { Policy } from "../format/package.ts";
import type { ErrorCode } from "../util/errors.ts";
import type { ModelMemory } from "./model.ts";
import type { SamplingRequest } from "./sampler.ts";

/** What to load and how. */
export interface LoadRequest {
  /** Folder of the package. */
  readonly directory: string;
  /** Path of the device library. */
  readonly library: string;
  /** Path of the tokenizer library; absent: the tokenizer in TypeScript. */
  readonly tokenizerLibrary?: string | undefined;
  readonly policy?: Policy | undefined;
  readonly precision?: Precision["name"] | undefined;
  readonly slots?: number | "resident" | undefined;
  readonly contextRows?: number | undefined;
  readonly chunkRows?: number | undefined;
  readonly threads?: number | undefined;
  readonly simd?: string | undefined;
}

/** What was loaded. */
export interface LoadedInfo {
  readonly directory: string;
  /** The checkpoint's id in the manifest. */
  readonly modelId: string;
  readonly family: string;
  readonly device: DeviceInfo;
  /** The handle by which the main thread cancels the device. */
  readonly deviceId: number;
  readonly precision: Precision["name"];
  readonly slots: number | "resident";
  readonly expertCount: number;
  readonly layerCount: number;
  readonly contextRows: number;
  readonly chunkRows: number;
  readonly vocabSize: number;
  /** False: the package takes and gives token ids only. */
  readonly hasText: boolean;
  /** False: raw completions only. */
  readonly hasChat: boolean;
  /** A sentence for people about what the package lacks. */
  readonly notice?: string | undefined;
  /** Sampling that the checkpoint asks for where the user says nothing. */
  readonly sampling: SamplingRequest;
  readonly loadSeconds: number;
}

/** Prompt of a request. */
export type Prompt =
  | { readonly kind: "ids"; readonly ids: readonly number[] }
  /** Raw completion; the family's first token is put before it. */
  | { readonly kind: "text"; readonly text: string }
  | {
      readonly kind: "chat";
      /** The API's list of messages as JSON text, so that key order and big integers survive. */
      readonly messages: string;
      /** The API's list of tools as JSON text. */
      readonly tools?: string | undefined;
      readonly think?: boolean | undefined;
    };

export interface GenerateRequest {
  readonly prompt: Prompt;
  readonly sampling: SamplingRequest;
  /** Most new tokens, the stop token included; clipped to what the context still holds. */
  readonly maxNew: number;
  readonly stop?: readonly string[] | undefined;
  /** Forget the caches first: a cold run. */
  readonly isCold?: boolean | undefined;
  /** File for the trace of routing and times; absent: none is written. */
  readonly trace?: string | undefined;
}

/** Why an answer ended; "malformedCall" is a tool call that is none, or of a tool that was not given. */
export type StopReason =
  | "eos"
  | "endOfTurn"
  | "toolCalls"
  | "malformedCall"
  | "stopString"
  | "maxTokens"
  | "context"
  | "cancelled";

/** What a generation reports while it runs. */
export type GenerateEvent =
  /** The prompt's length, and how much of it the caches held. */
  | { readonly type: "prompt"; readonly tokens: number; readonly cached: number }
  | { readonly type: "prefill"; readonly done: number; readonly total: number }
  /** Text of the answer. */
  | { readonly type: "content"; readonly text: string }
  /** Text of a thought; never part of the answer. */
  | { readonly type: "reasoning"; readonly text: string }
  /** A complete call; its arguments are JSON text. */
  | {
      readonly type: "toolCall";
      readonly id: string;
      readonly name: string;
      readonly arguments: string;
    }
  /** Something that the user should know about the answer. */
  | { readonly type: "notice"; readonly text: string }
  /** Every chosen id, the stop token included. */
  | { readonly type: "token"; readonly id: number };

export interface GenerateStats {
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly prefillSeconds: number;
  readonly newTokens: number;
  readonly decodeSeconds: number;
  /** From the request's arrival to the first chosen token. */
  readonly firstTokenSeconds: number;
  readonly hits: number;
  readonly misses: number;
  readonly allHitLayers: number;
  readonly layers: number;
  readonly bytesRead: number;
  /** Seconds the host awaited expert reads. */
  readonly readSeconds: number;
  /** Seconds the host was blocked waiting for the device. */
  readonly deviceWaitSeconds: number;
  readonly peakMemoryBytes: number;
}

export interface GenerateResult {
  readonly reason: StopReason;
  /** Chosen ids, the stop token included. */
  readonly ids: readonly number[];
  readonly stats: GenerateStats;
}

/** The state of the engine between requests. */
export interface EngineStatus {
  /** Ids in the KV cache. */
  readonly cachedTokens: number;
  readonly contextRows: number;
  readonly memory: ModelMemory;
  readonly counters: DeviceCounters;
  readonly peakMemoryBytes: number;
}

/** A request and the memory of its `CancelWord`. */
export interface GenerateCall {
  readonly request: GenerateRequest;
  readonly cancel: SharedArrayBuffer;
}

/** Calls that the Worker answers. */
export interface Calls {
  readonly load: { readonly request: LoadRequest; readonly answer: LoadedInfo };
  readonly generate: { readonly request: GenerateCall; readonly answer: GenerateResult };
  /** The ids of a prompt. */
  readonly tokenize: { readonly request: Prompt; readonly answer: readonly number[] };
  /** The text of a chat prompt, as its template renders it. */
  readonly render: { readonly request: Prompt; readonly answer: string };
  /** The text of ids, special tokens included. */
  readonly detokenize: { readonly request: readonly number[]; readonly answer: string };
  readonly reset: { readonly request: null; readonly answer: null };
  readonly status: { readonly request: null; readonly answer: EngineStatus };
  readonly close: { readonly request: null; readonly answer: null };
}

export type CallName = keyof Calls;

/** Main thread to Worker. */
export type ToWorker = {
  [Name in CallName]: {
    readonly id: number;
    readonly name: Name;
    readonly request: Calls[Name]["request"];
  };
}[CallName];

/** Worker to main thread. */
export type FromWorker =
  | { readonly kind: "event"; readonly id: number; readonly event: GenerateEvent }
  | { readonly kind: "answer"; readonly id: number; readonly answer: unknown }
  | {
      readonly kind: "error";
      readonly id: number;
      readonly code: ErrorCode | undefined;
      readonly message: string;
    };
