import { describe, expect, test } from "bun:test";
import { type Answer, answerJson, footer, showAnswer } from "../../src/cli/answer.ts";
import { Progress } from "../../src/cli/progress.ts";
import type { GenerateEvent } from "../../src/engine/protocol.ts";
import { fakeEngine, fakeTerminal, type Reply, says, STATS } from "./fake.ts";

const REQUEST = {
  prompt: { kind: "ids", ids: [1] },
  sampling: {},
  maxNew: 8,
} as const;

async function show(reply: Reply, style: object = {}, isTerminal = false) {
  const terminal = fakeTerminal(isTerminal);
  const progress = new Progress({ output: terminal.err, isQuiet: true });
  const answer = await showAnswer(
    {
      engine: fakeEngine(reply),
      terminal,
      progress,
      style: { isQuiet: false, isJson: false, hidesThinking: false, ...style },
    },
    REQUEST,
  );
  return { answer, stdout: terminal.stdout(), stderr: terminal.stderr() };
}

const thought: GenerateEvent = { type: "reasoning", text: "hm" };

describe("showAnswer", () => {
  test("stdout holds the answer and a line feed, stderr the footer", async () => {
    const { stdout, stderr } = await show(says("Paris."));
    expect(stdout).toBe("Paris.\n");
    expect(stderr).toBe("[stop=endOfTurn prefill=16tok/0.50s new=3 decode=0.10s tok/s=30.000]\n");
  });

  test("a line feed of the answer's own is enough, and quiet means quiet", async () => {
    const { stdout, stderr } = await show(says("Paris.\n"), { isQuiet: true });
    expect([stdout, stderr]).toEqual(["Paris.\n", ""]);
  });

  test("a thought is never printed as an answer", async () => {
    const reply = { events: [thought, { type: "content", text: "Yes" } as const] };
    const { stdout, stderr, answer } = await show(reply);
    expect(stdout).toBe("Yes\n");
    expect(stderr).toStartWith("hm\n");
    expect(answer).toMatchObject({ content: "Yes", reasoning: "hm" });
    expect((await show(reply, { hidesThinking: true })).stderr).not.toContain("hm");
  });

  test("a tool call is a notice", async () => {
    const call = { type: "toolCall", id: "1", name: "look", arguments: '{"x":1}' } as const;
    const { stdout, stderr, answer } = await show({ events: [call], reason: "toolCalls" });
    expect(stdout).toBe("\n");
    expect(stderr).toContain('the model calls look({"x":1})');
    expect(answer.toolCalls).toEqual([{ id: "1", name: "look", arguments: '{"x":1}' }]);
  });

  test("a notice in the middle of an answer has a line of its own on a terminal", async () => {
    const said = { type: "content", text: "Par" } as const;
    const notice = { type: "notice", text: "memory is scarce" } as const;
    const reply = { events: [said, notice, notice] };
    expect((await show(reply, {}, true)).stderr).toStartWith(
      "\nmemory is scarce\nmemory is scarce\n",
    );
    expect((await show(reply)).stderr).toStartWith("memory is scarce\n");
    expect((await show({ events: [notice, said] }, {}, true)).stderr).toStartWith("memory");
  });

  test("an answer that never began prints nothing", async () => {
    const { stdout } = await show({ isEndless: false, reason: "cancelled" });
    expect(stdout).toBe("");
  });

  test("an answer that was cut says what helps", async () => {
    const { stderr } = await show({ ...says("a"), reason: "maxTokens" });
    expect(stderr).toContain("cut after 3 tokens; raise --max-new");
  });

  test("ids are printed where there is no text", async () => {
    const events = [4, 5, 6].map((id) => ({ type: "token", id }) as const);
    const reply = { events, reason: "maxTokens" } as const;
    const { stdout, stderr } = await show(reply, { printsIds: true });
    expect(stdout).toBe("4 5 6\n");
    expect(stderr).toContain("cut after 3 tokens; raise");
    expect((await show(reply)).stderr).toContain("cut after 3 tokens before the answer began");
  });

  test("control characters do not reach a terminal, and pass elsewhere", async () => {
    expect((await show(says("a\u001b[2Jb\tc\n"), {}, true)).stdout).toBe("a\ufffd[2Jb\tc\n");
    expect((await show(says("a\u001b[2Jb\n"))).stdout).toBe("a\u001b[2Jb\n");
  });

  test("for JSON nothing is printed on the way", async () => {
    expect((await show(says("Paris."), { isJson: true })).stdout).toBe("");
  });

  test("a failure ends the line that was begun", async () => {
    const terminal = fakeTerminal();
    const engine = {
      ...fakeEngine(),
      generate: (_: unknown, handlers?: { onEvent?: (event: GenerateEvent) => void }) => {
        handlers?.onEvent?.({ type: "content", text: "The cap" });
        return Promise.reject(new Error("read failed"));
      },
    };
    const style = { isQuiet: false, isJson: false, hidesThinking: false };
    const progress = new Progress({ output: terminal.err, isQuiet: true });
    const answer = showAnswer({ engine, terminal, progress, style }, REQUEST);
    expect(answer).rejects.toThrow("read failed");
    await answer.catch(() => undefined);
    expect(terminal.stdout()).toBe("The cap\n");
  });
});

test("an answer as JSON", () => {
  const result = { reason: "endOfTurn", ids: [], stats: STATS } as const;
  const answer: Answer = { content: "a\u2028", reasoning: "", toolCalls: [], result };
  expect(JSON.parse(answerJson(answer, { model: "demo" }))).toEqual({
    model: "demo",
    content: "a\u2028",
    stop: "endOfTurn",
    stats: { ...STATS, tokensPerSecond: 30 },
  });
});

test("a footer without decoding has no rate", () => {
  const stats = { ...STATS, decodeSeconds: 0 };
  expect(footer({ reason: "cancelled", ids: [], stats })).toEndWith("tok/s=0.000]");
});
