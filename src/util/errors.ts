/** Every code an operating fault can carry; programmer errors use `assert` instead. */
export type ErrorCode =
  // The command line.
  | "usage.flag"
  | "usage.value"
  | "usage.input"
  // The native libraries.
  | "native.build"
  | "native.load"
  | "native.abi"
  | "native.call"
  | "native.memory"
  | "native.timeout"
  | "native.cancelled"
  | "native.lock"
  // Files of a checkpoint or a package.
  | "format.json"
  | "format.safetensors"
  | "format.config"
  | "format.manifest"
  | "format.layout"
  | "format.index"
  | "format.receipt"
  | "format.path"
  | "format.changed"
  // Installing and verifying.
  | "install.source"
  | "install.space"
  | "install.busy"
  | "install.exists"
  | "install.io"
  | "install.hash"
  | "install.size"
  | "install.missing"
  | "install.cancelled"
  // Downloading: the line, what the server sends, who may have it, what an earlier run left.
  | "install.network"
  | "install.remote"
  | "install.auth"
  | "install.offline"
  | "install.state"
  // Finding, loading and running a model.
  | "model.none"
  | "model.unknown"
  | "model.family"
  | "model.partial"
  | "model.text"
  | "expert.read"
  | "engine.state"
  | "engine.prompt"
  | "engine.context"
  | "engine.logits"
  | "engine.options"
  // Text.
  | "text.tokenizer"
  | "text.template"
  | "text.messages"
  | "text.tools"
  | "text.json";

/** The one error class of the project: a stable `code` for callers, a sentence for people. */
export class MferenceError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = "MferenceError";
    this.code = code;
  }
}

/** Throws when a programmer's assumption is false. Never use it to validate input. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(`assertion failed: ${message}`);
}

/** The sentence of any thrown value. */
export function sentenceOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
