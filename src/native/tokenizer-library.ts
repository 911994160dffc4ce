/**
 * Loads the tokenizer library and owns its handles. The symbol table below is the only list of its
 * functions on this side; the other is include/mf_tokenizer.h. Knows no model, and nothing of control
 * tokens: what it encodes is text.
 */
import { dlopen } from "bun:ffi";
import { MferenceError, sentenceOf } from "../util/errors.ts";

const ABI_VERSION = 1;
const NOT_FOUND = 2;

const SYMBOLS = {
  mf_tokenizer_abi_version: { args: [], returns: "u32" },
  mf_tokenizer_last_error: { args: ["ptr", "u32"], returns: "u32" },
  mf_tokenizer_open: { args: ["ptr", "u32", "ptr"], returns: "i32" },
  mf_tokenizer_close: { args: ["u32"], returns: "i32" },
  mf_tokenizer_model_size: { args: ["u32", "ptr"], returns: "i32" },
  mf_tokenizer_describe: { args: ["u32", "ptr"], returns: "i32" },
  mf_tokenizer_encode: { args: ["u32", "ptr", "u32", "ptr"], returns: "i32" },
  mf_tokenizer_piece: { args: ["u32", "u32", "ptr"], returns: "i32" },
  mf_tokenizer_id: { args: ["u32", "ptr", "u32", "ptr"], returns: "i32" },
  mf_tokenizer_result: { args: ["ptr", "u32"], returns: "u32" },
} as const;

type Symbols = ReturnType<typeof dlopen<typeof SYMBOLS>>["symbols"];

/**
 * What turns text into ids, whichever library does it. Added tokens are not recognised in the text
 * and are not among its pieces unless the model's own vocabulary holds them.
 */
export type TokenizerCore = {
  /** JSON of the file's `normalizer`, `pre_tokenizer`, `decoder`, `added_tokens` and `model` kind. */
  readonly description: string;
  /** One more than the largest id of the model's own pieces. */
  readonly modelSize: number;
  encode(text: string): Uint32Array;
  piece(id: number): string | undefined;
  id(piece: string): number | undefined;
  close(): void;
};

/** A loaded tokenizer library. */
export type TokenizerLibrary = {
  /** @throws MferenceError "text.tokenizer" for a file that is not a supported tokenizer */
  open(path: string): TokenizerCore;
};

/** Libraries stay loaded for the life of the process, so that each is opened once. */
const loaded = new Map<string, TokenizerLibrary>();

/**
 * Opens a tokenizer library and refuses one of another ABI version.
 *
 * @throws MferenceError "native.load", "native.abi"
 */
export function openTokenizerLibrary(path: string): TokenizerLibrary {
  const known = loaded.get(path);
  if (known !== undefined) return known;
  let symbols: Symbols;
  try {
    symbols = dlopen(path, SYMBOLS).symbols;
  } catch (cause) {
    const reason = `cannot load the tokenizer library ${path}: ${sentenceOf(cause)}`;
    throw new MferenceError("native.load", reason, { cause });
  }
  const version = symbols.mf_tokenizer_abi_version();
  if (version !== ABI_VERSION) {
    throw new MferenceError(
      "native.abi",
      `${path} has tokenizer ABI version ${version}, expected ${ABI_VERSION}: build it again`,
    );
  }
  const library = { open: (file: string) => openCore(symbols, file) };
  loaded.set(path, library);
  return library;
}

function openCore(symbols: Symbols, file: string): TokenizerCore {
  const out = new Uint32Array(2);
  const path = new TextEncoder().encode(file);
  if (path.length === 0) {
    throw new MferenceError("text.tokenizer", "the path of the tokenizer file is empty");
  }
  check(symbols, symbols.mf_tokenizer_open(path, path.length, out), file);
  return new NativeCore(symbols, out[0]!, file);
}

/** Throws with the library's own sentence unless the call succeeded or found nothing. */
function check(symbols: Symbols, status: number, file: string): boolean {
  if (status === 0) return true;
  if (status === NOT_FOUND) return false;
  const text = new Uint8Array(1024);
  const length = Math.min(symbols.mf_tokenizer_last_error(text, text.length), text.length);
  const sentence = new TextDecoder().decode(text.subarray(0, length));
  throw new MferenceError("text.tokenizer", `the tokenizer ${file}: ${sentence}`);
}

class NativeCore implements TokenizerCore {
  readonly description: string;
  readonly modelSize: number;
  readonly #symbols: Symbols;
  readonly #handle: number;
  readonly #file: string;
  /** One out-parameter for all calls; its buffer is never touched, only its elements. */
  readonly #out = new Uint32Array(2);
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  readonly #encoder = new TextEncoder();
  #isClosed = false;

  constructor(symbols: Symbols, handle: number, file: string) {
    this.#symbols = symbols;
    this.#handle = handle;
    this.#file = file;
    this.#check(symbols.mf_tokenizer_model_size(handle, this.#out));
    this.modelSize = this.#out[0]!;
    this.#check(symbols.mf_tokenizer_describe(handle, this.#out));
    this.description = this.#text(this.#out[0]!);
  }

  encode(text: string): Uint32Array {
    const bytes = this.#encoder.encode(text);
    if (bytes.length === 0) return new Uint32Array(0);
    this.#check(this.#symbols.mf_tokenizer_encode(this.#handle, bytes, bytes.length, this.#out));
    const ids = new Uint32Array(this.#out[0]! / 4);
    if (ids.length > 0) this.#symbols.mf_tokenizer_result(ids, ids.byteLength);
    return ids;
  }

  piece(id: number): string | undefined {
    if (!Number.isInteger(id) || id < 0 || id >= this.modelSize) return undefined;
    const isFound = this.#check(this.#symbols.mf_tokenizer_piece(this.#handle, id, this.#out));
    return isFound ? this.#text(this.#out[0]!) : undefined;
  }

  id(piece: string): number | undefined {
    const bytes = this.#encoder.encode(piece);
    if (bytes.length === 0) return undefined;
    const isFound = this.#check(
      this.#symbols.mf_tokenizer_id(this.#handle, bytes, bytes.length, this.#out),
    );
    return isFound ? this.#out[0] : undefined;
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#check(this.#symbols.mf_tokenizer_close(this.#handle));
  }

  #check(status: number): boolean {
    return check(this.#symbols, status, this.#file);
  }

  /** The library's last result as text. */
  #text(bytes: number): string {
    if (bytes === 0) return "";
    const buffer = new Uint8Array(bytes);
    this.#symbols.mf_tokenizer_result(buffer, bytes);
    return this.#decoder.decode(buffer);
  }
}
