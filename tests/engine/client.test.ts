import { afterAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { EngineClient } from "../../src/engine/client.ts";
import { prepareLibraries } from "../../src/engine/libraries.ts";
import type { GenerateEvent, GenerateRequest, LoadRequest } from "../../src/engine/protocol.ts";
import { deviceKind } from "../fixtures/devices.ts";
import { failureOf } from "../fixtures/failures.ts";
import { demoPackage, promptOf } from "../fixtures/models.ts";
import { packageOf } from "../fixtures/packages.ts";

const { library, tokenizerLibrary } = await prepareLibraries({ device: deviceKind });

async function start(request: Partial<LoadRequest> = {}): Promise<EngineClient> {
  const directory = request.directory ?? (await demoPackage());
  return await EngineClient.start({
    library,
    tokenizerLibrary,
    directory,
    contextRows: 600,
    ...request,
  });
}

const client = await start();
afterAll(() => client.close());

const chat = (content: string, maxNew = 60): GenerateRequest => ({
  prompt: { kind: "chat", messages: JSON.stringify([{ role: "user", content }]) },
  sampling: { temperature: 0 },
  maxNew,
});

/** A request that lasts: nothing but its limit ends it. */
const long: GenerateRequest = {
  prompt: { kind: "ids", ids: promptOf(20) },
  sampling: { temperature: 1, topK: 200, seed: 3 },
  maxNew: 500,
};

async function ask(request: GenerateRequest, signal?: AbortSignal, by = client) {
  const events: GenerateEvent[] = [];
  const onEvent = (event: GenerateEvent): void => void events.push(event);
  const result = await by.generate(
    request,
    signal === undefined ? { onEvent } : { onEvent, signal },
  );
  const content = events.map((event) => (event.type === "content" ? event.text : "")).join("");
  return { ...result, events, content };
}

const capital = "What is the capital of France?";

describe("an engine in its Worker", () => {
  test("answers, reporting token by token", async () => {
    const { content, reason, ids, events } = await ask(chat(capital));
    expect([content, reason]).toEqual(["The capital of France is Paris.", "endOfTurn"]);
    expect(events.filter(({ type }) => type === "token")).toHaveLength(ids.length);
    expect(events[0]).toMatchObject({ type: "prompt", cached: 0 });
  });

  test("never blocks this thread: timers fire between its events", async () => {
    let ticks = 0;
    const timer = setInterval(() => (ticks += 1), 1);
    const seen: number[] = [];
    await client.generate(
      { ...chat("Count from 0 to 21"), isCold: true },
      {
        onEvent: ({ type }) => {
          if (type === "token") seen.push(ticks);
        },
      },
    );
    clearInterval(timer);
    expect(seen.length).toBeGreaterThan(50);
    // Tokens arrive one by one, not all at the end.
    expect(new Set(seen).size).toBeGreaterThan(5);
  });

  test("serves requests in the order of the calls", async () => {
    const order: string[] = [];
    const [first, second, ids] = await Promise.all([
      ask(chat(capital)).finally(() => order.push("first")),
      ask(chat("Count from 0 to 3")).finally(() => order.push("second")),
      client.tokenize(chat(capital).prompt).finally(() => order.push("third")),
    ]);
    expect(order).toEqual(["first", "second", "third"]);
    expect(first.content).toContain("Paris");
    expect(second.content).toStartWith("0, 1, 2, 3");
    expect(await client.detokenize(ids)).toBe(await client.render(chat(capital).prompt));
  });

  test("tells what it loaded and how it stands", async () => {
    expect(client.info).toMatchObject({ modelId: "mference-demo", hasChat: true });
    await client.reset();
    expect((await client.status()).cachedTokens).toBe(0);
    await ask(chat(capital));
    expect((await client.status()).cachedTokens).toBeGreaterThan(16);
  });
});

describe("errors", () => {
  test.each([
    [{ ...chat(capital), maxNew: 0 }, "engine.options"],
    [{ ...chat(capital), prompt: { kind: "ids", ids: [] } }, "engine.prompt"],
    [{ ...chat(capital), prompt: { kind: "ids", ids: promptOf(600) } }, "engine.context"],
    [{ ...chat(capital), prompt: { kind: "chat", messages: "{" } }, "text.json"],
  ] as const)("keep their codes, and the next request is served: %#", async (request, code) => {
    const failure = await failureOf(() => ask(request));
    expect(failure.code).toBe(code);
    expect(failure.message).not.toContain("\n");
    expect((await ask(chat(capital))).content).toContain("Paris");
  });

  test("of loading end the Worker", async () => {
    const directory = path.join(path.dirname(await packageOf()), "absent");
    const failure = await failureOf(() => start({ directory }));
    expect(failure.code).toBe("model.unknown");
  });

  test("of a file that is cut while it is used come before any token", async () => {
    const directory = await packageOf();
    const other = await start({ directory, contextRows: 64 });
    const request = { ...long, prompt: { kind: "ids", ids: promptOf(9) }, maxNew: 5 } as const;
    expect((await ask(request, undefined, other)).ids).toHaveLength(5);
    fs.truncateSync(path.join(directory, "model_weights.bin"), 8192);
    const failure = await failureOf(() => ask(request, undefined, other));
    expect(failure.code).toBe("format.changed");
    expect(failure.message).toContain("model_weights.bin");
    await other.close();
  });
});

/** Aborts a request at its n-th event of a kind, and counts the tokens that came after. */
async function abortAt(type: GenerateEvent["type"], nth: number) {
  const abort = new AbortController();
  let seen = 0;
  let later = 0;
  const { reason, ids } = await client.generate(
    { ...long, isCold: true },
    {
      signal: abort.signal,
      onEvent: (event) => {
        if (abort.signal.aborted && event.type === "token") later += 1;
        if (event.type === type && (seen += 1) === nth) abort.abort();
      },
    },
  );
  return { reason, ids, later };
}

describe("cancelling", () => {
  test.each([1, 2, 5, 20])("at token %d ends the answer and nothing else", async (nth) => {
    const whole = (await ask({ ...long, isCold: true, maxNew: 40 })).ids;
    const { reason, ids } = await abortAt("token", nth);
    expect(reason).toBe("cancelled");
    expect(ids.length).toBeGreaterThanOrEqual(nth);
    expect(ids.length).toBeLessThan(500);
    expect(ids.slice(0, 40)).toEqual(whole.slice(0, ids.length));
    // The session goes on: warm, and with the answer of an uncancelled run.
    const again = await ask({ ...long, maxNew: 40 });
    expect(again.ids).toEqual(whole);
    expect(again.stats.cachedTokens).toBeGreaterThan(0);
  });

  test("in the prompt ends it before its first token, or soon after", async () => {
    const { reason, ids } = await abortAt("prompt", 1);
    expect(reason).toBe("cancelled");
    expect(ids.length).toBeLessThan(100);
    expect((await ask(chat(capital))).content).toContain("Paris");
  });

  test("before it begins gives an empty answer", async () => {
    const { reason, ids } = await ask(long, AbortSignal.abort());
    expect([reason, ids]).toEqual(["cancelled", []]);
  });

  test("a request that waits leaves the one that runs alone", async () => {
    const abort = new AbortController();
    const running = ask({ ...chat("Count from 0 to 21", 100), isCold: true });
    const waiting = ask(long, abort.signal);
    const next = ask(chat(capital));
    abort.abort();
    expect((await running).content).toEndWith("20, 21.");
    expect(await waiting).toMatchObject({ reason: "cancelled", ids: [] });
    expect((await next).content).toContain("Paris");
  });

  test("one that has ended does nothing to the next", async () => {
    const abort = new AbortController();
    await ask(chat(capital), abort.signal);
    const next = ask(chat(capital));
    abort.abort();
    expect(await next).toMatchObject({ reason: "endOfTurn" });
  });

  test("again and again, at any time, keeps the engine usable", async () => {
    for (let round = 0; round < 12; round += 1) {
      const abort = new AbortController();
      const cancelled = ask({ ...long, isCold: round % 2 === 0 }, abort.signal);
      const next = ask(chat(capital));
      await Bun.sleep(round * 3);
      abort.abort();
      expect((await cancelled).reason).toBe("cancelled");
      expect((await next).content).toBe("The capital of France is Paris.");
    }
  });
});

describe("closing", () => {
  test("while requests run and wait cancels them", async () => {
    const other = await start();
    const first = ask(long, undefined, other);
    const second = ask(long, undefined, other);
    await Bun.sleep(20);
    await Promise.all([other.close(), other.close()]);
    expect((await first).reason).toBe("cancelled");
    expect(await second).toMatchObject({ reason: "cancelled", ids: [] });
    const failure = await failureOf(() => other.status());
    expect([failure.code, failure.message]).toEqual(["engine.state", "the engine is closed"]);
    await other.close();
  });
});
