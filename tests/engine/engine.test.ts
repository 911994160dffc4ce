import { afterAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { Engine } from "../../src/engine/engine.ts";
import { prepareLibraries } from "../../src/engine/libraries.ts";
import type { GenerateEvent, GenerateRequest, Prompt } from "../../src/engine/protocol.ts";
import { deviceKind } from "../fixtures/devices.ts";
import { failureOf } from "../fixtures/failures.ts";
import { demoPackage, promptOf } from "../fixtures/models.ts";
import { packageOf } from "../fixtures/packages.ts";

const { library, tokenizerLibrary } = await prepareLibraries({ device: deviceKind });
const directory = await demoPackage();
const engine = await Engine.load({
  slots: 16,
  directory,
  library,
  tokenizerLibrary,
  contextRows: 512,
});
afterAll(() => engine.close());

type Message = Record<string, unknown>;
const user = (content: string): Message => ({ role: "user", content });
const assistant = (content: string): Message => ({ role: "assistant", content });

function chat(messages: readonly Message[], tools?: readonly unknown[]): Prompt {
  const written = tools === undefined ? {} : { tools: JSON.stringify(tools) };
  return { kind: "chat", messages: JSON.stringify(messages), ...written };
}

async function ask(prompt: Prompt, options: Partial<GenerateRequest> = {}, by = engine) {
  const events: GenerateEvent[] = [];
  const result = await by.generate(
    { prompt, sampling: { temperature: 0 }, maxNew: 60, ...options },
    { onEvent: (event) => events.push(event), isCancelled: () => false },
  );
  const content = events.map((event) => (event.type === "content" ? event.text : "")).join("");
  return { ...result, events, content, cached: result.stats.cachedTokens };
}

const question = user("What is the capital of France?");
const answer = assistant("The capital of France is Paris.");

describe("a chat", () => {
  test("is answered", async () => {
    const { content, reason } = await ask(chat([question]));
    expect([content, reason]).toEqual(["The capital of France is Paris.", "endOfTurn"]);
  });

  test("goes on from the ids of the answer and equals a cold run token by token", async () => {
    const messages: Message[] = [];
    for (const text of ["What is the capital of France?", "Count from 0 to 9", "And of Germany?"]) {
      messages.push(user(text));
      const warm = await ask(chat(messages), { isCold: messages.length === 1 });
      const held = engine.session.ids.slice();
      if (messages.length > 1) {
        // Everything up to the stop token is held; the stop token begins the bridge.
        expect(warm.cached).toBeGreaterThan(20 * (messages.length >> 1));
      }
      const cold = await ask(chat(messages), { isCold: true });
      expect(cold.cached).toBe(0);
      expect(warm.ids).toEqual(cold.ids);
      expect(held).toEqual([...engine.session.ids]);
      messages.push(assistant(warm.content));
      // The cold run took the turn's place: its ids are the same.
    }
  });

  test("with an edited history is computed anew and equals a cold run", async () => {
    await ask(chat([question]), { isCold: true });
    const messages = [user("What is the capital of Spain?"), answer, user("Count from 0 to 5")];
    const warm = await ask(chat(messages));
    expect(warm.cached).toBeLessThan(engine.tokenize(chat([question])).length);
    const cold = await ask(chat(messages), { isCold: true });
    expect(warm.ids).toEqual(cold.ids);
    expect(engine.session.ids.slice(0, 20)).toEqual(engine.tokenize(chat(messages)).slice(0, 20));
  });

  test("asked twice is computed from its last id on", async () => {
    const first = await ask(chat([question]), { isCold: true });
    const again = await ask(chat([question]));
    expect(again.ids).toEqual(first.ids);
    expect(again.cached).toBe(engine.tokenize(chat([question])).length - 1);
  });

  test("begins with the checkpoint's own template", () => {
    const rendered = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n";
    expect(engine.render(chat([user("Hi")]))).toBe(rendered);
    expect(engine.detokenize(engine.tokenize(chat([user("Hi")])))).toBe(rendered);
  });

  test("after a failure forgets nothing that it may go on from", async () => {
    const failure = await failureOf(() => ask(chat([{ role: "user" }])));
    expect(failure.code).toBe("text.messages");
    const { content } = await ask(chat([question, answer, user("Count from 0 to 3")]));
    expect(content).toStartWith("0, 1, 2, 3");
  });

  test("stops at a stop string across tokens", async () => {
    const { content, reason } = await ask(chat([question]), { stop: ["nce is Pa"] });
    expect([content, reason]).toEqual(["The capital of Fra", "stopString"]);
  });
});

describe("tools", () => {
  const weather = (name: string) => ({
    type: "function",
    function: {
      name,
      description: "Gets the weather for a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string", description: "The city" } },
        required: ["city"],
      },
    },
  });
  const asked = user("What is the weather in Paris?");

  test("are called, and their results continue the turn as a cold run would", async () => {
    const tools = [weather("get_weather")];
    const called = await ask(chat([asked], tools), { isCold: true });
    const call = called.events.find((event) => event.type === "toolCall");
    expect(called.reason).toBe("toolCalls");
    expect(called.content).toBe("");
    expect(call).toMatchObject({ name: "get_weather", arguments: '{"city":"Paris"}' });
    const messages = [
      asked,
      {
        role: "assistant",
        tool_calls: [
          { id: "c", type: "function", function: { name: call!.name, arguments: call!.arguments } },
        ],
      },
      { role: "tool", tool_call_id: "c", content: "sunny, 21 degrees" },
    ];
    const warm = await ask(chat(messages, tools));
    expect(warm.cached).toBe(engine.tokenize(chat([asked], tools)).length + called.ids.length - 1);
    const held = [...engine.session.ids];
    const cold = await ask(chat(messages, tools), { isCold: true });
    expect(warm.ids).toEqual(cold.ids);
    expect(held).toEqual([...engine.session.ids]);
  });

  test("that were not given end the answer with a notice", async () => {
    const { events, reason, content } = await ask(chat([asked], [weather("other")]));
    expect([reason, content]).toEqual(["malformedCall", ""]);
    const notices = events.filter(({ type }) => type === "notice");
    expect(notices).toHaveLength(1);
    expect(notices[0]).toMatchObject({ text: expect.stringContaining("known are other") });
  });
});

describe("other prompts", () => {
  test("a raw text is completed after the first token", async () => {
    const prompt = { kind: "text", text: "The capital of" } as const;
    expect(engine.tokenize(prompt)[0]).toBe(2);
    const { ids, content } = await ask(prompt, { maxNew: 4 });
    expect(engine.detokenize(ids)).toBe(content);
  });

  test("ids are taken as they are", async () => {
    const ids = engine.tokenize(chat([question]));
    const { content, reason } = await ask({ kind: "ids", ids });
    expect([content, reason]).toEqual(["The capital of France is Paris.", "endOfTurn"]);
  });

  test.each([
    [{ kind: "text", text: "" }, "engine.prompt"],
    [{ kind: "ids", ids: [] }, "engine.prompt"],
    [{ kind: "ids", ids: [9000] }, "engine.prompt"],
    [{ kind: "ids", ids: promptOf(512) }, "engine.context"],
    [{ kind: "text", text: "word ".repeat(2000) }, "engine.context"],
    [{ kind: "chat", messages: "[]" }, "text.template"],
  ] as const)("%j is refused in one sentence, and the next is answered", async (prompt, code) => {
    const failure = await failureOf(() => ask(prompt));
    expect(failure.message).not.toContain("\n");
    expect(failure.code).toBe(code);
    expect((await ask(chat([question]))).content).toContain("Paris");
  });
});

describe("facts", () => {
  test("of what was loaded", () => {
    expect(engine.info).toMatchObject({
      directory,
      modelId: "mference-demo",
      precision: "fast",
      slots: 16,
      expertCount: 32,
      layerCount: 8,
      contextRows: 512,
      vocabSize: 8192,
      hasText: true,
      hasChat: true,
      notice: undefined,
      sampling: { temperature: 0 },
    });
  });

  test("of the state between requests", async () => {
    await ask(chat([question]), { isCold: true });
    const status = engine.status();
    expect(status.cachedTokens).toBe(engine.session.ids.length);
    expect(status.memory.slotBytes).toBe(8 * 16 * engine.model.package.strideBytes);
    expect(status.memory.kvBytes).toBe(engine.model.kv.byteLength);
    expect(status.counters.bufferBytes).toBeGreaterThan(status.memory.kvBytes);
    engine.reset();
    expect(engine.status().cachedTokens).toBe(0);
  });
});

describe("a package without a tokenizer", () => {
  test("takes and gives ids only", async () => {
    const tiny = await Engine.load({ directory: await packageOf(), library, contextRows: 64 });
    expect(tiny.info).toMatchObject({ hasText: false, hasChat: false });
    expect(tiny.info.notice).toContain("token ids only");
    const prompt = { kind: "ids", ids: promptOf(5) } as const;
    const { ids, events } = await ask(prompt, { maxNew: 6, stop: ["x"] }, tiny);
    expect(ids.length).toBeGreaterThan(0);
    expect(events.some(({ type }) => type === "content")).toBe(false);
    for (const work of [
      () => ask({ kind: "text", text: "a" }, {}, tiny),
      () => ask(chat([question]), {}, tiny),
      () => tiny.detokenize([1]),
    ]) {
      const failure = await failureOf(work);
      expect(failure.code).toBe("model.text");
      expect(failure.message).toContain("has no tokenizer: it takes and gives token ids only");
    }
    tiny.close();
  });
});

const hasProc = fs.existsSync("/proc/self/maps");

test.skipIf(!hasProc)("a failed load leaves nothing mapped (read from /proc)", async () => {
  const broken = path.join(path.dirname(await packageOf()), "broken.gturbo");
  fs.cpSync(directory, broken, { recursive: true });
  const failure = await failureOf(() =>
    Engine.load({ directory: broken, library, tokenizerLibrary: "/no/such/library.so" }),
  );
  expect(failure.code).toBe("native.load");
  expect(fs.readFileSync("/proc/self/maps", "utf8")).not.toContain("broken.gturbo");
});
