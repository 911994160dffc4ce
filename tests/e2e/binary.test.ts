/**
 * The compiled program, built once, as somebody meets it who has one file and nothing else: an empty
 * folder, an empty home, no variable but HOME.
 */
import { beforeAll, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

const ROOT = path.join(import.meta.dir, "../..");
const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.\n";
const ASK = ["chat", "--prompt", QUESTION, "--quiet"];

/** Why no binary can be built here. */
const missing =
  process.platform === "linux" && Bun.which("objdump") === null
    ? "objdump (binutils) is missing"
    : undefined;
const built = describe.skipIf(missing !== undefined);
const titled = (title: string): string => (missing === undefined ? title : `${title}: ${missing}`);

interface Run {
  readonly stdout: string;
  readonly stderr: string;
  readonly exit: number;
}

interface Place {
  readonly home?: string;
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
}

const folder = temporaryFolder();
const binary = path.join(folder, "mference");
const home = path.join(folder, "home");

async function outcome(command: readonly string[], place: Place = {}): Promise<Run> {
  const child = Bun.spawn([...command], {
    cwd: place.cwd ?? temporaryFolder(),
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
    env: { HOME: place.home ?? home, ...place.env },
  });
  const [stdout, stderr, exit] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { stdout, stderr, exit };
}

const run = (args: readonly string[], place?: Place): Promise<Run> =>
  outcome([binary, ...args], place);

const cacheOf = (user: string): string =>
  path.join(user, process.platform === "darwin" ? "Library/Caches" : ".cache", "mference");

let first: Run;

beforeAll(async () => {
  if (missing !== undefined) return;
  const { MFERENCE_LIBRARY: _, ...env } = process.env as Record<string, string>;
  const script = path.join(ROOT, "scripts/build-binary.ts");
  const build = [process.execPath, script, "--with-demo", "--outfile", binary];
  const { exit, stderr } = await outcome(build, { env, home: env["HOME"] ?? "/" });
  if (exit !== 0) throw new Error(stderr);
  first = await run(ASK);
}, 600_000);

built(titled("one file"), () => {
  test("answers from an empty folder and an empty home", () => {
    expect(first).toEqual({ stdout: ANSWER, stderr: "", exit: 0 });
    // Outside the home nothing is written, and inside nothing unfinished is left.
    const copies = fs.readdirSync(cacheOf(home));
    expect(copies.length).toBeGreaterThanOrEqual(1);
    for (const name of copies) expect(name).toMatch(/^libmference[-_]\w+-[0-9a-f]{16}\.\w+$/);
  });

  test("plans the install of the demo that it carries", async () => {
    const { stdout, exit } = await run(["install", "demo", "--plan", "--json"]);
    expect(exit).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ modelId: "mference-demo" });
  });

  test("carries no path of the place where it was built", async () => {
    const text = new TextEncoder().encode(`${ROOT}/src`);
    const needle = Buffer.from(text);
    let [carry, found] = [Buffer.alloc(0), false];
    for await (const tile of Bun.file(binary).stream()) {
      const bytes = Buffer.concat([carry, tile]);
      found ||= bytes.includes(needle);
      carry = Buffer.from(bytes.subarray(-needle.length));
    }
    expect(found).toBe(false);
  });

  test("says what it needs of a system and where its libraries lie", async () => {
    const { stdout, exit } = await run(["doctor", "--json"]);
    expect(exit).toBe(0);
    const findings = JSON.parse(stdout) as Record<string, unknown>;
    const needs = process.platform === "darwin" ? /^macOS \d+ or newer/ : /^glibc 2\.\d+ or newer/;
    expect(findings["needs"]).toMatch(needs);
    expect(findings).toMatchObject({
      device: { library: expect.stringContaining(cacheOf(home)) },
      models: [{ name: "demo", status: "installed" }],
    });
    expect((await run(["doctor"])).stdout).toMatch(/^needs +\S/m);
  });

  test.skipIf(process.platform === "darwin")("on Linux holds the CPU device only", async () => {
    const { stderr, exit } = await run([...ASK, "--device", "metal"]);
    expect(exit).toBe(7);
    expect(stderr).toContain("built without the metal device: use --device cpu");
  });
});

built(titled("the folder in which it is used"), () => {
  test("runs nothing in it and reads no settings from it", async () => {
    const cwd = temporaryFolder();
    const sprung = path.join(cwd, "sprung");
    fs.writeFileSync(path.join(cwd, "bunfig.toml"), 'preload = ["./trap.ts"]\n');
    const trap = `require("node:fs").writeFileSync(${JSON.stringify(sprung)}, "");\n`;
    fs.writeFileSync(path.join(cwd, "trap.ts"), trap);
    fs.writeFileSync(path.join(cwd, ".env"), "MFERENCE_HOME=/from/a/file\n");
    fs.writeFileSync(path.join(cwd, "show.ts"), "console.log(process.env.MFERENCE_HOME);\n");

    const { stdout, exit } = await run(["doctor", "--json"], { cwd });
    expect(exit).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ environment: { HOME: home } });
    expect(stdout).not.toContain("/from/a/file");
    expect(fs.existsSync(sprung)).toBe(false);

    // Bun itself falls into both, so that the above could have failed.
    const bun = await outcome([process.execPath, "run", "show.ts"], { cwd });
    expect(bun.stdout).toBe("/from/a/file\n");
    expect(fs.existsSync(sprung)).toBe(true);
  });
});

built(titled("the cache folder"), () => {
  test("two first starts at once both answer and leave the same files", async () => {
    const empty = temporaryFolder();
    const both = await Promise.all([run(ASK, { home: empty }), run(ASK, { home: empty })]);
    for (const { stdout, exit } of both)
      expect({ stdout, exit }).toEqual({ stdout: ANSWER, exit: 0 });
    expect(fs.readdirSync(cacheOf(empty))).toEqual(fs.readdirSync(cacheOf(home)));
  });

  test("an altered library is noticed and replaced", async () => {
    const names = fs.readdirSync(cacheOf(home)).map((name) => path.join(cacheOf(home), name));
    const contents = names.map((name) => fs.readFileSync(name));
    for (const [index, name] of names.entries()) {
      const altered = Buffer.from(contents[index]!).fill(0, 4096, 8192);
      fs.rmSync(name);
      fs.writeFileSync(name, altered);
    }
    expect(await run(ASK)).toMatchObject({ stdout: ANSWER, exit: 0 });
    for (const [index, name] of names.entries()) {
      expect(Buffer.compare(fs.readFileSync(name), contents[index]!)).toBe(0);
    }
  });

  test("that cannot be made is named in one sentence", async () => {
    const taken = path.join(temporaryFolder(), "a-file");
    fs.writeFileSync(taken, "");
    const { stdout, stderr, exit } = await run(ASK, { env: { XDG_CACHE_HOME: taken } });
    expect({ stdout, exit }).toEqual({ stdout: "", exit: 7 });
    expect(stderr).toMatch(/^mference: the library \S+ inside this program cannot be copied out/);
    expect(stderr).toContain(taken);
    expect(stderr.trimEnd().split("\n")).toHaveLength(1);
  });
});

describe.skipIf(process.platform !== "linux")("memory (read from /proc)", () => {
  test("a file inside passes through it in tiles", async () => {
    const place = temporaryFolder();
    const sizeBytes = 64 * 2 ** 20;
    const zeros = new Uint8Array(sizeBytes);
    fs.writeFileSync(path.join(place, "zeros.bin"), zeros);
    const sha256 = new Bun.CryptoHasher("sha256").update(zeros).digest("hex");
    const code = `
      import zeros from "./zeros.bin" with { type: "file" };
      import { readFileSync } from "node:fs";
      import { withCopies } from ${JSON.stringify(path.join(ROOT, "src/util/embedded.ts"))};
      const own = () => 1024 * Number(/RssAnon:\\s+(\\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]);
      const before = own();
      const file = { name: "zeros.bin", path: zeros, sizeBytes: ${sizeBytes}, sha256: "${sha256}" };
      await withCopies([file], async () => console.log(own() - before));`;
    fs.writeFileSync(path.join(place, "main.ts"), code);
    const build = [process.execPath, "build", "--compile", "main.ts", "--outfile", "copier"];
    expect(await outcome(build, { cwd: place })).toMatchObject({ exit: 0 });
    const { stdout, stderr } = await outcome([path.join(place, "copier")], { cwd: place });
    expect(stderr).toBe("");
    expect(Number(stdout)).toBeGreaterThan(0);
    expect(Number(stdout)).toBeLessThan(sizeBytes / 4);
  });
});

/** Whether this user may mount file systems in a namespace of its own. */
const mountRefusal = ((): string | undefined => {
  if (process.platform !== "linux") return "namespaces of mounts are a thing of Linux";
  if (Bun.which("unshare") === null) return "unshare (util-linux) is missing";
  const probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", folder];
  const { success } = Bun.spawnSync(probe, { stdout: "ignore", stderr: "ignore" });
  return success ? undefined : "this user may mount nothing, not even in a namespace";
})();
const refusal = missing ?? mountRefusal;
const mountsTitle = refusal === undefined ? "mounts" : `mounts: ${refusal}`;

describe.skipIf(refusal !== undefined)(mountsTitle, () => {
  /** Asks after a shell has changed the mounts, without a path on which to find a program. */
  const ask = (place: string, prepare: string, env: Place["env"] = {}): Promise<Run> => {
    const script = `set -e; place=$1; shift; ${prepare}; unset PATH; exec "$@"`;
    const command = ["unshare", "--mount", "sh", "-c", script, "sh", place, binary, ...ASK];
    return outcome(command, { env: { PATH: process.env["PATH"]!, ...env } });
  };

  test("answers where this repository is not, and no Bun on the path", async () => {
    const hidden = await ask(ROOT, 'mount -t tmpfs none "$place"; [ ! -e "$place/src" ]');
    expect(hidden).toEqual({ stdout: ANSWER, stderr: "", exit: 0 });
  });

  test("answers for the first time where no temporary file can be written", async () => {
    const TMPDIR = temporaryFolder();
    const prepare = 'mount -t tmpfs -o ro none "$place"; ! touch "$place/file" 2>/dev/null';
    const answer = await ask(TMPDIR, prepare, { TMPDIR, HOME: temporaryFolder() });
    expect(answer).toEqual({ stdout: ANSWER, stderr: "", exit: 0 });
  });

  test.each([
    { mount: "noexec", says: "is on a file system for data only (noexec)" },
    { mount: "ro", says: "read-only file system" },
  ])("a cache mounted $mount is named in one sentence", async ({ mount, says }) => {
    const cache = temporaryFolder();
    const prepare = `mount -t tmpfs -o ${mount} none "$place"`;
    const { stdout, stderr, exit } = await ask(cache, prepare, { XDG_CACHE_HOME: cache });
    expect({ stdout, exit }).toEqual({ stdout: "", exit: 7 });
    expect(stderr).toContain(says);
    expect(stderr).toContain("XDG_CACHE_HOME");
    expect(stderr.trimEnd().split("\n")).toHaveLength(1);
  });
});
