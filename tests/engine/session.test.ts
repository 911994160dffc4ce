import { afterAll, describe, expect, test } from "bun:test";
import { complete } from "../../src/engine/generate.ts";
import { Session } from "../../src/engine/session.ts";
import { readAt } from "../../src/experts/reader.ts";
import { patienceMs } from "../fixtures/devices.ts";
import { failureOf } from "../fixtures/failures.ts";
import {
  closeModels,
  completionOf,
  continueFrom,
  loadTiny,
  openSession,
  promptOf,
  tinySession,
} from "../fixtures/models.ts";
import { packageOf } from "../fixtures/packages.ts";

afterAll(closeModels);

const prompt = promptOf(30);

/** A cold run's continuation: what every other way must give. */
async function coldRun(ids: readonly number[], count = 6): Promise<readonly number[]> {
  return await continueFrom(await tinySession(), ids, count);
}

/** Runs a prompt and returns how much of it the session reused, and the continuation. */
async function warmRun(session: Session, promptIds: readonly number[], maxNew = 6) {
  const { ids, stats } = await complete(session, completionOf(promptIds, { maxNew }));
  return { ids, cached: stats.cachedTokens };
}

describe("extending", () => {
  test("gives the same continuation however the prompt is cut", async () => {
    const wanted = await coldRun(prompt, 12);
    for (const chunkRows of [1, 3, 29, 64]) {
      const session = await tinySession({ chunkRows });
      expect(await continueFrom(session, prompt, 12)).toEqual(wanted);
    }
    const session = await tinySession({ chunkRows: 8 });
    for (const [first, end] of [
      [0, 1],
      [1, 14],
      [14, 29],
    ] as const) {
      const ids = Uint32Array.from(prompt.slice(first, end));
      await session.extend(ids, { head: "none", chunkRows: 5 });
    }
    expect(await warmRun(session, prompt, 12)).toEqual({ ids: wanted, cached: 29 });
  });

  test("reports each chunk", async () => {
    const session = await tinySession({ chunkRows: 8 });
    const done: number[] = [];
    const ids = Uint32Array.from(prompt);
    await session.extend(ids, { head: "none", onChunk: (rows) => done.push(rows) });
    expect(done).toEqual([8, 16, 24, 30]);
    expect(session.ids).toEqual(prompt);
  });

  test.each([
    [[], "engine.prompt", "the prompt is empty"],
    [[3, 512], "engine.prompt", "token id 512 is not in the vocabulary of 512"],
    [
      [...promptOf(60), ...promptOf(60)],
      "engine.context",
      "120 tokens do not fit the context of 96",
    ],
  ] as const)("refuses %j and goes on", async (ids, code, sentence) => {
    const session = await tinySession();
    const failure = await failureOf(() => session.extend(Uint32Array.from(ids)));
    expect(failure.code).toBe(code);
    expect(failure.message).toContain(sentence);
    expect(await continueFrom(session, prompt, 6)).toEqual(await coldRun(prompt));
  });

  test("fills the context to its last row and no further", async () => {
    const session = await tinySession({ contextRows: 30 });
    await session.extend(Uint32Array.from(prompt), { head: "none" });
    const failure = await failureOf(() => session.extend(Uint32Array.of(3)));
    expect(failure.code).toBe("engine.context");
    expect(failure.message).toContain("31 tokens do not fit the context of 30");
  });
});

describe("going back", () => {
  // Windows of 8 and chunks of 4 rows make rings of 11 rows.
  test.each([
    ["within the rings", 33, 33],
    ["to where the rings begin", 32, 32],
    ["further than the rings hold", 20, 0],
    ["to another beginning", 0, 0],
  ] as const)("%s equals a cold run", async (_, common, cached) => {
    const session = await tinySession();
    await warmRun(session, prompt, 7);
    const held = [...session.ids];
    expect(held).toHaveLength(36);
    const edited = [...held.slice(0, common), ...promptOf(9, 2)];
    expect(await warmRun(session, edited)).toEqual({ ids: await coldRun(edited), cached });
  });

  test("a prompt that is held whole is computed from its last id on", async () => {
    const session = await tinySession();
    const { ids } = await warmRun(session, prompt, 3);
    expect(await warmRun(session, prompt, 3)).toEqual({ ids, cached: 29 });
    expect(await warmRun(session, [...prompt, ...ids], 3)).toEqual({
      ids: await coldRun([...prompt, ...ids], 3),
      cached: 32,
    });
  });

  test("again and again equals a cold run", async () => {
    const session = await tinySession();
    let ids: readonly number[] = prompt;
    for (let turn = 0; turn < 6; turn += 1) {
      const back = Math.min(turn, 4);
      ids = [...ids.slice(0, ids.length - back), ...promptOf(3 + turn, turn)];
      expect((await warmRun(session, ids, 3)).ids).toEqual(await coldRun(ids, 3));
    }
  });
});

describe("cancelling", () => {
  test("between chunks keeps the complete ones", async () => {
    const session = await tinySession({ chunkRows: 8 });
    let polls = 0;
    const isCancelled = () => (polls += 1) === 3;
    const ids = Uint32Array.from(prompt);
    const failure = await failureOf(() => session.extend(ids, { isCancelled }));
    expect(failure.code).toBe("native.cancelled");
    expect(session.ids).toEqual(prompt.slice(0, 16));
    expect(await warmRun(session, prompt)).toEqual({ ids: await coldRun(prompt), cached: 16 });
  });

  test("in a chunk that wrote over what a ring held forgets what came before", async () => {
    const session = await tinySession({ contextRows: 400, chunkRows: 200 });
    const { model } = session;
    const ids = Uint32Array.from(promptOf(360));
    await session.extend(ids.subarray(0, 150), { head: "none" });
    let commits = 0;
    model.stream.observe(() => {
      commits += 1;
      if (commits === 4) model.device.cancel();
    });
    const failure = await failureOf(() => session.extend(ids.subarray(150)));
    expect(failure.code).toBe("native.cancelled");
    expect(session.ids).toEqual([]);
    model.device.resume();
    const wanted = await continueFrom(await tinySession({ contextRows: 400 }), [...ids]);
    expect(await continueFrom(session, [...ids])).toEqual(wanted);
  });

  test(
    "the device at any submission leaves a session that goes on",
    async () => {
      const wanted = await coldRun(prompt);
      const model = await loadTiny({ slots: 2, chunkRows: 8 });
      let commits = 0;
      let target = 0;
      model.stream.observe(() => {
        commits += 1;
        if (commits === target) model.device.cancel();
      });
      const session = openSession(model);
      await continueFrom(session, prompt);
      const all = commits;
      expect(all).toBeGreaterThan(100);
      for (let at = 1; at <= all; at += 7) {
        session.reset();
        commits = 0;
        target = at;
        const { reason, ids } = await complete(session, completionOf(prompt, { maxNew: 6 }));
        // A cancel after the last wait has nothing to end.
        if (reason !== "maxTokens") expect(reason).toBe("cancelled");
        expect(ids).toEqual(wanted.slice(0, ids.length));
        target = 0;
        model.device.resume();
        expect((await warmRun(session, prompt)).ids).toEqual(wanted);
      }
    },
    patienceMs,
  );

  test("while reads are under way leaves a session that goes on", async () => {
    const wanted = await coldRun(prompt);
    let reads = 0;
    let target = 0;
    const model = await loadTiny({
      slots: 2,
      chunkRows: 8,
      read: (...request) => {
        reads += 1;
        if (reads === target) model.device.cancel();
        return readAt(...request);
      },
    });
    const session = openSession(model);
    await continueFrom(session, prompt, 6);
    const all = reads;
    expect(all).toBeGreaterThan(40);
    for (target = 1; target <= 40; target += 9) {
      session.reset();
      reads = 0;
      const { reason } = await complete(session, completionOf(prompt, { maxNew: 6 }));
      expect(reason).toBe("cancelled");
      expect((await warmRun(session, prompt)).ids).toEqual(wanted);
    }
  });

  test("after calls whose logits nobody chose from keeps all but the last of them", async () => {
    const session = await tinySession();
    await continueFrom(session, prompt.slice(0, 5), 1);
    for (const id of prompt.slice(5)) await session.extend(Uint32Array.of(id));
    const cancelled = { isCancelled: () => true };
    await failureOf(() => session.extend(Uint32Array.of(5), cancelled));
    expect(session.ids).toEqual(prompt.slice(0, -1));
    expect((await warmRun(session, prompt)).ids).toEqual(await coldRun(prompt));
  });
});

describe("a failure", () => {
  test("poisons the session until it is reset", async () => {
    let fails = true;
    const session = await tinySession({
      slots: 2,
      read: (...request) => (fails ? Promise.resolve(0) : readAt(...request)),
    });
    const ids = Uint32Array.from(prompt);
    expect((await failureOf(() => session.extend(ids))).code).toBe("expert.read");
    fails = false;
    const failure = await failureOf(() => session.extend(ids));
    expect(failure.code).toBe("engine.state");
    expect(failure.message).toStartWith("the session failed earlier and must be reset: expert ");
    session.reset();
    await session.extend(ids);
    expect(session.ids).toEqual(prompt);
  });

  test("is forgotten with everything else when a new prompt begins", async () => {
    let fails = false;
    const session = await tinySession({
      slots: 2,
      read: (...request) => (fails ? Promise.resolve(0) : readAt(...request)),
    });
    await continueFrom(session, prompt, 2);
    fails = true;
    await failureOf(() => session.extend(Uint32Array.from(promptOf(8, 3))));
    fails = false;
    expect(await warmRun(session, prompt)).toEqual({ ids: await coldRun(prompt), cached: 0 });
  });

  test("of the device in the middle of a list is one sentence", async () => {
    const session = await tinySession();
    const { model } = session;
    model.forward.run = () => {
      model.device.submit(new Uint8Array(7));
      return Promise.resolve();
    };
    const failure = await failureOf(() => session.extend(Uint32Array.of(5)));
    expect(failure.code).toBe("native.call");
    expect(failure.message).not.toContain("\n");
  });
});

describe("a model with recurrent layers", () => {
  const load = async (options = {}): Promise<Session> => {
    const directory = await packageOf("qwen36-a-dk64");
    return openSession(await loadTiny({ directory, slots: 9, chunkRows: 8, ...options }));
  };
  const cold = async (ids: readonly number[]) => await continueFrom(await load(), ids, 6);

  test("gives the same continuation however the prompt is cut", async () => {
    const wanted = await cold(prompt);
    for (const chunkRows of [1, 3, 29, 64]) {
      expect(await continueFrom(await load({ chunkRows }), prompt, 6)).toEqual(wanted);
    }
  });

  test("continues, regenerates and goes back a turn from states that it kept", async () => {
    const session = await load();
    const first = await warmRun(session, prompt);
    expect(first).toEqual({ ids: await cold(prompt), cached: 0 });
    // The last id was chosen and not computed.
    const second = [...prompt, ...first.ids.slice(0, 5), ...promptOf(4, 5)];
    expect(await warmRun(session, second)).toEqual({ ids: await cold(second), cached: 35 });
    // Again: from where the turn began.
    expect(await warmRun(session, second)).toEqual({ ids: await cold(second), cached: 35 });
    // Another question instead: from there as well.
    const other = [...second.slice(0, 35), ...promptOf(5, 6)];
    expect(await warmRun(session, other)).toEqual({ ids: await cold(other), cached: 35 });
    // A turn back: from the last chunk of the first prompt.
    const back = [...prompt.slice(0, 29), 17, 18];
    expect(await warmRun(session, back)).toEqual({ ids: await cold(back), cached: 24 });
    // Further than anything kept.
    const far = prompt.slice(0, 12);
    expect(await warmRun(session, far)).toEqual({ ids: await cold(far), cached: 0 });
  });

  test("cancelled in the middle of decoding goes on from a state that was finished", async () => {
    const session = await load({ slots: 2 });
    const { model } = session;
    const wanted = await cold(prompt);
    let commits = 0;
    let target = 0;
    model.stream.observe(() => {
      commits += 1;
      if (commits === target) model.device.cancel();
    });
    await warmRun(session, prompt);
    const all = commits;
    for (let at = 3; at <= all; at += Math.ceil(all / 12)) {
      session.reset();
      commits = 0;
      target = at;
      await complete(session, completionOf(prompt, { maxNew: 6 }));
      target = 0;
      model.device.resume();
      expect((await warmRun(session, prompt)).ids).toEqual(wanted);
    }
  });

  test("never chooses an id that pads the vocabulary", async () => {
    const directory = await packageOf("qwen36-a-dk64");
    const model = await loadTiny({ directory });
    const tokens = await continueFrom(openSession(model), prompt, 6);
    const highest = Math.max(...tokens);
    const session = new Session(model, highest);
    expect(await continueFrom(session, prompt, 6)).not.toContain(highest);
    session.close();
  });
});
