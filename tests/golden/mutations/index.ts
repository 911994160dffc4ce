/**
 * Mistakes that the golden fixtures of a family must notice. `scripts/mutate-golden.ts` applies them to a
 * copy of the tree, one at a time; nothing here runs.
 */
import { gemma4Mutations } from "./gemma4.ts";
import type { Mutation } from "./mutation.ts";
import { qwen36Mutations } from "./qwen36.ts";

export type { Edit, Mutation } from "./mutation.ts";

/** A family's fixtures, and every mutation that they are to notice. */
export interface MutationList {
  readonly fixtures: readonly string[];
  readonly mutations: readonly Mutation[];
}

export const mutationLists: readonly MutationList[] = [
  { fixtures: ["gemma4-a", "gemma4-a-h320", "gemma4-a-e16"], mutations: gemma4Mutations },
  { fixtures: ["qwen36-a", "qwen36-a-dk64"], mutations: qwen36Mutations },
];
