/** One mistake, as edits of the sources. C is mutated on the portable path only. */

/** A text that occurs exactly once in its file, and what takes its place. */
export interface Edit {
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

export interface Mutation {
  /** For `--only`. */
  readonly name: string;
  /** The mistake, for the table. */
  readonly title: string;
  readonly edits: readonly Edit[];
  /** Expert slots of each layer, where the mistake needs evictions to show. */
  readonly slots?: number;
}
