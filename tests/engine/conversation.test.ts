import { describe, expect, test } from "bun:test";
import { type Answer, Conversation, parseChat } from "../../src/engine/conversation.ts";
import type { GenerateResult, Prompt, StopReason } from "../../src/engine/protocol.ts";
import type { ChatRequest, Text } from "../../src/text/index.ts";
import { failureOf } from "../fixtures/failures.ts";

const RENDERED = [1, 2, 3];
const BRIDGE = [90, 91];

/** A text layer that renders everything to the same ids and may have a bridge. */
function textOf(bridge: number[] | undefined): Text {
  return { encodeChat: () => RENDERED, encodeBridge: () => bridge } as unknown as Text;
}

type Message = Record<string, unknown>;
type Options = { tools?: unknown[]; think?: boolean };

function requestOf(messages: readonly Message[], { tools, think }: Options = {}): ChatRequest {
  const prompt: Prompt = {
    kind: "chat",
    messages: JSON.stringify(messages),
    ...(tools === undefined ? {} : { tools: JSON.stringify(tools) }),
    ...(think === undefined ? {} : { think }),
  };
  return parseChat(prompt);
}

const user = (content: string): Message => ({ role: "user", content });
const assistant = (content: string): Message => ({ role: "assistant", content });
const tool = { type: "function", function: { name: "clock" } };
const callMessage = (args: string): Message => ({
  role: "assistant",
  tool_calls: [{ id: "c1", type: "function", function: { name: "clock", arguments: args } }],
});
const toolResult: Message = { role: "tool", tool_call_id: "c1", content: "noon" };

/** A conversation with one finished turn. */
function after(
  messages: readonly Message[],
  {
    options = {},
    bridge = BRIDGE,
    ...answer
  }: Partial<Answer> & {
    reason?: StopReason;
    options?: Options;
    bridge?: number[] | null;
  } = {},
): Conversation {
  const conversation = new Conversation(textOf(bridge ?? undefined));
  const end = { reason: "endOfTurn", ids: [10, 11, 12], content: "", calls: [], ...answer };
  conversation.finish(
    requestOf(messages, options),
    [1, 2],
    end as unknown as GenerateResult & Answer,
  );
  return conversation;
}

/** The ids of the turn without its stop token, and the bridge. */
const CONTINUED = [1, 2, 10, 11, ...BRIDGE];

describe("a request", () => {
  const first = [user("hello")];
  const next = [...first, assistant("hi"), user("how are you?")];

  test("is rendered whole when there is no turn before it", () => {
    expect(new Conversation(textOf(BRIDGE)).encode(requestOf(next))).toEqual(RENDERED);
  });

  test("that continues the last answer is appended to its ids", () => {
    const conversation = after(first, { content: "hi" });
    expect(conversation.encode(requestOf(next))).toEqual(CONTINUED);
    expect(conversation.encode(requestOf([...next, user("well?")]))).toEqual(CONTINUED);
  });

  test.each([
    ["the same request again", first],
    ["the answer alone", [...first, assistant("hi")]],
    ["another answer", [...first, assistant("hi!"), user("how are you?")]],
    ["an edited question", [user("hello!"), ...next.slice(1)]],
    ["a message more before it", [{ role: "system", content: "be brief" }, ...next]],
    ["an answer of somebody else's", [...first, user("hi"), user("how are you?")]],
    ["two answers", [...next, assistant("fine"), user("good")]],
    ["a name", [{ ...user("hello"), name: "Ann" }, ...next.slice(1)]],
    [
      "calls that were not made",
      [...first, { ...callMessage("{}"), content: "hi" }, toolResult, user("how are you?")],
    ],
  ])("with %s is rendered whole", (_, messages) => {
    expect(after(first, { content: "hi" }).encode(requestOf(messages))).toEqual(RENDERED);
  });

  test("with other tools or another wish to think is rendered whole", () => {
    for (const options of [{ tools: [tool] }, { think: true }]) {
      const conversation = after(first, { content: "hi", options });
      expect(conversation.encode(requestOf(next))).toEqual(RENDERED);
      expect(conversation.encode(requestOf(next, options))).toEqual(CONTINUED);
    }
  });

  test("is rendered whole where the template has no bridge", () => {
    expect(after(first, { content: "hi", bridge: null }).encode(requestOf(next))).toEqual(RENDERED);
  });

  test.each(["stopString", "maxTokens", "context", "cancelled", "malformedCall", "eos"] as const)(
    "after an answer that ended by %s is rendered whole",
    (reason) => {
      expect(after(first, { content: "hi", reason }).encode(requestOf(next))).toEqual(RENDERED);
    },
  );

  test("that brings the result of a call continues it", () => {
    const conversation = after(first, {
      reason: "toolCalls",
      options: { tools: [tool] },
      calls: [{ name: "clock", arguments: '{"at":1.0}' }],
    });
    const ask = (args: string) =>
      conversation.encode(requestOf([...first, callMessage(args), toolResult], { tools: [tool] }));
    expect(ask('{"at":1.0}')).toEqual(CONTINUED);
    expect(ask('{ "at": 1.0 }')).toEqual(CONTINUED);
    expect(ask('{"at":1}')).toEqual(RENDERED);
  });

  test("after everything was forgotten is rendered whole", () => {
    const conversation = after(first, { content: "hi" });
    conversation.forget();
    expect(conversation.encode(requestOf(next))).toEqual(RENDERED);
  });
});

describe("parseChat", () => {
  test.each([
    ["{", "text.json"],
    ["{}", "text.messages"],
    ['[{"role":"nobody"}]', "text.messages"],
  ] as const)("refuses %s", async (messages, code) => {
    expect((await failureOf(() => parseChat({ kind: "chat", messages }))).code).toBe(code);
  });
});
