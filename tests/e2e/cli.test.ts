/** The real program in processes of its own: its answers, its refusals, its signals. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { buildDeviceLibrary } from "../../src/native/build.ts";

const MAIN = path.join(import.meta.dir, "../../src/cli/main.ts");
const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.\n";
const LONG = "word ".repeat(5000);
/** Text without end: every token is as likely as any other. */
const ENDLESS = ["--temp", "1000", "--top-k", "0", "--top-p", "1", "--seed", "1", "--quiet"];

let folder = "";
let home = "";
let library = "";

interface Run {
  readonly stdout: string;
  readonly stderr: string;
  readonly exit: number;
}

function spawn(args: readonly string[], options: { input?: string | Uint8Array; home?: string }) {
  const stdin = options.input === undefined ? "ignore" : Buffer.from(options.input);
  return Bun.spawn([process.execPath, MAIN, ...args], {
    stdin,
    stdout: "pipe",
    stderr: "pipe",
    env: {
      ...process.env,
      MFERENCE_HOME: options.home ?? home,
      MFERENCE_LIBRARY: library,
      NO_COLOR: "1",
    },
  });
}

async function run(
  args: readonly string[],
  options: { input?: string | Uint8Array; home?: string } = {},
): Promise<Run> {
  const child = spawn(args, options);
  const [stdout, stderr, exit] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { stdout, stderr, exit };
}

let first: Run;

beforeAll(async () => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "mference-cli-"));
  home = path.join(folder, "home");
  // Once for all processes: a source that changes meanwhile must not make each of them build.
  library = await buildDeviceLibrary();
  first = await run(["chat", "--prompt", QUESTION]);
}, 600_000);
afterAll(() => fs.rmSync(folder, { recursive: true, force: true }));

describe("answers", () => {
  test("an empty home: the demo is installed and answers, alone on stdout", () => {
    expect(first).toMatchObject({ stdout: ANSWER, exit: 0 });
    expect(first.stderr).toContain("installing the bundled demo");
    expect(first.stderr).toMatch(/\[stop=endOfTurn prefill=\d+tok\/\d\.\d\ds new=\d+ decode=/);
  });

  test("a pipe: each line is a question, and what is known is not computed again", async () => {
    const input = `${QUESTION}\nAnd of Spain?\n`;
    const { stdout, exit } = await run(["chat", "--json", "--quiet"], { input });
    expect(exit).toBe(0);
    const turns = stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line) as { content: string; stats: { cachedTokens: number } });
    expect(turns.map(({ content }) => content)).toEqual([
      ANSWER.trimEnd(),
      "The capital of Spain is Madrid.",
    ]);
    expect(turns[0]!.stats.cachedTokens).toBe(0);
    expect(turns[1]!.stats.cachedTokens).toBeGreaterThan(0);
  });

  test("one seed draws one text, with any number of threads and slots", async () => {
    const args = ["generate", "--prompt", "The", "--max-new", "12", "--temp", "0.9", "--quiet"];
    const seeded = [...args, "--seed", "18446744073709551615"];
    const [left, right] = [
      await run([...seeded, "--slots", "resident"]),
      await run([...seeded, "--threads", "1", "--slots", "3"]),
    ];
    expect(left.exit).toBe(0);
    expect(left.stdout.length).toBeGreaterThan(1);
    expect(right).toEqual(left);
  });

  test("ids go in, and come out with the text", async () => {
    const { stdout, exit } = await run(["generate", "--ids", "2,5,9", "--max-new", "4", "--json"]);
    expect(exit).toBe(0);
    expect((JSON.parse(stdout) as { ids: number[] }).ids).toHaveLength(4);
  });

  test("models, verify and doctor speak JSON", async () => {
    const models = JSON.parse((await run(["models", "--json"])).stdout) as {
      models: { name: string; status: string }[];
    };
    expect(models.models).toMatchObject([{ name: "demo", status: "installed" }]);
    const verified = await run(["verify", "--full", "--json"]);
    expect(verified.exit).toBe(0);
    expect(JSON.parse(verified.stdout)).toMatchObject({ model: "demo", full: true });
    const doctor = await run(["doctor", "--json"]);
    expect(doctor.exit).toBe(0);
    expect(JSON.parse(doctor.stdout)).toMatchObject({ models: [{ name: "demo" }] });
    const odd = path.join(folder, "no-folder");
    fs.writeFileSync(odd, "");
    const other = await run(["doctor", "--json"], { home: odd });
    expect(other.exit).toBe(0);
    const findings = JSON.parse(other.stdout) as { models: unknown[]; notices: string[] };
    expect(findings.models).toEqual([]);
    expect(findings.notices.join()).toContain("cannot list");
  });
});

describe("refusals: one sentence and an exit code", () => {
  const refusals: readonly {
    readonly args: readonly string[];
    readonly exit: number;
    readonly says: string;
    readonly input?: string | Uint8Array;
  }[] = [
    { args: [], exit: 2, says: "usage: mference COMMAND" },
    { args: ["chatt"], exit: 2, says: "did you mean chat?" },
    { args: ["chat", "--promt", "x"], exit: 2, says: "did you mean --prompt?" },
    {
      args: ["chat", "--precision", "half"],
      exit: 2,
      says: "--precision must be exact, fast or quick",
    },
    { args: ["chat", "--prompt", " "], exit: 2, says: "the prompt is empty" },
    { args: ["chat"], input: "", exit: 2, says: "holds no question" },
    { args: ["chat"], input: Uint8Array.of(0x68, 0xff, 0x0a), exit: 2, says: "not valid UTF-8" },
    { args: ["generate"], input: Uint8Array.of(0xc3), exit: 2, says: "not valid UTF-8" },
    { args: ["chat", "--prompt", LONG], exit: 2, says: "does not fit the context of 4096" },
    { args: ["generate", "--prompt", LONG], exit: 2, says: "the context holds 4096" },
    { args: ["generate", "--ids", "99999"], exit: 2, says: "99999 is not in the vocabulary" },
    { args: ["chat", "--context", "99999", "--prompt", "x"], exit: 2, says: "expected 1 to 4096" },
    { args: ["chat", "--model", "none", "--prompt", "x"], exit: 3, says: '"none"' },
    { args: ["install", "demo"], exit: 6, says: "already installed" },
    { args: ["install", "--source", "/none/such"], exit: 4, says: "/none/such" },
  ];
  const named = refusals.map((row) => [row.says, row] as const);

  test.each(named)("%s", async (_name, { args, exit, says, input }) => {
    const found = await run(args, input === undefined ? {} : { input });
    expect(found.exit).toBe(exit);
    expect(found.stdout).toBe("");
    expect(found.stderr).toContain(says);
    const sentences = found.stderr.match(/^mference: .*$/gm) ?? [];
    expect(sentences).toHaveLength(args.length === 0 ? 0 : 1);
    expect(found.stderr).not.toContain("fault of the program");
  });

  test("for programs also an object on stdout", async () => {
    const { stdout, exit } = await run(["chat", "--model", "none", "--prompt", "x", "--json"]);
    expect(exit).toBe(3);
    expect(JSON.parse(stdout)).toMatchObject({ error: { code: "model.unknown" } });
  });

  test("a damaged package is not run", async () => {
    const damaged = path.join(folder, "damaged");
    fs.cpSync(home, damaged, { recursive: true });
    const file = path.join(damaged, "models/demo.gturbo/model_weights.bin");
    const bytes = fs.readFileSync(file);
    bytes[bytes.length - 100]! ^= 1;
    fs.writeFileSync(file, bytes);
    const { stdout, stderr, exit } = await run(["chat", "--prompt", "x"], { home: damaged });
    expect([stdout, exit]).toEqual(["", 4]);
    expect(stderr).toContain("model_weights.bin");
    fs.truncateSync(file, bytes.length - 1);
    expect((await run(["chat", "--prompt", "x"], { home: damaged })).exit).toBe(4);
  });
});

describe("signals", () => {
  async function interrupted(signal: NodeJS.Signals) {
    const child = spawn(["chat", "--prompt", "x", "--max-new", "4000", ...ENDLESS], {});
    const reader = child.stdout.getReader();
    await reader.read();
    child.kill(signal);
    return await child.exited;
  }

  test("Ctrl-C ends an answer with 130, SIGTERM with 143", async () => {
    expect(await interrupted("SIGINT")).toBe(130);
    expect(await interrupted("SIGTERM")).toBe(143);
  });

  test("a reader that goes away ends the answer", async () => {
    const child = spawn(["chat", "--prompt", "x", "--max-new", "4000", ...ENDLESS], {});
    const reader = child.stdout.getReader();
    await reader.read();
    await reader.cancel();
    expect(await child.exited).toBe(141);
  });

  test.skipIf(!fs.existsSync("/dev/full"))(
    "an output without room is said (needs /dev/full)",
    async () => {
      const child = Bun.spawn([process.execPath, MAIN, "models"], {
        stdout: Bun.file("/dev/full"),
        stderr: "pipe",
        env: { ...process.env, MFERENCE_HOME: home },
      });
      expect(await new Response(child.stderr).text()).toMatch(
        /^mference: the standard output cannot .*\n$/,
      );
      expect(await child.exited).toBe(1);
    },
  );
});

test("at a terminal: questions, history, a paste, Ctrl-C, and no colours out of place", async () => {
  let screen = "";
  const decoder = new TextDecoder();
  const child = Bun.spawn([process.execPath, MAIN, "chat"], {
    env: { ...process.env, MFERENCE_HOME: home, MFERENCE_LIBRARY: library, TERM: "xterm" },
    terminal: {
      cols: 80,
      rows: 24,
      data: (_, bytes) => {
        screen += decoder.decode(bytes, { stream: true });
      },
    },
  });
  /** Waits for a text on what the screen has shown since the last one. */
  const shows = async (text: string): Promise<void> => {
    for (;;) {
      const at = screen.indexOf(text);
      if (at >= 0) {
        screen = screen.slice(at + text.length);
        return;
      }
      await Bun.sleep(10);
    }
  };
  const type = (text: string): void => {
    child.terminal?.write(text);
  };
  await shows("you> ");
  type(`${QUESTION}\r`);
  await shows(ANSWER.trimEnd());
  await shows("you> ");
  type("\u001b[A\r");
  await shows(ANSWER.trimEnd());
  await shows("you> ");
  type("\u001b[200~one\r/quit\u001b[201~\r");
  await shows("[stop=");
  await shows("you> ");
  type("/history\r");
  await shows("user> one\r\n/quit");
  await shows("you> ");
  type("\u0003");
  await shows("Ctrl-C again");
  await shows("you> ");
  type("\u0003");
  expect(await child.exited).toBe(130);
  expect(fs.readFileSync(path.join(home, "history"), "utf8")).toStartWith(`${QUESTION}\n`);
});
