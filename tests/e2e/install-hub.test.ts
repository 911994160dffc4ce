/**
 * The program against the stand-alone Hub, both in processes of their own, from an empty home: what the
 * README shows, every family, every kind of failure with its exit code, and nothing of it asks the network
 * for what is there.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { catalogue } from "../../src/install/catalogue.ts";
import fs from "node:fs";
import path from "node:path";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { FAMILY_NAMES } from "../support/repositories.ts";
import type { Order } from "../support/hub.ts";

const ROOT = path.join(import.meta.dir, "../..");
const MAIN = path.join(ROOT, "src/cli/main.ts");
const PORT = /:8411\b/g;

interface Run {
  readonly exit: number;
  readonly out: string;
  readonly err: string;
}

let hub: Bun.Subprocess<"ignore", "pipe", "inherit">;
let base: string;
/** Command line of each repository's install, as the Hub prints it. */
const commands = new Map<string, readonly string[]>();
const home = temporaryFolder();

beforeAll(async () => {
  hub = Bun.spawn([process.execPath, path.join(ROOT, "tests/support/hub.ts"), "--port", "0"], {
    stdout: "pipe",
    stderr: "inherit",
    stdin: "ignore",
  });
  let said = "";
  for await (const chunk of hub.stdout) {
    said += new TextDecoder().decode(chunk);
    if (said.split("\n").length > FAMILY_NAMES.length + 2) break;
  }
  const [first = "", ...lines] = said.trim().split("\n");
  base = /http:\S+/.exec(first)![0];
  for (const line of lines) {
    const [, , , ...args] = line.split(" ");
    commands.set(args[2]!.slice(base.length), args);
  }
});
afterAll(async () => {
  hub.kill();
  await hub.exited;
});

async function run(args: readonly string[], variables: Record<string, string> = {}): Promise<Run> {
  const names = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "HF_ENDPOINT"];
  const none = Object.fromEntries([...names, "HF_TOKEN"].map((name) => [name, ""]));
  const child = Bun.spawn([process.execPath, MAIN, ...args], {
    env: { ...process.env, ...none, MFERENCE_HOME: home, NO_COLOR: "1", ...variables },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  return { exit: await child.exited, out, err };
}

interface Seen {
  readonly file: string;
  readonly method: string;
}
const order = async (...orders: readonly Order[]): Promise<void> => {
  await fetch(`${base}-/misbehave?${encodeURIComponent(JSON.stringify(orders))}`);
};
const requests = async (): Promise<readonly Seen[]> =>
  (await (await fetch(`${base}-/requests`)).json()) as readonly Seen[];

test("the install section of the README does what it says", () => {
  const readme = fs.readFileSync(path.join(ROOT, "README.md"), "utf8");
  const section = /^## Install\n([\s\S]*?)^## /m.exec(readme)![1]!;
  const [start, use] = [...section.matchAll(/^```sh\n([\s\S]*?)^```/gm)].map((match) => match[1]!);
  expect(start).toContain("bun run hub");
  // The same with this test's Hub, Bun and home.
  const script = use!
    .replaceAll(PORT, `:${new URL(base).port}`)
    .replaceAll("bun run mference", `"${process.execPath}" "${MAIN}"`);
  const { stdout, stderr, exitCode } = Bun.spawnSync(["sh", "-ec", script], {
    env: { ...process.env, MFERENCE_HOME: temporaryFolder(), NO_COLOR: "1" },
  });
  expect([exitCode, exitCode === 0 ? "" : stderr.toString()]).toEqual([0, ""]);
  expect(stdout.toString()).toContain("every byte is as installed");
  expect(stdout.toString()).toContain("The capital of France is Paris.");
});

/** Those with a forward pass. */
const RUNNABLE: ReadonlySet<string> = new Set(
  catalogue().flatMap(({ canRun, family }) => (canRun ? [family] : [])),
);

describe.each(FAMILY_NAMES)("%s", (family) => {
  test("is planned from its headers, and no byte of a tensor is asked for", async () => {
    await order();
    const [, source = "", address = ""] = commands.get(`tiny/${family}`)!;
    const plan = await run(["install", "--plan", source, address]);
    expect(plan.exit).toBe(0);
    expect(plan.out).toContain(`family ${family}, commit `);
    expect(plan.out).toMatch(/^\d+ ranges, \d+ bytes/m);
    expect(plan.out).toMatch(/^ {2}model_weights\.bin {2}\d+$/m);
    expect(plan.out).toMatch(/each expert's down_biases -> packed_experts\/layer_\d\d\.bin at \d+/);
    const asked = (await requests()).filter(({ method }) => method === "GET");
    // Of each shard the length of its header and the header; the Hub sends both on to its storage.
    expect(asked.filter(({ file }) => file.endsWith(".safetensors")).length).toBe(2 * 2 * 2);
  });

  test("is installed, verified, and says when it is loaded what it can do", async () => {
    expect(await run(commands.get(`tiny/${family}`)!)).toMatchObject({ exit: 0 });
    await order();
    const verified = await run(["verify", family.toUpperCase(), "--full"]);
    expect(verified).toMatchObject({ exit: 0 });
    expect(verified.out).toContain("every byte is as installed");
    // What one that is run answers is for the demos to show: the weights of this one mean nothing.
    if (!RUNNABLE.has(family)) {
      const loaded = await run(["generate", "--model", family, "--ids", "2,3"]);
      expect(loaded.exit).toBe(3);
      expect(loaded.err).toContain(`models of the ${family} family can be installed and verified`);
    }
    expect(await requests()).toEqual([]);
  });
});

test("the models that are there, unfinished and to be had are listed with their sizes", async () => {
  await order({ fault: { kind: "stall" }, host: "storage", after: 2 });
  const [, ...args] = commands.get("mference/talking")!;
  const child = Bun.spawn([process.execPath, MAIN, "install", ...args], {
    env: { ...process.env, MFERENCE_HOME: home, HTTP_PROXY: "", http_proxy: "" },
    stdout: "ignore",
    stderr: "pipe",
  });
  const partial = path.join(home, "models/talking.gturbo.resume.json");
  while (!fs.existsSync(partial)) await Bun.sleep(5);
  const busy = await run(["install", ...args]);
  expect([busy.exit, busy.err]).toEqual([6, expect.stringContaining("lock") as string]);
  child.kill("SIGINT");
  expect(await child.exited).toBe(130);
  expect(await new Response(child.stderr).text()).toContain("the same command goes on with it");
  const { out } = await run(["models"]);
  expect(out).toMatch(/^talking +partial +\d.* of 29\.2 MB downloaded; it goes on with/m);
  expect(out).toMatch(/^maple +installed +\d/m);
  expect(out).toMatch(/^available .*deepseekv4flash \(97\.0 GB/m);
  await order();
  expect(await run(["install", ...args])).toMatchObject({ exit: 0 });
});

describe("failures have their exit codes", () => {
  const source = (): readonly string[] => [...commands.get("tiny/maple")!, "--name", "new"];
  test.each<[string, Order["fault"], number, RegExp]>([
    [
      "a server that is busy for hours",
      { kind: "status", status: 429, headers: { "Retry-After": "7200" } },
      8,
      /7200 seconds/,
    ],
    ["a file that may not be had", { kind: "status", status: 401 }, 8, /answered 401.*HF_TOKEN/],
    ["a server that lies", { kind: "whole" }, 8, /whole file/],
    ["a server that compresses", { kind: "gzip" }, 8, /encoded as gzip/],
    [
      "a redirect into the open",
      { kind: "redirect", to: "http://example.com/" },
      8,
      /not encrypted/,
    ],
    [
      "a redirect in a circle",
      { kind: "redirect", to: "/round" },
      8,
      /more than 5 times|names no commit|answered 404/,
    ],
  ])("%s", async (_, fault, exit, sentence) => {
    await order({
      fault,
      ...(fault.kind === "whole" || fault.kind === "gzip" ? { host: "storage" } : {}),
    });
    const failed = await run(source());
    expect([failed.exit, failed.err]).toEqual([exit, expect.stringMatching(sentence) as string]);
    expect(failed.err).not.toContain("Signature");
    await order();
  });

  test.each<[string, readonly string[], number, RegExp]>([
    ["a name that nobody knows", ["nothing"], 2, /the names are demo, demo-qwen36, gemma4, qwen36/],
    ["no name", [], 2, /say what to install/],
    ["a name that is none", ["maple", "--name", "../x"], 2, /cannot name a model/],
    ["a flag of another program", ["maple", "--resume"], 2, /unknown flag --resume/],
    ["a name that another checkpoint has", ["GEMMA4"], 6, /is taken: .*unknown\/snapshot/],
    ["no network", ["deepseekv4flash", "--offline"], 8, /--offline forbids/],
    ["no network for a plan", ["maple", "--plan", "--offline"], 8, /--offline forbids/],
    ["a folder that is not there", ["--source", "./nowhere"], 4, /no checkpoint folder/],
    ["a mirror that is none", ["inklingsmall"], 2, /cannot use ftp/],
  ])("%s", async (_, args, exit, sentence) => {
    const mirror = exit === 2 && args[0] === "inklingsmall" ? "ftp://mirror.example" : "";
    const failed = await run(["install", ...args], { HF_ENDPOINT: mirror });
    expect([failed.exit, failed.err]).toEqual([exit, expect.stringMatching(sentence) as string]);
  });

  test("another index than the one meant, and for programs an object that says so", async () => {
    const args = source().with(4, "0".repeat(64));
    const failed = await run([...args, "--json"]);
    expect(failed.exit).toBe(8);
    expect(JSON.parse(failed.out.trim().split("\n").at(-1)!)).toMatchObject({
      error: { code: "install.remote" },
    });
  });

  test("nothing to discard, and nothing to resume", async () => {
    expect(await run(["discard", "nothing"])).toMatchObject({ exit: 3 });
  });
});
