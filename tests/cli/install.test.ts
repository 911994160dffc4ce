import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import path from "node:path";
import { downloadText, eventWriter, readRequest } from "../../src/cli/install.ts";
import { Rate } from "../../src/cli/rate.ts";
import { GOLDEN, temporaryFolder } from "../fixtures/checkpoints.ts";
import { COMMIT, REPOSITORY, startHub, type Hub } from "../support/hub.ts";

const MAIN = path.resolve(import.meta.dir, "../../src/cli/main.ts");
const SOURCE = path.join(GOLDEN, "gemma4-a-e16");

test("the demo by its name, a checkpoint by its folder", () => {
  expect(readRequest({ model: "demo" })).toEqual({ kind: "demo" });
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
  [{ model: "demo", name: "x" }, "--name goes with --source"],
])("%j is refused", (values, sentence) => {
  expect(() => readRequest(values)).toThrow(sentence);
});

test("any other name is one of the catalogue, and an address is a repository", () => {
  expect(readRequest({ model: "Gemma4" })).toEqual({ kind: "named", name: "Gemma4" });
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

  async function mference(...args: string[]): Promise<{ code: number; out: string; err: string }> {
    const child = Bun.spawn([process.execPath, MAIN, ...args], {
      env: { ...process.env, MFERENCE_HOME: home, HF_TOKEN: "hf_secret" },
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
});
