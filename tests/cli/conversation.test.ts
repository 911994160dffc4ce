import { describe, expect, test } from "bun:test";
import {
  Conversation,
  isSavedChat,
  messagesJson,
  turnsToDrop,
} from "../../src/cli/conversation.ts";

const talk = (turns: number, system?: string): Conversation => {
  const conversation = new Conversation(system);
  for (let i = 0; i < turns; i += 1) conversation.addTurn(`q${i}`, `a${i}`);
  return conversation;
};

const contents = (conversation: Conversation): string[] =>
  conversation.request("new").map(({ content }) => content);

describe("Conversation", () => {
  test("sends the system text, the turns and the new question", () => {
    expect(contents(talk(2, "be brief"))).toEqual(["be brief", "q0", "a0", "q1", "a1", "new"]);
    expect(messagesJson(talk(1).request("x"))).toBe(
      '[{"role":"user","content":"q0"},{"role":"assistant","content":"a0"},{"role":"user","content":"x"}]',
    );
  });

  test("an empty system text is none", () => {
    expect(contents(talk(0, "  "))).toEqual(["new"]);
  });

  test("an empty answer is not kept", () => {
    const conversation = talk(1);
    expect(conversation.addTurn("q", " \n")).toBe(false);
    expect(contents(conversation)).toEqual(["q0", "a0", "new"]);
  });

  test("dropped turns are not sent but stay in the transcript", () => {
    const conversation = talk(3, "s");
    conversation.dropTurns(2);
    expect(contents(conversation)).toEqual(["s", "q2", "a2", "new"]);
    expect(conversation.messages).toHaveLength(6);
    expect(conversation.sentTurns).toBe(1);
  });

  test("turns can be taken back, past what is still sent", () => {
    const conversation = talk(2);
    conversation.dropTurns(2);
    expect(conversation.undo()).toBe("q1");
    expect(contents(conversation)).toEqual(["new"]);
    expect(conversation.undo()).toBe("q0");
    expect(conversation.undo()).toBeUndefined();
    conversation.addTurn("again", "yes");
    expect(contents(conversation)).toEqual(["again", "yes", "new"]);
  });
});

describe("saved chats", () => {
  test("come back as they were", () => {
    const conversation = talk(1, "s\u20ac");
    conversation.addTurn("q", "cut", true);
    const text = conversation.save("demo");
    expect(isSavedChat(text)).toBe(true);
    const loaded = new Conversation("other");
    loaded.load(text, "file");
    expect(loaded.system).toBe("s\u20ac");
    expect(loaded.messages).toEqual(conversation.messages);
  });

  test.each([
    ["x", "it is not JSON"],
    ["{}", '"format" is not'],
    ['{"format":"mference-chat","version":2}', "its version is not 1"],
    [
      '{"format":"mference-chat","version":1,"messages":[{"role":"tool","content":""}]}',
      "message 0",
    ],
    [
      '{"format":"mference-chat","version":1,"messages":[{"role":"user","content":1}]}',
      "message 0",
    ],
    [
      '{"format":"mference-chat","version":1,"messages":[{"role":"user","content":"a"}]}',
      "in turn",
    ],
  ])("%s is refused and changes nothing", (text, reason) => {
    const conversation = talk(1);
    expect(() => conversation.load(text, "the file")).toThrow(reason);
    expect(contents(conversation)).toEqual(["q0", "a0", "new"]);
    if (reason !== "in turn") expect(isSavedChat(text)).toBe(false);
  });
});

describe("turnsToDrop", () => {
  test.each([0, 1, 2, 5, 9])("finds %i as the fewest", async (needed) => {
    const asked: number[] = [];
    const fits = async (dropped: number): Promise<boolean> => {
      asked.push(dropped);
      return await Promise.resolve(dropped >= needed);
    };
    expect(await turnsToDrop(9, fits)).toBe(needed);
    expect(asked.length).toBeLessThanOrEqual(6);
  });

  test("undefined when nothing helps", async () => {
    expect(await turnsToDrop(3, () => Promise.resolve(false))).toBeUndefined();
    expect(await turnsToDrop(0, () => Promise.resolve(false))).toBeUndefined();
  });
});
