import { afterAll, describe, expect, test } from "bun:test";
import { type AnswerDecoder, type Completion, complete } from "../../src/engine/generate.ts";
import type { GenerateEvent } from "../../src/engine/protocol.ts";
import type { AssistantEvent } from "../../src/text/assistant-decoder.ts";
import { MferenceError } from "../../src/util/errors.ts";
import { failureOf } from "../fixtures/failures.ts";
import {
  closeModels,
  completionOf,
  continueFrom,
  promptOf,
  tinySession,
} from "../fixtures/models.ts";

afterAll(closeModels);

const prompt = promptOf(12);
const session = await tinySession({ chunkRows: 8, contextRows: 40 });
const greedy = await continueFrom(session, prompt, 20);

/** A completion and everything it reported. */
async function run(options: Partial<Completion> = {}, promptIds: readonly number[] = prompt) {
  const events: GenerateEvent[] = [];
  const onEvent = (event: GenerateEvent): void => void events.push(event);
  const result = await complete(
    session,
    completionOf(promptIds, { maxNew: 20, onEvent, ...options }),
  );
  const content = events.map((event) => (event.type === "content" ? event.text : "")).join("");
  return { ...result, events, content };
}

/** A decoder by which the n-th id says the n-th of some texts. */
function saying(texts: readonly (string | AssistantEvent[])[], rest = ""): AnswerDecoder {
  let next = 0;
  const content = (text: string): AssistantEvent[] =>
    text === "" ? [] : [{ type: "content", text }];
  return {
    push: () => {
      const said = texts[next] ?? "";
      next += 1;
      return typeof said === "string" ? content(said) : said;
    },
    finish: () => content(rest),
  };
}

const typesOf = (events: readonly GenerateEvent[]): string[] => events.map(({ type }) => type);

describe("an answer ends", () => {
  test("with the most tokens asked for", async () => {
    const { reason, ids, events } = await run({ maxNew: 3 });
    expect([reason, ids]).toEqual(["maxTokens", greedy.slice(0, 3)]);
    expect(events.filter(({ type }) => type === "token")).toEqual(
      greedy.slice(0, 3).map((id) => ({ type: "token", id })),
    );
  });

  test.each(["eos", "endOfTurn", "toolCalls"] as const)(
    "with a stop id, which is chosen and not said: %s",
    async (meaning) => {
      const stop = greedy[4]!;
      const { reason, ids, content, events } = await run({
        stopReason: (id) => (id === stop ? meaning : undefined),
        decoder: saying(["a", "b", "c", "d", "STOP"], "!"),
      });
      const end = greedy.indexOf(stop);
      expect([reason, ids]).toEqual([meaning, greedy.slice(0, end + 1)]);
      expect(content).toBe(`${"abcd".slice(0, end)}!`);
      expect(typesOf(events).slice(-2)).toEqual(["token", "content"]);
    },
  );

  test("where the context ends, its last row filled", async () => {
    const { reason, ids } = await run({ maxNew: 1000 });
    // 12 ids of the prompt and 28 of the answer are held; one more was chosen.
    expect([reason, ids.length]).toEqual(["context", 29]);
    expect(session.model.kv.cursor).toBe(40);
    expect(ids.slice(0, 20)).toEqual([...greedy]);
  });

  test("with a stop string across tokens, without it and what follows", async () => {
    const { reason, ids, content } = await run({
      stop: ["never", "END"],
      decoder: saying(["one E", "N", "two E", "ND", "three"]),
    });
    expect([reason, content, ids.length]).toEqual(["stopString", "one ENtwo ", 4]);
  });

  test("and says what was held back for a stop string that did not come", async () => {
    const { reason, content } = await run({
      maxNew: 2,
      stop: ["END"],
      decoder: saying(["one ", "E"], "N"),
    });
    expect([reason, content]).toEqual(["maxTokens", "one EN"]);
  });

  test("when it is cancelled after a token", async () => {
    let polls = 0;
    const { reason, ids, content } = await run({
      stop: ["abX"],
      decoder: saying(["a", "b", "c"]),
      // Two polls before the chunks of the prompt, if nothing is cached.
      isCancelled: () => (polls += 1) > 3,
    });
    expect(reason).toBe("cancelled");
    expect(ids).toEqual(greedy.slice(0, ids.length));
    expect(ids.length).toBeLessThan(4);
    expect(content).toBe("abc".slice(0, ids.length));
    expect(await continueFrom(session, prompt, 20)).toEqual(greedy);
  });

  test("before it begins, when the prompt is cancelled", async () => {
    session.reset();
    const { reason, ids, stats } = await run({ isCancelled: () => true });
    expect([reason, ids, stats.newTokens]).toEqual(["cancelled", [], 0]);
    expect(await continueFrom(session, prompt, 20)).toEqual(greedy);
  });
});

describe("a malformed call", () => {
  const malformed = (): never => {
    throw new MferenceError("text.tools", "a tool call is malformed: no name");
  };

  test("ends the answer with a notice; what was said stays", async () => {
    const decoder = saying(["so "]);
    let pushes = 0;
    const { reason, ids, content, events } = await run({
      stop: ["so what"],
      decoder: { ...decoder, push: (id) => ((pushes += 1) === 3 ? malformed() : decoder.push(id)) },
    });
    expect([reason, ids.length, content]).toEqual(["malformedCall", 3, "so "]);
    expect(events).toContainEqual({ type: "notice", text: "a tool call is malformed: no name" });
  });

  test("at the end of a turn is no end of a turn", async () => {
    const { reason, events } = await run({
      stopReason: () => "endOfTurn",
      decoder: { push: () => [], finish: malformed },
    });
    expect(reason).toBe("malformedCall");
    expect(events.filter(({ type }) => type === "notice")).toHaveLength(1);
  });

  test("is the only failure of a decoder that is an answer", async () => {
    const bug = (): never => {
      throw new TypeError("a bug");
    };
    const failure = await failureOf(() => run({ decoder: { push: bug, finish: () => [] } }));
    expect(failure).toBeInstanceOf(TypeError);
    expect(await continueFrom(session, prompt, 20)).toEqual(greedy);
  });
});

describe("events", () => {
  test("keep thoughts and calls out of the content", async () => {
    const args = new Map([["n", "one"]]);
    const { content, events } = await run({
      maxNew: 3,
      stop: ["secret"],
      decoder: saying([
        [{ type: "reasoning", text: "secret" }],
        "said",
        [{ type: "toolCall", call: { id: "c", name: "f", arguments: args } }],
      ]),
    });
    expect(content).toBe("said");
    expect(events).toContainEqual({ type: "reasoning", text: "secret" });
    expect(events).toContainEqual({
      type: "toolCall",
      id: "c",
      name: "f",
      arguments: '{"n":"one"}',
    });
  });

  test("begin with the prompt and its chunks", async () => {
    session.reset();
    const { events } = await run({ maxNew: 1 });
    expect(events).toEqual([
      { type: "prompt", tokens: 12, cached: 0 },
      { type: "prefill", done: 8, total: 12 },
      { type: "prefill", done: 12, total: 12 },
      { type: "token", id: greedy[0]! },
    ]);
    const again = await run({ maxNew: 1 });
    expect(again.events.slice(0, 2)).toEqual([
      { type: "prompt", tokens: 12, cached: 11 },
      { type: "prefill", done: 1, total: 1 },
    ]);
  });

  test("give ids alone where there is no decoder", async () => {
    const { events } = await run({ maxNew: 5, stop: ["x"] });
    expect(new Set(typesOf(events))).toEqual(new Set(["prompt", "prefill", "token"]));
  });
});

describe("sampling", () => {
  test("is the same for a seed and another for another", async () => {
    const sampling = { temperature: 3, topK: 64, seed: 7 };
    const first = await run({ sampling });
    expect((await run({ sampling })).ids).toEqual(first.ids);
    expect((await run({ sampling: { ...sampling, seed: 8 } })).ids).not.toEqual(first.ids);
    expect((await run({ sampling: { temperature: 3, topK: 64 } })).ids).not.toEqual(first.ids);
  });

  test("penalizes what the prompt and the answer hold", async () => {
    const { ids } = await run({ sampling: { temperature: 0, repetitionPenalty: 1e6 } });
    expect(new Set([...ids, ...prompt]).size).toBe(ids.length + new Set(prompt).size);
  });
});

describe("a request is refused before the session is touched", () => {
  test.each([
    [[], {}, "engine.prompt", "the prompt is empty"],
    [[1.5], {}, "engine.prompt", "token id 1.5 is not in the vocabulary of 512"],
    [[-1], {}, "engine.prompt", "token id -1"],
    [[512], {}, "engine.prompt", "token id 512"],
    [promptOf(40), {}, "engine.context", "the prompt has 40 tokens and the context holds 40"],
    [prompt, { maxNew: 0 }, "engine.options", "the number of new tokens must be"],
    [prompt, { sampling: { topK: 0 } }, "engine.options", "top-k must be"],
  ] as const)("case %#", async (ids, options, code, sentence) => {
    await continueFrom(session, prompt, 2);
    const held = [...session.ids];
    const failure = await failureOf(() => run(options, ids));
    expect(failure.code).toBe(code);
    expect(failure.message).toContain(sentence);
    expect(session.ids).toEqual(held);
  });

  test("fits a prompt that leaves one row", async () => {
    const { ids, reason } = await run({ maxNew: 5 }, promptOf(39));
    expect([ids.length, reason]).toEqual([2, "context"]);
  });
});

test("statistics count this answer only", async () => {
  session.reset();
  await run({ maxNew: 4 });
  const { stats } = await run({ maxNew: 4 });
  expect(stats).toMatchObject({ promptTokens: 12, cachedTokens: 11, newTokens: 4, layers: 24 });
  expect(stats.hits + stats.misses).toBe(24 * 2);
  expect(stats.peakMemoryBytes).toBeGreaterThan(10e6);
  expect(stats.firstTokenSeconds).toBeGreaterThan(0);
  expect(stats.decodeSeconds).toBeGreaterThan(0);
});
