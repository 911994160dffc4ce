import { afterAll, expect, test } from "bun:test";
import { BLOCK_ROWS } from "../../src/kv/plan.ts";
import { floatsOf } from "../../src/ops/tensor.ts";
import { isMetal } from "../fixtures/devices.ts";
import { closeModels, loadTiny, openSession, promptOf } from "../fixtures/models.ts";

afterAll(closeModels);

/** Rings of a tiny model have 8 + 128 - 1 rows: this prompt fills them twice and more. */
const prompt = promptOf(330);
const CONTEXT_ROWS = 400;

/** Logits after the prompt and after a second, shorter one behind it; and the rows of each layer. */
async function run(chunkRows: number) {
  const model = await loadTiny({ contextRows: CONTEXT_ROWS, chunkRows });
  const session = openSession(model);
  const logits: Float32Array[] = [];
  for (const ids of [prompt, promptOf(60, 2)]) {
    await session.extend(Uint32Array.from(ids));
    model.stream.flush();
    logits.push(floatsOf(model.forward.logits).slice());
  }
  const rows = model.shape.kvLayers.map((_, layer) => model.kv.contents(layer).rows);
  return { logits, rows };
}

test.skipIf(isMetal)(
  "chunks longer than a block leave the same logits and need no longer rings (the CPU's sums do not depend on the rows of a chunk)",
  async () => {
    const wanted = await run(BLOCK_ROWS);
    expect(new Set(wanted.rows)).toEqual(new Set([8 + BLOCK_ROWS - 1, CONTEXT_ROWS]));
    for (const chunkRows of [BLOCK_ROWS + 1, 200, 330]) {
      expect(await run(chunkRows)).toEqual(wanted);
    }
    expect((await run(29)).logits).toEqual(wanted.logits);
  },
);
