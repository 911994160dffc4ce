/**
 * Downloads by the program itself, stopped by signals or killed at any moment, and what other commands
 * do meanwhile: one lock keeps them apart, and it ends with its process.
 */
import { afterEach, beforeEach, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { discardPartial } from "../../src/install/discard.ts";
import { installLocal } from "../../src/install/install.ts";
import { listModels } from "../../src/install/models.ts";
import { readSaved } from "../../src/install/resume.ts";
import { verifyPackage } from "../../src/install/verify.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { contentsOf } from "../fixtures/contents.ts";
import { failureOf, type Failure } from "../fixtures/failures.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { createRandom } from "../reference/random.ts";
import { REPOSITORY, startHub, type Hub, type HubRequest } from "../support/hub.ts";

const MAIN = path.resolve(import.meta.dir, "../../src/cli/main.ts");
const PROXIES = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "HF_ENDPOINT"];

let source: string;
let hub: Hub;
let home: string;
let directory: string;

beforeEach(async () => {
  source = writeSnapshot(SNAPSHOTS.maple("tiny"));
  hub = await startHub(source);
  home = fs.realpathSync(temporaryFolder());
  directory = path.join(home, "models", "m.gturbo");
});
afterEach(() => hub.stop());

function spawn(...words: string[]) {
  const none = Object.fromEntries(PROXIES.map((name) => [name, ""]));
  return Bun.spawn([process.execPath, MAIN, ...words], {
    env: { ...process.env, ...none, MFERENCE_HOME: home },
    stdout: "ignore",
    stderr: "pipe",
  });
}

function startInstall() {
  const digest = sha256(fs.readFileSync(path.join(source, "model.safetensors.index.json")));
  const address = new URL(REPOSITORY, hub.base).href;
  return spawn("install", "--source", address, "--index-sha256", digest, "--name", "m");
}

async function until(isSo: () => boolean): Promise<void> {
  while (!isSo()) await Bun.sleep(2);
}

const isPayload = ({ host, range }: HubRequest): boolean =>
  host === "storage" && range !== undefined && range[1] - range[0] > 50_000;
const completed = (): number => readSaved(directory)?.completedRanges.length ?? 0;

/** An install that has one of its parts and waits for the other. */
async function startHalf() {
  let seen = 0;
  hub.fault = (request) => {
    if (!isPayload(request)) return undefined;
    seen += 1;
    return seen === 1 ? undefined : { kind: "hang" };
  };
  const child = startInstall();
  await until(() => completed() === 1 || child.exitCode !== null);
  return child;
}

async function expectWhole(): Promise<void> {
  const { directory: local } = await installLocal({ source, name: "local", models: home });
  const [found, expected] = [directory, local].map((folder) => {
    const { "verified-install.json": _, ...rest } = contentsOf(folder);
    return rest;
  });
  expect(found).toEqual(expected);
  const left = fs.readdirSync(path.join(home, "models")).toSorted();
  expect(left).toEqual(["m.gturbo", "m.gturbo.install.lock"]);
}

test.each([
  ["SIGINT", 130],
  ["SIGTERM", 143],
] as const)("%s pauses, and the same command goes on", async (signal, code) => {
  const child = await startHalf();
  child.kill(signal);
  expect(await new Response(child.stderr).text()).toContain("the same command goes on with it");
  expect(await child.exited).toBe(code);
  expect(completed()).toBe(1);
  hub.fault = () => undefined;
  hub.requests.length = 0;
  expect(await startInstall().exited).toBe(0);
  expect(hub.requests.filter(isPayload).length).toBe(1);
  await expectWhole();
});

test("signals at any moment leave what the next run finishes", async () => {
  const random = createRandom(9);
  hub.fault = (request) => (isPayload(request) ? { kind: "drip" } : undefined);
  for (let round = 0; round < 8; round += 1) {
    const child = startInstall();
    await Bun.sleep(20 + random.below(400));
    const signal = (["SIGINT", "SIGTERM", "SIGKILL"] as const)[round % 3]!;
    child.kill(signal);
    await child.exited;
    // Before the program listens, the signal ends it; after the end of its work it is too late.
    const codes = [0, 130, 143, 6];
    expect([round, child.signalCode === signal || codes.includes(child.exitCode!)]).toEqual([
      round,
      true,
    ]);
  }
  hub.fault = () => undefined;
  expect([0, 6]).toContain(await startInstall().exited);
  await expectWhole();
});

test("while it runs everything else is busy or says so, and its lock ends with it", async () => {
  const child = await startHalf();
  const second = startInstall();
  expect(await new Response(second.stderr).text()).toContain("another process holds");
  expect(await second.exited).not.toBe(0);
  const models = path.join(home, "models");
  expect((await failureOf(() => discardPartial("m", models))).code).toBe("install.busy");
  const local = await failureOf(() => installLocal({ source, name: "m", models }));
  expect(local.code).toBe("install.busy");
  expect(listModels(home)[0]?.reason).toMatch(/is running now, .* of .* downloaded/);
  child.kill("SIGKILL");
  await child.exited;
  expect(listModels(home)[0]?.reason).toMatch(/did not finish, .* downloaded; it goes on/);
  expect(completed()).toBe(1);
  discardPartial("m", models);
  expect(fs.readdirSync(models)).toEqual(["m.gturbo.install.lock"]);
  hub.fault = () => undefined;
  expect(await startInstall().exited).toBe(0);
  await expectWhole();
});

test("a verification keeps installs and discards away, and takes no notice of what was killed", async () => {
  const models = path.join(home, "models");
  hub.fault = () => undefined;
  expect(await startInstall().exited).toBe(0);
  let install: Promise<Failure> | undefined;
  await verifyPackage(directory, {
    full: true,
    onProgress() {
      install ??= failureOf(() => installLocal({ source, name: "m", models }));
      const again = Bun.spawnSync([process.execPath, MAIN, "verify", "m"], {
        env: { ...process.env, MFERENCE_HOME: home },
        stderr: "pipe",
      });
      expect(again.stderr.toString()).toContain("another process holds");
    },
  });
  expect((await install)?.code).toBe("install.busy");
  const again = await failureOf(() => installLocal({ source, name: "m", models }));
  expect(again.code).toBe("install.exists");
  // What a verification that was killed leaves is not taken for a part of the package.
  fs.writeFileSync(path.join(directory, "verified-install.json.1.x.tmp"), "{");
  const { unexpected } = await verifyPackage(directory, { full: false });
  expect(unexpected).toEqual(["verified-install.json.1.x.tmp"]);
});
