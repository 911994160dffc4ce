/**
 * A dialect's markers as ids of one vocabulary. A marker that the vocabulary lacks is an error here
 * and not a silent unknown token later.
 */
import { MferenceError } from "../util/errors.ts";
import type { ChatDialect, StopMeaning } from "./dialect.ts";
import type { Tokenizer } from "./tokenizer.ts";

export type Markers = {
  readonly bos: number | undefined;
  /** Stop ids with their meaning. */
  readonly stops: ReadonlyMap<number, StopMeaning>;
  readonly hiddenOpen: number | undefined;
  readonly hiddenClose: number | undefined;
  readonly callOpen: number | undefined;
  readonly callClose: number | undefined;
  /** Every structural marker: a run of bytes ends at each. */
  readonly barriers: ReadonlySet<number>;
  readonly exempt: ReadonlySet<number>;
};

/** @throws MferenceError "text.tokenizer" for a missing marker, by name */
export function resolveMarkers(tokenizer: Tokenizer, dialect: ChatDialect): Markers {
  const find = (spelling: string): number => {
    const id = tokenizer.tokenId(spelling);
    if (id !== undefined && tokenizer.piece(id) === spelling) return id;
    throw new MferenceError(
      "text.tokenizer",
      `the tokenizer has no token ${spelling}, which the model's chat format needs: its files do not belong to this family`,
    );
  };
  const optional = (spelling: string | undefined) =>
    spelling === undefined ? undefined : find(spelling);
  const hidden = [optional(dialect.hidden?.open), optional(dialect.hidden?.close)] as const;
  const calls = [optional(dialect.calls?.open), optional(dialect.calls?.close)] as const;
  const others = dialect.barriers.map((spelling) => tokenizer.tokenId(spelling));
  const stops = new Map(dialect.stops.map(({ token, meaning }) => [find(token), meaning]));
  const barriers = [...hidden, ...calls, ...others, ...stops.keys()];
  return {
    bos: optional(dialect.bos),
    stops,
    hiddenOpen: hidden[0],
    hiddenClose: hidden[1],
    callOpen: calls[0],
    callClose: calls[1],
    barriers: new Set(barriers.filter((id) => id !== undefined)),
    exempt: new Set((dialect.exempt ?? []).map(find)),
  };
}
