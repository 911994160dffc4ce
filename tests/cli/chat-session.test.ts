import { describe, expect, test } from "bun:test";
import { ChatSession } from "../../src/cli/chat-session.ts";
import { Progress } from "../../src/cli/progress.ts";
import { MferenceError } from "../../src/util/errors.ts";
import { fakeEngine, fakeTerminal, type Reply, says } from "./fake.ts";

interface Options {
  readonly contextRows?: number;
  readonly isJson?: boolean;
  readonly system?: string;
}

function start(replies: readonly Reply[], options: Options = {}) {
  const terminal = fakeTerminal();
  const engine = fakeEngine(...replies);
  const session = new ChatSession({
    engine,
    terminal,
    progress: new Progress({ output: terminal.err, isQuiet: true }),
    style: { isQuiet: false, isJson: options.isJson ?? false, hidesThinking: false },
    info: { contextRows: options.contextRows ?? 4096, sampling: { temperature: 0 }, hasChat: true },
    name: "demo",
    settings: { sampling: {}, maxNew: 16, stop: ["END"] },
    system: options.system,
  });
  const sent = (): string[] =>
    engine.requests.map(({ prompt }) => {
      if (prompt.kind !== "chat") throw new Error("not a chat");
      const messages = JSON.parse(prompt.messages) as { content: string }[];
      return messages.map(({ content }) => content).join("|");
    });
  return { session, terminal, engine, sent };
}

describe("ChatSession", () => {
  test("every question is sent with what went before", async () => {
    const { session, sent, engine } = start([says("a0"), says("a1")], { system: "s" });
    await session.ask("q0");
    await session.ask("q1");
    expect(sent()).toEqual(["s|q0", "s|q0|a0|q1"]);
    expect(engine.requests[0]).toMatchObject({
      maxNew: 16,
      stop: ["END"],
      sampling: { temperature: 0, topK: 64 },
    });
  });

  test("an empty question is refused before anything happens", async () => {
    const { session, engine } = start([]);
    expect(session.ask(" \n")).rejects.toMatchObject({ code: "engine.prompt" });
    expect(engine.requests).toEqual([]);
  });

  test("an interrupted answer is kept and marked", async () => {
    const { session, sent } = start([{ ...says("half"), isEndless: true }, says("b")]);
    const stop = new AbortController();
    const asking = session.ask("q", stop.signal);
    stop.abort();
    expect((await asking).result.reason).toBe("cancelled");
    expect(session.conversation.messages[1]).toEqual({
      role: "assistant",
      content: "half",
      isInterrupted: true,
    });
    await session.ask("next");
    expect(sent()[1]).toBe("q|half|next");
  });

  test("an empty answer is not kept, and said to be", async () => {
    const { session, terminal } = start([says(" ")]);
    await session.ask("q");
    expect(session.conversation.messages).toEqual([]);
    expect(terminal.stderr()).toContain("the turn is not kept");
  });

  test("a failed turn changes nothing", async () => {
    const error = new MferenceError("expert.read", "short read");
    const { session } = start([says("a"), { error }]);
    await session.ask("q");
    expect(session.ask("again")).rejects.toBe(error);
    await Bun.sleep(0);
    expect(session.conversation.messages).toHaveLength(2);
  });

  test("the oldest turns give way when the context is full, never system and question", async () => {
    const long = "x".repeat(100);
    const replies = [says("a0"), says("a1"), says("a2")];
    const { session, sent, terminal } = start(replies, { contextRows: 480, system: "s" });
    await session.ask(`q0${long}`);
    await session.ask(`q1${long}`);
    await session.ask(`q2${long}`);
    expect(sent()[2]).toBe(`s|q1${long}|a1|q2${long}`);
    expect(terminal.stderr()).toContain("the oldest turn is no longer sent");
    expect(session.conversation.messages).toHaveLength(6);
  });

  test("a question that cannot fit is refused, and nothing is dropped", async () => {
    const { session, engine } = start([says("a0")], { contextRows: 300 });
    await session.ask("q0");
    expect(session.ask("x".repeat(400))).rejects.toMatchObject({ code: "engine.context" });
    await Bun.sleep(0);
    expect(engine.requests).toHaveLength(1);
    expect(session.conversation.sentTurns).toBe(1);
  });

  test("kept ids that are too many for the context are given up for the messages alone", async () => {
    const error = new MferenceError("engine.context", "the prompt has 5000 tokens");
    const { session, engine } = start([{ error }, says("a")]);
    await session.ask("q");
    expect(engine.requests.map(({ isCold }) => isCold)).toEqual([undefined, true]);
  });

  test("retry asks the last question again, and keeps the old answer when that fails", async () => {
    const error = new MferenceError("expert.read", "short read");
    const { session, sent } = start([says("old"), says("new"), { error }]);
    expect(await session.retry()).toBeUndefined();
    await session.ask("q");
    await session.retry();
    expect(sent()).toEqual(["q", "q"]);
    expect(session.conversation.messages[1]!.content).toBe("new");
    await session.retry().catch(() => undefined);
    expect(session.conversation.messages[1]!.content).toBe("new");
  });

  test("for programs a turn is one line of JSON", async () => {
    const { session, terminal } = start([says("a\nb")], { isJson: true });
    await session.ask("q");
    const lines = terminal.stdout().trimEnd().split("\n");
    expect(lines).toHaveLength(1);
    expect(JSON.parse(lines[0]!)).toMatchObject({
      model: "demo",
      content: "a\nb",
      stop: "endOfTurn",
    });
  });

  test("a package without a chat template cannot chat", () => {
    const terminal = fakeTerminal();
    const create = () =>
      new ChatSession({
        engine: fakeEngine(),
        terminal,
        progress: new Progress({ output: terminal.err, isQuiet: true }),
        style: { isQuiet: false, isJson: false, hidesThinking: false },
        info: { contextRows: 10, sampling: {}, hasChat: false },
        name: "ids",
        settings: { sampling: {}, maxNew: 1, stop: [] },
      });
    expect(create).toThrow('use "mference generate"');
  });
});
