import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { chat } from "../../src/families/gemma4/chat.ts";
import {
  type AssistantEvent,
  type ChatDialect,
  findTextFiles,
  openText,
  parseJson,
  parseTools,
  type Text,
  writeJson,
} from "../../src/text/index.ts";

const root = join(import.meta.dir, "../..");
const files = findTextFiles(join(root, "models/demo"))!;
const text = openText({ files, dialect: chat });
const toolNames = new Set(["get", "set-it"]);
const specials = { specials: true };

/** Events with neighbouring texts of one kind put together, calls as `name{json}`. */
function fold(events: readonly AssistantEvent[]): string[] {
  const folded: string[] = [];
  let last = "";
  for (const event of events) {
    if (event.type === "toolCall") {
      folded.push(`call: ${event.call.name}${writeJson(event.call.arguments)}`);
    } else if (event.type === last) {
      folded[folded.length - 1] += event.text;
    } else {
      folded.push(`${event.type}: ${event.text}`);
    }
    last = event.type;
  }
  return folded;
}

function run(
  answer: string | readonly number[],
  options: { prompt?: string; isTruncated?: boolean; text?: Text } = {},
) {
  const chosen = options.text ?? text;
  const ids = typeof answer === "string" ? chosen.tokenizer.encode(answer, specials) : answer;
  const promptIds = chosen.tokenizer.encode(options.prompt ?? "", specials);
  const decoder = chosen.assistantDecoder({ toolNames, promptIds });
  const events = ids.flatMap((id) => decoder.push(id));
  events.push(...decoder.finish({ isTruncated: options.isTruncated ?? false }));
  return fold(events);
}

const id = (spelling: string) => text.tokenizer.tokenId(spelling)!;
const bytes = (values: readonly number[]) =>
  values.map((value) => id(`<0x${value.toString(16).toUpperCase().padStart(2, "0")}>`));

describe("labelled thoughts", () => {
  test.each([
    ["plain text", ["content: plain text"]],
    ["<|channel>thought\n<channel|>Paris.", ["content: Paris."]],
    ["<|channel>thought\nhm, so\n<channel|>Paris.", ["reasoning: hm, so\n", "content: Paris."]],
    ["a<|channel>thought\nb<channel|>c", ["content: a", "reasoning: b", "content: c"]],
    ["<|channel> Final \nshown<channel|> on", ["content: shown on"]],
    ["<|channel>answer\nshown", ["content: shown"]],
    ["<|channel>thought\nnever closed", ["reasoning: never closed"]],
    ["<|channel>thought", []],
    ["<|channel>thought\na<|channel>final\nb", ["reasoning: a", "content: b"]],
    ["a<channel|>b", ["content: ab"]],
    ["a<turn|>b<bos>c", ["content: abc"]],
  ])("%j", (answer, events) => {
    expect(run(answer)).toEqual(events);
  });

  test("a region without a label is still hidden", () => {
    const long = "word ".repeat(40);
    expect(run(`<|channel>${long}<channel|>x`)).toEqual([`reasoning: ${long}`, "content: x"]);
  });

  test("what the prompt leaves open is where the answer begins", () => {
    const open = "<|turn>model\n<|channel>thought\n";
    expect(run("hm<channel|>x", { prompt: open })).toEqual(["reasoning: hm", "content: x"]);
    expect(run("ght\nhm<channel|>x", { prompt: "<|channel>thou" })).toEqual([
      "reasoning: hm",
      "content: x",
    ]);
    expect(run("x", { prompt: `${open}<channel|>` })).toEqual(["content: x"]);
    expect(run("x", { prompt: `${open}never closed<turn|>\n<|turn>model\n` })).toEqual([
      "content: x",
    ]);
  });

  test("bytes held at a marker belong to what was before it", () => {
    const [first, second] = bytes([0xc3, 0xa9]) as [number, number];
    const hidden = text.tokenizer.encode("<|channel>thought\n", specials);
    expect(run([...hidden, first, id("<channel|>"), ...bytes([0x41])])).toEqual([
      "reasoning: \ufffd",
      "content: A",
    ]);
    expect(run([first, id("<turn|>"), second])).toEqual(["content: \ufffd\ufffd"]);
    expect(run([first, second])).toEqual(["content: é"]);
  });
});

describe("plain thoughts", () => {
  // Another family's kind of region, with the demo's tokens.
  const dialect: ChatDialect = {
    ...chat,
    hidden: { open: "<|tool>", close: "<tool|>", isLabelled: false, visibleLabels: [] },
  };
  const thinking = openText({ files, dialect });

  test("begin inside when the prompt opened one", () => {
    expect(run("a\nb<tool|>c", { prompt: "<|tool>\n", text: thinking })).toEqual([
      "reasoning: a\nb",
      "content: c",
    ]);
    expect(run("a<|tool>b<tool|>c", { text: thinking })).toEqual([
      "content: a",
      "reasoning: b",
      "content: c",
    ]);
  });
});

describe("tool calls", () => {
  const call = '<|tool_call>call:get{q:<|"|>x<|"|>}<tool_call|>';

  test("with text around them, and several", () => {
    expect(run(`Let me see.${call}${call}then`)).toEqual([
      "content: Let me see.",
      'call: get{"q":"x"}',
      'call: get{"q":"x"}',
      "content: then",
    ]);
  });

  test("out of an open thought", () => {
    expect(run(`<|channel>thought\nhm${call}`)).toEqual(["reasoning: hm", 'call: get{"q":"x"}']);
  });

  test("have ids of their own", () => {
    const decoder = text.assistantDecoder({ toolNames });
    const events = text.tokenizer
      .encode(call + call, specials)
      .flatMap((each) => decoder.push(each));
    const ids = events.flatMap((event) => (event.type === "toolCall" ? [event.call.id] : []));
    expect(new Set(ids).size).toBe(2);
    for (const each of ids) expect(each).toMatch(/^call_[0-9a-f]{24}$/);
  });

  test("every token split gives the same events: calls spelled byte by byte", () => {
    const value = 'é "quoted" C:\\temp \\d {x} \u{1f999}';
    const canonical = `<|tool_call>call:set-it{v:<|"|>${value}<|"|>}<tool_call|>`;
    const want = [`call: set-it${JSON.stringify({ v: value })}`];
    expect(run(canonical)).toEqual(want);
    const spelled = [
      id("<|tool_call>"),
      ...bytes([...new TextEncoder().encode(`call:set-it{v:<|"|>${value}<|"|>}`)]),
      id("<tool_call|>"),
    ];
    expect(run(spelled)).toEqual(want);
  });

  test.each([
    [
      "an unknown name",
      "<|tool_call>call:other{}<tool_call|>",
      /unknown tool other; known are get/,
    ],
    ["a grammar error", "<|tool_call>call:get{q:}<tool_call|>", /malformed: expected/],
    ["an end without a beginning", "<tool_call|>", /never began/],
    ["a call inside a call", "<|tool_call>call:get<|tool_call>", /inside a tool call/],
    ["an end inside a call", "<|tool_call>call:get{q:1", /ends inside/],
    ["an oversized body", `<|tool_call>${"x".repeat(262_145)}`, /longer than 262144 bytes/],
  ])("%s fails, and everything after it", (_, answer, sentence) => {
    const decoder = text.assistantDecoder({ toolNames });
    const push = () => {
      for (const each of text.tokenizer.encode(answer, specials)) decoder.push(each);
      decoder.finish({ isTruncated: false });
    };
    expect(push).toThrow(sentence);
    expect(() => decoder.push(id("<bos>"))).toThrow(/malformed before/);
    expect(() => decoder.finish({ isTruncated: true })).toThrow(/malformed before/);
  });

  test("an answer cut short inside a call has no call and is no error", () => {
    expect(run("text<|tool_call>call:get{q:1", { isTruncated: true })).toEqual(["content: text"]);
  });

  test("a stop for results without a call is no error of the text", () => {
    expect(run("just text")).toEqual(["content: just text"]);
  });

  test("the held-out dialogues' calls are read", () => {
    const lines = readFileSync(join(root, "tools/demo-model/held-out.jsonl"), "utf8").split("\n");
    let count = 0;
    for (const line of lines.filter((each) => each !== "")) {
      const row = parseJson(line) as Map<string, never>;
      const want: string = row.get("want")!;
      const ids = text.tokenizer.encode(want, specials);
      const tools = row.has("tools") ? parseTools(row.get("tools")!) : [];
      const decoder = text.assistantDecoder({ toolNames: new Set(tools.map(({ name }) => name)) });
      const events = ids.slice(0, -1).flatMap((each) => decoder.push(each));
      events.push(...decoder.finish({ isTruncated: false }));
      const hasCall = want.startsWith("<|tool_call>");
      expect(text.stopIds.get(ids.at(-1)!)).toBe(hasCall ? "toolCalls" : "endOfTurn");
      expect(events.some(({ type }) => type === "toolCall")).toBe(hasCall);
      if (hasCall) count += 1;
      else expect(fold(events)).toEqual([`content: ${want.replace("<turn|>", "")}`]);
    }
    expect(count).toBe(24);
  });
});

test("random ids never hang, and only a whole call is a call", () => {
  let seed = 1;
  const random = (bound: number) => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
    return (seed >>> 8) % bound;
  };
  const markers = ["<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>', "<turn|>"];
  for (let round = 0; round < 300; round += 1) {
    const decoder = text.assistantDecoder({ toolNames });
    const events: AssistantEvent[] = [];
    try {
      for (let index = 0; index < 60; index += 1) {
        const isMarker = random(4) === 0;
        const next = isMarker ? id(markers[random(markers.length)]!) : random(8300);
        events.push(...decoder.push(next));
      }
      events.push(...decoder.finish({ isTruncated: random(2) === 0 }));
    } catch (error) {
      expect(error).toMatchObject({ code: "text.tools" });
    }
    expect(events.filter(({ type }) => type === "toolCall")).toEqual([]);
  }
});
