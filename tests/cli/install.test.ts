import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { downloadText, eventWriter, readRequest } from "../../src/cli/install.ts";
import { Rate } from "../../src/cli/rate.ts";
import { pinNamed } from "../../src/install/catalogue.ts";
import { editJson, GOLDEN, temporaryFolder } from "../fixtures/checkpoints.ts";
import { COMMIT, REPOSITORY, startHub, type Hub } from "../support/hub.ts";
import { startProxy } from "../support/proxy.ts";

const MAIN = path.resolve(import.meta.dir, "../../src/cli/main.ts");
const SOURCE = path.join(GOLDEN, "gemma4-a-e16");

test("the demo by its name, a checkpoint by its folder", () => {
  expect(readRequest({ model: "demo" })).toEqual({ kind: "demo", name: "demo" });
  expect(readRequest({ model: "Demo-X" })).toEqual({ kind: "demo", name: "demo-x" });
  const source = path.resolve("some/model-x");
  expect(readRequest({ source: "some/model-x/" })).toEqual({
    kind: "folder",
    source,
    name: "model-x",
  });
  expect(readRequest({ source: "some/model-x", name: "y" })).toMatchObject({ name: "y" });
});

test.each([
  [{}, "say what to install"],
  [{ model: "x", "index-sha256": "0".repeat(64) }, "--index-sha256 goes with --source"],
  [{ source: "x", "index-sha256": "0" }, "64 hex digits"],
  [{ source: "https://huggingface.co/alone" }, "no address of a repository"],
  [{ source: "https://huggingface.co/a/b?token=x" }, "no address of a repository"],
  [{ model: "demo", source: "x" }, "not both"],
  [{ model: "demo", name: "x" }, "a demo has its name"],
])("%j is refused", (values, sentence) => {
  expect(() => readRequest(values)).toThrow(sentence);
});

test("any other name is one of the catalogue, and an address is a repository", () => {
  expect(readRequest({ model: "Gemma4" })).toEqual({ kind: "named", model: "Gemma4" });
  const named = { kind: "named", model: "maple", name: "x" } as const;
  expect(readRequest({ model: "maple", name: "x" })).toEqual(named);
  expect(readRequest({ source: "https://mirror.example/hf/owner/name/tree/v1" })).toEqual({
    kind: "repository",
    name: "name",
    base: new URL("https://mirror.example/hf"),
    source: { repository: "owner/name", revision: "v1" },
  });
  const digest = "A".repeat(64);
  expect(readRequest({ source: "https://h.example/o/n", "index-sha256": digest })).toMatchObject({
    source: { repository: "o/n", revision: "main", indexSha256: "a".repeat(64) },
  });
});

test("progress has a rate once there is one", () => {
  let now = 0;
  const rate = new Rate(() => now);
  const at = (doneBytes: number) =>
    downloadText("x", { phase: "downloading", doneBytes, totalBytes: 1e9 }, rate);
  expect(at(0)).toBe("downloading x: 0% of 1.00 GB");
  now = 20_000;
  expect(at(4e8)).toBe("downloading x: 40% of 1.00 GB, 20.0 MB/s, about less than a minute left");
});

test("programs get an event for each change and one a second", () => {
  let now = 0;
  const lines: string[] = [];
  const emit = eventWriter(
    (line) => lines.push(line),
    () => now,
  );
  const at = (doneBytes: number) => ({ phase: "downloading", doneBytes, totalBytes: 9 }) as const;
  emit({ phase: "reading", doneBytes: 0, totalBytes: 1 });
  emit(at(1));
  emit(at(2));
  now = 1000;
  emit(at(3));
  emit(at(9));
  const events = lines.map((line) => JSON.parse(line) as { doneBytes: number });
  expect(events.map(({ doneBytes }) => doneBytes)).toEqual([0, 1, 3, 9]);
});

describe("the program", () => {
  let hub: Hub;
  let home: string;
  beforeEach(async () => {
    hub = await startHub(SOURCE);
    home = temporaryFolder();
  });
  afterEach(() => hub.stop());

  /** Variables of the next runs; without them no proxy and no mirror. */
  let variables: Record<string, string>;
  beforeEach(() => {
    const names = ["http_proxy", "https_proxy", "no_proxy", "HF_ENDPOINT"];
    const all = names.flatMap((name) => [name, name.toUpperCase()]);
    variables = { ...Object.fromEntries(all.map((name) => [name, ""])), HF_TOKEN: "hf_secret" };
  });
  const withVariables = (change: Record<string, string>) => Object.assign(variables, change);

  async function mference(...args: string[]): Promise<{ code: number; out: string; err: string }> {
    const child = Bun.spawn([process.execPath, MAIN, ...args], {
      env: { ...process.env, MFERENCE_HOME: home, ...variables },
      stdout: "pipe",
      stderr: "pipe",
    });
    const [out, err] = await Promise.all([
      new Response(child.stdout).text(),
      new Response(child.stderr).text(),
    ]);
    return { code: await child.exited, out, err };
  }
  const address = (): string => new URL(REPOSITORY, hub.base).href;

  test("plans, installs with a loud warning, and refuses a second time", async () => {
    const refused = await mference("install", "--source", address());
    expect(refused).toMatchObject({ code: 2, out: "" });
    const misnamed = await mference("install", "--plan", "--name", "../x", "--source", address());
    expect(misnamed).toMatchObject({ code: 2, out: "" });
    const plan = await mference("install", "--plan", "--json", "--source", address());
    const { sourceSha256, commit, places } = JSON.parse(plan.out) as Record<string, string>;
    expect([commit, places!.length > 20]).toEqual([COMMIT, true]);
    const args = ["install", "--json", "--source", address(), "--index-sha256", sourceSha256!];
    const installed = await mference(...args);
    expect(installed.code).toBe(0);
    expect(installed.err).toContain("WARNING");
    expect(installed.err + installed.out).not.toContain("hf_secret");
    const lines = installed.out
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as object);
    expect(lines[0]).toMatchObject({ event: "progress", phase: "reading" });
    expect(lines.at(-1)).toMatchObject({ name: "model", modelId: "unknown/snapshot" });
    hub.requests.length = 0;
    expect((await mference(...args)).code).toBe(6);
    expect(hub.requests).toEqual([]);
  });

  test("ends with a code of its own when the server is not there, or may not be asked", async () => {
    hub.fault = () => ({ kind: "status", status: 404 });
    const args = ["install", "--source", address(), "--index-sha256", "0".repeat(64)];
    expect(await mference(...args)).toMatchObject({ code: 8 });
    expect(await mference(...args, "--offline")).toMatchObject({ code: 8 });
    expect((await mference("discard", "model")).err).toContain("no unfinished install");
  });

  const INDEX_SHA256 = sha256(fs.readFileSync(path.join(SOURCE, "model.safetensors.index.json")));
  const installArgs = (from = address()): string[] =>
    ["install", "--source", from].concat("--index-sha256", INDEX_SHA256);
  const tokensSeen = (): unknown[] => [
    ...new Set(hub.requests.map(({ headers }) => headers.get("authorization"))),
  ];

  test("a complete model of the catalogue is there, whatever the network and the proxy", async () => {
    const [, ...args] = installArgs();
    await mference("install", "--name", "kept", ...args);
    const file = path.join(home, "models/kept.gturbo/manifest.json");
    const { sourceSha256 } = pinNamed("gemma4").pin;
    editJson(file, (json) => (json["sourceSnapshotHash"] = `sha256:${sourceSha256}`));
    withVariables({ HTTPS_PROXY: "http://127.0.0.1:1", HF_ENDPOINT: "https://127.0.0.1:1" });
    for (const flags of [[], ["--offline"]]) {
      const there = await mference("install", "gemma4", "--name", "kept", "--json", ...flags);
      expect([there.code, there.err]).toEqual([0, "kept is installed already\n"]);
      expect(JSON.parse(there.out)).toMatchObject({ name: "kept", family: "gemma4" });
    }
  });

  test("a home that is a file is told in a sentence", async () => {
    fs.writeFileSync(path.join(home, "file"), "");
    withVariables({ MFERENCE_HOME: path.join(home, "file") });
    const failed = await mference(...installArgs());
    expect(failed.code).toBe(1);
    expect(failed.err).toContain("cannot write");
    expect(failed.err).not.toContain("fault of the program");
  });

  test("says why it waits, to people and to programs", async () => {
    let isFirst = true;
    hub.fault = ({ host }) => {
      if (host !== "storage" || !isFirst) return undefined;
      isFirst = false;
      return { kind: "status", status: 503, headers: { "Retry-After": "2" } };
    };
    const { code, out, err } = await mference(...installArgs(), "--json");
    expect(code).toBe(0);
    const events = out
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as { event?: string });
    expect(events.find(({ event }) => event === "waiting")).toMatchObject({
      message: expect.stringContaining("answered 503") as string,
      seconds: 2,
    });
    expect(err).toMatch(/asking again in 2\.00 s: .* answered 503/);
  });

  test("gives the token to the Hub, and to no server that merely is a source", async () => {
    const { code, err } = await mference(...installArgs());
    expect([code, tokensSeen()]).toEqual([0, [undefined]]);
    expect(err).toContain("it does not get HF_TOKEN");
    hub.requests.length = 0;
    withVariables({ HF_ENDPOINT: hub.base.href });
    expect(await mference("install", "--name", "again", ...installArgs().slice(1))).toMatchObject({
      code: 0,
    });
    expect(new Set(tokensSeen())).toEqual(new Set([undefined, "Bearer hf_secret"]));
    const storage = hub.requests.filter(({ host }) => host === "storage");
    expect(storage.some(({ headers }) => headers.has("authorization"))).toBe(false);
  });

  test("asks a mirror below a path for a name of the catalogue, and says what it lacks", async () => {
    withVariables({ HF_ENDPOINT: new URL("/mirrors/hf", hub.base).href });
    const { code, err } = await mference("install", "GEMMA4");
    expect(code).toBe(8);
    expect(err).toContain(`warning: downloading from ${hub.base.origin}`);
    expect(err).toContain("has no model.safetensors.index.json");
    expect(hub.requests.map(({ target }) => target)).toEqual([
      expect.stringMatching(
        /^\/mirrors\/hf\/mlx-community\/gemma-4-26b-a4b-it-4bit\/resolve\/[0-9a-f]{40}\/model/,
      ) as string,
    ]);
    expect(
      await mference(...installArgs(new URL(`/hf/${REPOSITORY}`, hub.base).href)),
    ).toMatchObject({ code: 0 });
  });

  test("says before a download what one should know of a checkpoint", async () => {
    withVariables({ HF_ENDPOINT: hub.base.href });
    const { err } = await mference("install", "MAPLE");
    expect(err).toContain("maple can be installed and verified, but not run yet");
    expect(err).toContain("declares no licence");
  });

  test.each(["http_proxy", "HTTP_PROXY"])("goes through %s, which gets no token", async (name) => {
    const proxy = await startProxy();
    withVariables({ [name]: proxy.address, HF_ENDPOINT: hub.base.href });
    const { code, out, err } = await mference(...installArgs());
    proxy.stop();
    expect(code).toBe(0);
    expect(out + err).not.toMatch(/swordfish|hf_secret/);
    expect(proxy.asked.length).toBe(hub.requests.length);
    for (const { target, headers } of proxy.asked) {
      expect([hub.base.origin, hub.storage.origin]).toContain(new URL(target).origin);
      expect(headers["proxy-authorization"]).toBe(`Basic ${btoa("user:swordfish")}`);
      expect(headers.authorization).toBeUndefined();
    }
  });

  test("goes around a proxy where NO_PROXY says so", async () => {
    const proxy = await startProxy();
    withVariables({ HTTP_PROXY: proxy.address, NO_PROXY: "127.0.0.1" });
    expect(await mference(...installArgs())).toMatchObject({ code: 0 });
    proxy.stop();
    expect(proxy.asked).toEqual([]);
  });
});
