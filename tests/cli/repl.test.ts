import { expect, test } from "bun:test";
import { ChatSession } from "../../src/cli/chat-session.ts";
import type { Key, Keyboard } from "../../src/cli/keyboard.ts";
import { Progress } from "../../src/cli/progress.ts";
import { Repl } from "../../src/cli/repl.ts";
import { MferenceError } from "../../src/util/errors.ts";
import { fakeEngine, fakeTerminal, type Reply, says } from "./fake.ts";

const line = (text: string): Key => ({ kind: "line", text });
const ctrlC: Key = { kind: "interrupt", hadText: false };
const END: Key = { kind: "end" };

async function run(keys: readonly Key[], replies: readonly Reply[] = []) {
  const terminal = fakeTerminal();
  const prompts: string[] = [];
  const rest = [...keys];
  const keyboard: Keyboard = {
    read: (prompt) => {
      prompts.push(prompt);
      const key = rest.shift();
      if (key === undefined) throw new Error("the script has no more keys");
      return Promise.resolve(key);
    },
    close: () => undefined,
  };
  const engine = fakeEngine(...replies);
  const session = new ChatSession({
    engine,
    terminal,
    progress: new Progress({ output: terminal.err, isQuiet: true }),
    style: { isQuiet: true, isJson: false, hidesThinking: false },
    info: { contextRows: 4096, sampling: {}, hasChat: true },
    name: "demo",
    settings: { sampling: {}, maxNew: 16, stop: [] },
  });
  const diverted: { press?: (() => void) | undefined } = {};
  const interrupts = {
    signal: new AbortController().signal,
    divert: (handler: () => void) => {
      diverted.press = handler;
      // Presses Ctrl-C while the answer is under way.
      queueMicrotask(handler);
      return () => {
        diverted.press = undefined;
      };
    },
  };
  const exitCode = await new Repl({ session, keyboard, terminal, interrupts }).run();
  const questions = engine.requests.map(({ prompt }) => {
    const messages = JSON.parse(prompt.kind === "chat" ? prompt.messages : "[]") as {
      content: string;
    }[];
    return messages.at(-1)?.content;
  });
  const { messages } = session.conversation;
  return { exitCode, prompts, questions, messages, left: rest.length, stderr: terminal.stderr() };
}

test("lines are questions until the input ends", async () => {
  const { exitCode, questions } = await run(
    [line("one"), line(""), line("two"), END],
    [says("a"), says("b")],
  );
  expect(exitCode).toBe(0);
  expect(questions).toEqual(["one", "two"]);
});

test("several lines make one message, with a prompt of their own", async () => {
  const keys = [line('"""'), line("a"), line('b"""'), line("c\\"), line("d"), END];
  const { questions, prompts } = await run(keys, [says("x"), says("y")]);
  expect(questions).toEqual(["a\nb", "c\nd"]);
  expect(prompts).toEqual(["you> ", "...> ", "...> ", "you> ", "...> ", "you> "]);
});

test("a paste is one message, whatever is in it", async () => {
  const { questions } = await run([{ kind: "paste", text: 'a\\\n"""\nb' }, END], [says("x")]);
  expect(questions).toEqual(['a\\\n"""\nb']);
});

test("Ctrl-C stops the answer and not the session", async () => {
  const { exitCode, messages, stderr, questions } = await run(
    [line("long"), line("next"), END],
    [{ ...says("half"), isEndless: true }, says("b")],
  );
  expect(exitCode).toBe(0);
  expect(questions).toEqual(["long", "next"]);
  expect(messages[1]).toEqual({ role: "assistant", content: "half", isInterrupted: true });
  expect(stderr).toContain("[interrupted]");
});

test("Ctrl-C at an empty prompt hints, a second one ends with 130", async () => {
  const { exitCode, stderr, left } = await run([ctrlC, ctrlC, line("never")]);
  expect(exitCode).toBe(130);
  expect(stderr).toBe("Ctrl-C again, Ctrl-D or /quit ends the chat\n");
  expect(left).toBe(1);
});

test("anything between two Ctrl-C starts the count again", async () => {
  const withText: Key = { kind: "interrupt", hadText: true };
  const keys = [ctrlC, line("/show"), ctrlC, withText, ctrlC, line('"""'), ctrlC, END];
  expect((await run(keys)).exitCode).toBe(0);
});

test("commands run, unknown ones are told, and the chat goes on", async () => {
  const keys = [line("/system brief"), line("/foo"), line("//bin"), line("/quit"), line("never")];
  const { questions, stderr, left } = await run(keys, [says("a")]);
  expect(stderr).toContain("the system text is set");
  expect(stderr).toContain("unknown command /foo");
  expect(questions).toEqual(["/bin"]);
  expect(left).toBe(1);
});

test("a failed turn is told and the chat goes on; a dead engine ends it", async () => {
  const error = new MferenceError("expert.read", "short read");
  const { stderr, messages } = await run([line("q"), line("r"), END], [{ error }, says("a")]);
  expect(stderr).toContain("short read");
  expect(messages).toHaveLength(2);
  const dead = new MferenceError("engine.state", "the engine stopped");
  expect(run([line("q"), END], [{ error: dead }])).rejects.toBe(dead);
});
