import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { ChatSession } from "../../src/cli/chat-session.ts";
import { Progress } from "../../src/cli/progress.ts";
import { isSlashCommand, runSlashCommand, unescapeSlash } from "../../src/cli/slash.ts";
import { fakeEngine, fakeTerminal, says } from "./fake.ts";

function start(): ChatSession {
  const terminal = fakeTerminal();
  return new ChatSession({
    engine: fakeEngine(says("a0"), says("a1")),
    terminal,
    progress: new Progress({ output: terminal.err, isQuiet: true }),
    style: { isQuiet: false, isJson: false, hidesThinking: false },
    info: { contextRows: 4096, sampling: {}, hasChat: true },
    name: "demo",
    settings: { sampling: {}, maxNew: 16, stop: [] },
  });
}

const say = (session: ChatSession, command: string): string => {
  const outcome = runSlashCommand(session, command);
  return outcome.kind === "say" ? outcome.text : `<${outcome.kind}>`;
};

test("a slash begins a command, two begin a message with one", () => {
  expect(["/help", "//usr/bin", " /help", "hi", "/"].map(isSlashCommand)).toEqual([
    true,
    false,
    false,
    false,
    true,
  ]);
  expect(unescapeSlash("//usr/bin")).toBe("/usr/bin");
  expect(unescapeSlash("hi")).toBe("hi");
});

test("unknown commands are refused, with the one that was meant", () => {
  expect(() => say(start(), "/hepl")).toThrow("unknown command /hepl; did you mean /help?");
  expect(() => say(start(), "/constructor")).toThrow("unknown command");
});

test("every command of the help exists", () => {
  const names = say(start(), "/help").match(/^\/\w+/gm) ?? [];
  expect(names.length).toBeGreaterThan(8);
  for (const name of names.filter((known) => !["/save", "/load", "/set"].includes(known))) {
    expect(() => say(start(), name)).not.toThrow();
  }
});

test("the conversation can be shown, taken back and forgotten", async () => {
  const session = start();
  expect(say(session, "/retry")).toBe("there is no question yet");
  await session.ask("q0");
  await session.ask("q1");
  expect(say(session, "/history")).toBe("user> q0\nassistant> a0\nuser> q1\nassistant> a1");
  expect(say(session, "/undo")).toBe("took the last turn back");
  expect(session.conversation.messages).toHaveLength(2);
  expect(say(session, "/retry")).toBe("<retry>");
  say(session, "/reset");
  expect(say(session, "/undo")).toBe("there is no turn to take back");
  expect(say(session, "/quit")).toBe("<quit>");
});

test("the system text is set, shown and removed", () => {
  const session = start();
  say(session, "/system be\nbrief");
  expect(say(session, "/system")).toBe("be\nbrief");
  say(session, "/system -");
  expect(session.conversation.system).toBeUndefined();
});

test("settings are checked like flags", () => {
  const session = start();
  say(session, "/set temp 0.5");
  say(session, "/set top-k = 7");
  say(session, "/set max-new 9");
  say(session, "/set think off");
  expect(session.settings).toEqual({
    sampling: { temperature: 0.5, topK: 7 },
    maxNew: 9,
    stop: [],
    think: false,
  });
  expect(say(session, "/show")).toContain("temp 0.5, top-p 0.95, top-k 7");
  expect(() => say(session, "/set temp hot")).toThrow("--temp must be");
  expect(() => say(session, "/set think maybe")).toThrow("on or off");
  expect(() => say(session, "/set colour red")).toThrow('there is no setting "colour"');
  expect(() => say(session, "/set max-new")).toThrow("--max-new must be");
  expect(session.settings.maxNew).toBe(9);
});

test("statistics of the last answer", async () => {
  const session = start();
  expect(say(session, "/stats")).toBe("there is no answer yet");
  await session.ask("q");
  expect(say(session, "/stats")).toContain("75.0% hits");
});

describe("files", () => {
  let folder = "";
  beforeAll(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), "mference-slash-"));
  });
  afterAll(() => fs.rmSync(folder, { recursive: true }));

  test("a chat is saved for its owner alone, saved again, and loaded", async () => {
    const file = path.join(folder, "my chat.json");
    const session = start();
    await session.ask("q0");
    say(session, `/save ${file}`);
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
    await session.ask("q1");
    expect(say(session, `/save ${file}`)).toContain("saved 2 turns");
    const other = start();
    expect(say(other, `/load ${file}`)).toContain("loaded 2 turns");
    expect(other.conversation.messages).toEqual(session.conversation.messages);
    expect(fs.readdirSync(folder)).toEqual(["my chat.json"]);
  });

  test("no other file is overwritten or taken for a chat", () => {
    const file = path.join(folder, "letter.txt");
    fs.writeFileSync(file, "dear");
    expect(() => say(start(), `/save ${file}`)).toThrow("is not a saved chat");
    expect(() => say(start(), `/load ${file}`)).toThrow("is not a saved chat");
    expect(fs.readFileSync(file, "utf8")).toBe("dear");
    expect(() => say(start(), `/load ${file}.none`)).toThrow("there is no file");
    expect(() => say(start(), `/save ${folder}/none/x`)).toThrow("cannot write");
    expect(() => say(start(), `/load ${folder}`)).toThrow("it is no file");
    expect(() => say(start(), "/save")).toThrow("/save FILE");
  });
});
