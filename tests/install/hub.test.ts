import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { MANIFEST_FILE, RECEIPT_FILE } from "../../src/format/paths.ts";
import { installRemote } from "../../src/install/remote.ts";
import { RETRY_POLICY, systemClock } from "../../src/install/retry.ts";
import { DEMO, temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { REPOSITORY, startHub, type Hub } from "../support/hub.ts";

const INDEX = "model.safetensors.index.json";
const TEXT = ["tokenizer.json", "tokenizer_config.json"];

let folder: string;
let models: string;
let hub: Hub;

beforeEach(async () => {
  folder = writeSnapshot(SNAPSHOTS.qwen36("tiny"));
  models = temporaryFolder();
  hub = await startHub(folder);
});
afterEach(() => hub.stop());

const clock = { ...systemClock, sleep: () => Promise.resolve() };
const install = () =>
  installRemote({
    source: { repository: REPOSITORY, revision: "main" },
    name: "m",
    base: hub.base,
    models,
    limits: { retry: { ...RETRY_POLICY, attempts: 3, clock } },
  });
const requestsFor = (name: string) => hub.requests.filter(({ file }) => file === name);
const left = (): string[] => fs.readdirSync(models).filter((name) => !name.endsWith(".lock"));

describe("small files", () => {
  test("of the text side are recorded in manifest and receipt, and optional ones only where they are", async () => {
    for (const name of [...TEXT, "chat_template.jinja"]) {
      fs.copyFileSync(path.join(DEMO, name), path.join(folder, name));
    }
    const { directory } = await install();
    const filesOf = (name: string): string[] =>
      Object.keys(
        (JSON.parse(fs.readFileSync(path.join(directory, name), "utf8")) as { files: object })
          .files,
      ).filter((file) => file.startsWith("tokenizer/"));
    const expected = ["config.json", ...TEXT, "chat_template.jinja"].map((n) => `tokenizer/${n}`);
    expect(filesOf(MANIFEST_FILE).toSorted()).toEqual(expected.toSorted());
    expect(filesOf(RECEIPT_FILE).toSorted()).toEqual(expected.toSorted());
    expect(fs.readdirSync(path.join(directory, "tokenizer")).length).toBe(expected.length);
    for (const { target, file } of hub.requests) {
      const isWanted = /\.safetensors$|^(config|tokenizer|special_|chat_)|^model\./.test(file);
      expect([target, isWanted]).toEqual([target, true]);
    }
  });

  test("of half a text side are refused before anything is fetched", async () => {
    fs.copyFileSync(path.join(DEMO, TEXT[0]!), path.join(folder, TEXT[0]!));
    expect((await failureOf(install)).message).toContain("no tokenizer_config.json");
    expect(left()).toEqual([]);
  });

  test("that are not there cost one question and leave nothing", async () => {
    fs.rmSync(path.join(folder, "config.json"));
    const failure = await failureOf(install);
    expect(failure.message).toMatch(/has no config\.json at [0-9a-f]{40}/);
    expect(requestsFor("config.json").map(({ method }) => method)).toEqual(["HEAD"]);
    expect(left()).toEqual([]);
  });

  test("of a server that is down are asked for as often as allowed, and leave nothing", async () => {
    hub.fault = () => ({ kind: "status", status: 500 });
    expect((await failureOf(install)).message).toMatch(/500 \(after 3 attempts\)/);
    expect(hub.requests.length).toBe(3);
    expect(left()).toEqual([]);
  });

  test("that come short once are asked for once more", async () => {
    let isFirst = true;
    hub.fault = ({ file, method }) => {
      if (file !== "config.json" || method !== "GET" || !isFirst) return undefined;
      isFirst = false;
      return { kind: "short" };
    };
    await install();
  });
});

describe("an index", () => {
  const indexWith = (json: unknown): void =>
    fs.writeFileSync(
      path.join(folder, INDEX),
      typeof json === "string" ? json : JSON.stringify(json),
    );
  test.each([
    ["a name that leads upwards", { weight_map: { a: "../x.safetensors" } }, /bare file name/],
    ["a name below a folder", { weight_map: { a: "a/x.safetensors" } }, /bare file name/],
    ["a name with a NUL", { weight_map: { a: "x\u0000.safetensors" } }, /bare file name/],
    ["another kind of file", { weight_map: { a: "x.bin" } }, /bare file name/],
    ["a number for a name", { weight_map: { a: 1 } }, /weight_map\.a/],
    ["a key twice", '{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}', /appears twice/],
    ["no map", {}, /weight_map/],
  ])("with %s is refused and no such file is asked for", async (_, json, sentence) => {
    indexWith(json);
    expect((await failureOf(install)).message).toMatch(sentence);
    expect(hub.requests.map(({ file }) => file).filter((file) => file.endsWith("tensors"))).toEqual(
      [],
    );
    expect(left()).toEqual([]);
  });

  test("with an escaped name asks for just that name", async () => {
    indexWith({ weight_map: { a: "%2e%2e%2fx.safetensors" } });
    expect((await failureOf(install)).message).toContain("has no %2e%2e%2fx.safetensors");
    expect(hub.requests.at(-1)!.target).toEndWith("/%252e%252e%252fx.safetensors");
  });

  test("with very many entries is beyond its cap or names a shard that is not there", async () => {
    const entries = Array.from({ length: 150_000 }, (_, i) => [`t${i}`, "x.safetensors"]);
    indexWith({ weight_map: Object.fromEntries(entries) as object });
    expect((await failureOf(install)).message).toMatch(/at most 4194304|has no x\.safetensors/);
    expect(left()).toEqual([]);
  });
});

describe("a header", () => {
  const shard = "model-00001-of-00002.safetensors";
  test.each<[string, (bytes: Buffer) => Buffer, RegExp]>([
    ["of no bytes", (bytes) => Buffer.concat([Buffer.alloc(8), bytes.subarray(8)]), /header of 0/],
    ["that ends early", (bytes) => bytes.subarray(0, 4), /less than its prefix/],
    ["that is no JSON", (bytes) => Buffer.from(bytes).fill("x", 8, 20), /not valid JSON/],
    ["of a file that is cut", (bytes) => bytes.subarray(0, -100), /truncated/],
    ["of a file that is longer", (bytes) => Buffer.concat([bytes, bytes]), /bytes after/],
  ])("%s is refused before a byte of a tensor is fetched", async (_, damage, sentence) => {
    const file = path.join(folder, shard);
    fs.writeFileSync(file, damage(fs.readFileSync(file)));
    const failure = await failureOf(install);
    expect([failure.code, failure.message]).toEqual([
      "format.safetensors",
      expect.stringMatching(sentence) as string,
    ]);
    expect(failure.message).toContain(shard);
    expect(left()).toEqual([]);
  });
});

test("a size or a hash that changes between question and answer is noticed", async () => {
  for (const header of [{ "X-Linked-Size": "99999999" }, { "X-Xet-Hash": "ab".repeat(32) }]) {
    hub.fault = ({ method, host, file }) =>
      method === "HEAD" && host === "hub" && file.endsWith(".safetensors")
        ? { kind: "headers", headers: header }
        : undefined;
    const failure = await failureOf(install);
    expect(failure.message).toMatch(/sent the range|tagged/);
    expect(left()).toEqual([]);
  }
});
