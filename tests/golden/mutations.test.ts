/** That every mutation still is one: its text stands once in its file. The runs themselves take minutes. */
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { mutationLists } from "./mutations/index.ts";

const mutations = mutationLists.flatMap((list) => list.mutations);

test.each(mutations.map(({ name, edits }) => [name, edits] as const))("%s applies", (_, edits) => {
  for (const { file, from } of edits) {
    const text = readFileSync(join(import.meta.dir, "../..", file), "utf8");
    expect([from, text.split(from).length - 1]).toEqual([from, 1]);
  }
});
