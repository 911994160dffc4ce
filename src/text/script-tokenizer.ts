/**
 * The tokenizer in TypeScript, for machines without the native library: slower and several times
 * larger in memory, the same ids. Owns the use of `@huggingface/tokenizers` and nothing else.
 */
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
import type { TokenizerCore } from "../native/tokenizer-library.ts";
import { MferenceError, sentenceOf } from "../util/errors.ts";

type TokenizerFile = {
  readonly model?: {
    readonly type?: string;
    readonly dropout?: number | null;
    readonly vocab?: Readonly<Record<string, number>>;
    readonly byte_fallback?: boolean;
    readonly unk_token?: string | null;
  };
  readonly normalizer?: unknown;
  readonly pre_tokenizer?: unknown;
  readonly decoder?: unknown;
  readonly added_tokens?: unknown;
};

/**
 * Opens a tokenizer.json.
 *
 * @throws MferenceError "text.tokenizer"
 */
export function openScriptTokenizer(path: string): TokenizerCore {
  try {
    const file = JSON.parse(readFileSync(path, "utf8")) as TokenizerFile;
    return createCore(file);
  } catch (cause) {
    throw new MferenceError("text.tokenizer", `the tokenizer ${path}: ${sentenceOf(cause)}`, {
      cause,
    });
  }
}

function createCore(file: TokenizerFile): TokenizerCore {
  const { model } = file;
  const kind = model?.type ?? "BPE";
  if (kind !== "BPE") throw new Error(`its model is ${kind}; only BPE is supported`);
  if (typeof model?.vocab !== "object") throw new Error("its model has no vocabulary");
  if ((model.dropout ?? 0) !== 0) {
    throw new Error("its model has a dropout, which makes encoding random");
  }
  const description = JSON.stringify({
    normalizer: file.normalizer ?? null,
    pre_tokenizer: file.pre_tokenizer ?? null,
    decoder: file.decoder ?? null,
    added_tokens: file.added_tokens ?? [],
    model: {
      type: kind,
      byte_fallback: model.byte_fallback ?? false,
      unk_token: model.unk_token ?? null,
    },
  });
  let modelSize = 0;
  for (const id of Object.values(model.vocab)) modelSize = Math.max(modelSize, id + 1);
  const defaults = { normalizer: null, pre_tokenizer: null, decoder: null };
  // Without its added tokens the library takes every text for text; with its post-processor it would
  // add a beginning-of-sequence token.
  const plain = { ...defaults, ...file, added_tokens: [], post_processor: null };
  const tokenizer = new Tokenizer(plain, {});
  return {
    description,
    modelSize,
    encode: (text) =>
      text === ""
        ? new Uint32Array(0)
        : Uint32Array.from(tokenizer.encode(text, { add_special_tokens: false }).ids),
    piece: (id) => tokenizer.id_to_token(id),
    id: (piece) => tokenizer.token_to_id(piece),
    close: () => {},
  };
}
