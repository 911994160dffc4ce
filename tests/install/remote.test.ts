import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { sha256 } from "../../src/format/digest.ts";
import { systemIo } from "../../src/install/durable.ts";
import { installLocal } from "../../src/install/install.ts";
import { installRemote, type RemoteOptions } from "../../src/install/remote.ts";
import { readSaved, resumePath } from "../../src/install/resume.ts";
import type { Clock } from "../../src/install/retry.ts";
import { GOLDEN, temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import {
  COMMIT,
  REPOSITORY,
  startHub,
  type Fault,
  type Hub,
  type HubRequest,
} from "../support/hub.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";

const SOURCE = path.join(GOLDEN, "gemma4-a-e16");
const INDEX = fs.readFileSync(path.join(SOURCE, "model.safetensors.index.json"));
const RANGE_BYTES = 100_000;

let hub: Hub;
let models: string;
let slept: number[];

beforeEach(async () => {
  hub = await startHub(SOURCE);
  models = temporaryFolder();
  slept = [];
});
afterEach(() => hub.stop());

const clock: Clock = {
  now: () => Date.UTC(2026, 0, 1),
  random: () => 0.5,
  async sleep(ms) {
    slept.push(ms);
    await Promise.resolve();
  },
};

function options(change: Partial<RemoteOptions> = {}): RemoteOptions {
  return {
    source: { repository: REPOSITORY, revision: "main", indexSha256: sha256(INDEX) },
    name: "m",
    base: hub.base,
    models,
    limits: {
      rangeBytes: RANGE_BYTES,
      idleMs: 2000,
      parallel: 2,
      retry: { attempts: 4, baseMs: 1000, clock },
    },
    ...change,
  };
}

const directory = (): string => path.join(fs.realpathSync(models), "m.gturbo");
const isPayload = (request: HubRequest): boolean =>
  request.host === "storage" &&
  request.range !== undefined &&
  request.range[1] - request.range[0] > 20_000;

/** Misbehaves for the payload request with this number, and those after it. */
function faultAt(first: number, fault: Fault, count = 1): void {
  let seen = -1;
  hub.fault = (request) => {
    if (!isPayload(request)) return undefined;
    seen += 1;
    return seen >= first && seen < first + count ? fault : undefined;
  };
}

/** Digest of every file of a folder but the receipt, which holds a path and a time. */
function digests(folder: string): Record<string, string> {
  const files = fs.readdirSync(folder, { recursive: true }) as string[];
  return Object.fromEntries(
    files
      .filter(
        (file) => file !== "verified-install.json" && fs.statSync(path.join(folder, file)).isFile(),
      )
      .toSorted()
      .map((file) => [file, sha256(fs.readFileSync(path.join(folder, file)))]),
  );
}

async function expected(): Promise<Record<string, string>> {
  const local = await installLocal({ source: SOURCE, name: "local", models });
  return digests(local.directory);
}

async function expectInstalled(): Promise<void> {
  expect(digests(directory())).toEqual(await expected());
  expect(fs.existsSync(resumePath(directory()))).toBe(false);
  expect(fs.readdirSync(directory()).filter((name) => name.startsWith("."))).toEqual([]);
}

describe("a download", () => {
  test("gives the package that the same checkpoint gives from a folder", async () => {
    const installed = await installRemote(options());
    expect(installed).toMatchObject({ name: "m", family: "gemma4", modelId: "unknown/snapshot" });
    const receipt = JSON.parse(
      fs.readFileSync(path.join(directory(), "verified-install.json"), "utf8"),
    ) as Record<string, unknown>;
    expect(receipt["sourceRepoID"]).toBe(REPOSITORY);
    expect(receipt["sourceRevision"]).toBe(COMMIT);
    await expectInstalled();
  });

  test("asks for plain bytes in bounded parts, and gives the token to the Hub alone", async () => {
    await installRemote(options({ token: "hf_secret" }));
    for (const { host, headers, range } of hub.requests) {
      expect(headers.get("accept-encoding")).toBe("identity");
      expect(headers.get("authorization")).toBe(host === "hub" ? "Bearer hf_secret" : undefined);
      if (range !== undefined) expect(range[1] - range[0]).toBeLessThan(RANGE_BYTES);
    }
    expect(hub.requests.filter(isPayload).length).toBeGreaterThan(3);
  });

  test("of a complete model is refused without a request", async () => {
    await installRemote(options());
    hub.requests.length = 0;
    expect((await failureOf(() => installRemote(options()))).code).toBe("install.exists");
    expect(hub.requests).toEqual([]);
  });

  test("offline is refused without a request", async () => {
    const failure = await failureOf(() => installRemote(options({ isOffline: true })));
    expect(failure.code).toBe("install.offline");
    expect(hub.requests).toEqual([]);
  });

  test("reports bytes up to the whole, and never fewer than before", async () => {
    faultAt(1, { kind: "short" }, 2);
    const seen: number[] = [];
    let total = 0;
    await installRemote(
      options({
        onProgress({ phase, doneBytes, totalBytes }) {
          if (phase !== "downloading") return;
          seen.push(doneBytes);
          total = totalBytes;
        },
      }),
    );
    expect(seen[0]).toBe(0);
    expect(seen).toEqual(seen.toSorted((left, right) => left - right));
    expect(seen.at(-1)).toBe(total);
    expect(total).toBeGreaterThan(0);
  });
});

test.each(Object.keys(SNAPSHOTS) as (keyof typeof SNAPSHOTS)[])(
  "a download of %s gives what its folder gives",
  async (family) => {
    const folder = writeSnapshot(SNAPSHOTS[family]("tiny"));
    const index = fs.readFileSync(path.join(folder, "model.safetensors.index.json"));
    const other = await startHub(folder);
    const source = { repository: REPOSITORY, revision: COMMIT, indexSha256: sha256(index) };
    const installed = await installRemote(options({ base: other.base, source }));
    other.stop();
    expect(installed.family).toBe(family);
    const local = await installLocal({ source: folder, name: "local", models });
    expect(digests(directory())).toEqual(digests(local.directory));
  },
);

describe("a server that misbehaves once", () => {
  const passing: [string, Fault][] = [
    ["ends the body early", { kind: "short" }],
    ["resets the connection", { kind: "reset" }],
    ["is slow", { kind: "drip" }],
    ["answers 500", { kind: "status", status: 500 }],
    ["answers 408", { kind: "status", status: 408 }],
    ["denies a link that has expired", { kind: "status", status: 403 }],
  ];
  test.each(passing)("and %s is asked again", async (_, fault) => {
    faultAt(1, fault);
    await installRemote(options());
    await expectInstalled();
  });

  test("by silence is asked again", async () => {
    faultAt(0, { kind: "stall" });
    const limits = { ...options().limits, idleMs: 150 };
    await installRemote(options({ limits }));
    await expectInstalled();
  });

  test("and says when it wants to be asked again is heard", async () => {
    faultAt(0, { kind: "status", status: 429, headers: { "Retry-After": "30" } });
    await installRemote(options());
    expect(slept).toEqual([30_000]);
  });

  const lying: [string, Fault, RegExp][] = [
    ["sends the whole file", { kind: "whole" }, /whole file/],
    [
      "sends another range",
      { kind: "headers", headers: { "Content-Range": "bytes 0-99999/5" } },
      /sent the range/,
    ],
    ["compresses", { kind: "headers", headers: { "Content-Encoding": "gzip" } }, /encoded as gzip/],
    ["announces no length", { kind: "shortToTheEnd" }, /announced no number/],
    [
      "sends too little, well announced",
      { kind: "body", change: (body) => body.subarray(9) },
      /announced/,
    ],
    ["sends of another file", { kind: "headers", headers: { ETag: '"other"' } }, /tagged/],
    ["has a weak tag only", { kind: "headers", headers: { ETag: 'W/"other"' } }, /tagged/],
    ["answers 416", { kind: "status", status: 416 }, /changed/],
    ["answers 404", { kind: "status", status: 404 }, /404/],
    [
      "redirects without encryption",
      { kind: "redirect", to: "http://example.com/x" },
      /not encrypted/,
    ],
    ["redirects nowhere", { kind: "redirect", to: "http://" }, /to no address/],
    [
      "wants another time that is none",
      { kind: "status", status: 503, headers: { "Retry-After": "soon" } },
      /neither seconds/,
    ],
  ];
  test.each(lying)("and %s is not believed", async (_, fault, sentence) => {
    faultAt(1, fault);
    const failure = await failureOf(() => installRemote(options()));
    expect(failure.code).toBe("install.remote");
    expect(failure.message).toMatch(sentence);
    expect(failure.message).not.toContain("secret");
    expect(fs.existsSync(directory())).toBe(false);
    hub.fault = () => undefined;
    await installRemote(options());
    await expectInstalled();
  });

  test("and redirects in a circle is left", async () => {
    hub.fault = (request) =>
      request.host === "storage" ? { kind: "redirect", to: request.target } : undefined;
    const failure = await failureOf(() => installRemote(options()));
    expect(failure.message).toMatch(/more than 5 times/);
  });

  test("again and again is given up", async () => {
    faultAt(0, { kind: "status", status: 503 }, 100);
    const failure = await failureOf(() => installRemote(options()));
    expect(failure.code).toBe("install.network");
    expect(failure.message).toMatch(/503.*after 4 attempts/);
  });

  test("and wants more than an hour is left for later", async () => {
    faultAt(0, { kind: "status", status: 429, headers: { "Retry-After": "3601" } });
    expect((await failureOf(() => installRemote(options()))).code).toBe("install.network");
    expect(slept).toEqual([]);
  });

  test.each([401, 403])("and denies at the Hub with %p is not asked again", async (status) => {
    hub.fault = (request) => (request.host === "hub" ? { kind: "status", status } : undefined);
    const failure = await failureOf(() => installRemote(options()));
    expect(failure.code).toBe("install.auth");
    expect(failure.message).toContain("HF_TOKEN");
    expect(hub.requests.length).toBe(1);
  });

  test("and denies two links in a row is believed", async () => {
    faultAt(0, { kind: "status", status: 403 }, 100);
    expect((await failureOf(() => installRemote(options()))).code).toBe("install.auth");
  });
});

describe("metadata", () => {
  test("of another index than the pinned one is refused", async () => {
    const source = { repository: REPOSITORY, revision: "main", indexSha256: "0".repeat(64) };
    const failure = await failureOf(() => installRemote(options({ source })));
    expect(failure.code).toBe("install.remote");
    expect(failure.message).toContain(sha256(INDEX));
    expect(fs.readdirSync(models).filter((name) => !name.endsWith(".lock"))).toEqual([]);
  });

  test("of another commit than the pinned one is refused", async () => {
    const source = { repository: REPOSITORY, revision: "f".repeat(40) };
    const failure = await failureOf(() => installRemote(options({ source })));
    expect(failure.message).toContain(`is of the commit ${COMMIT}`);
  });

  test("of two commits is refused", async () => {
    hub.fault = ({ file, method }) =>
      method === "HEAD" && file.endsWith(".safetensors")
        ? { kind: "headers", headers: { "X-Repo-Commit": "e".repeat(40) } }
        : undefined;
    expect((await failureOf(() => installRemote(options()))).message).toContain("is of the commit");
  });

  test("beyond its cap is not fetched", async () => {
    hub.fault = ({ file, method, target }) =>
      method === "HEAD" && file === "config.json" && target.startsWith("/api")
        ? { kind: "headers", headers: { "Content-Length": "1048577" } }
        : undefined;
    expect((await failureOf(() => installRemote(options()))).message).toMatch(/at most 1048576/);
  });

  test("with a header of impossible size is refused", async () => {
    hub.fault = ({ host, range }) =>
      host === "storage" && range?.[1] === 7
        ? { kind: "body", change: () => Buffer.from("ffffffffffffff7f", "hex") }
        : undefined;
    expect((await failureOf(() => installRemote(options()))).code).toBe("format.safetensors");
  });
});

describe("an interrupted download", () => {
  /** Runs until `count` ranges are recorded, then stops as a signal would. */
  async function interrupt(count: number): Promise<void> {
    const controller = new AbortController();
    const failure = await failureOf(() =>
      installRemote(
        options({
          signal: controller.signal,
          onProgress() {
            const done = readSaved(directory())?.completedRanges.length ?? 0;
            if (done >= count) controller.abort();
          },
        }),
      ),
    );
    expect(failure.code).toBe("install.cancelled");
    expect(failure.message).toContain("goes on with it");
  }

  test("goes on with what it has", async () => {
    await interrupt(3);
    const done = readSaved(directory())!.completedRanges;
    expect(done.length).toBeGreaterThanOrEqual(3);
    const all = hub.requests.filter(isPayload).length;
    hub.requests.length = 0;
    await installRemote(options());
    await expectInstalled();
    const again = hub.requests.filter(isPayload);
    expect(again.length).toBeLessThan(all + again.length);
    const whole = await startHub(SOURCE);
    await installRemote(options({ base: whole.base, name: "other" }));
    const total = whole.requests.filter(isPayload).length;
    whole.stop();
    expect(again.length).toBeLessThanOrEqual(total - 2);
  });

  test("fetches again what was damaged meanwhile", async () => {
    await interrupt(3);
    const weights = path.join(`${directory()}.partial`, "packed_experts/layer_00.bin");
    fs.writeFileSync(weights, Buffer.alloc(fs.statSync(weights).size, 7));
    await installRemote(options());
    await expectInstalled();
  });

  test("begins anew where a file of it is gone", async () => {
    await interrupt(2);
    fs.rmSync(path.join(`${directory()}.partial`, "packed_experts/layer_00.bin"));
    await installRemote(options());
    await expectInstalled();
  });

  test("stays when another source is given under its name", async () => {
    await interrupt(2);
    hub.requests.length = 0;
    const source = { repository: "owner/other", revision: "main" };
    const failure = await failureOf(() => installRemote(options({ source })));
    expect(failure.code).toBe("install.state");
    expect(failure.message).toContain("discard");
    expect(hub.requests).toEqual([]);
    expect(readSaved(directory())).toBeDefined();
  });

  test("stays when the configuration has become another one under the same commit", async () => {
    await interrupt(2);
    // White space changes neither the plan nor its fingerprint.
    const config = fs.readFileSync(path.join(SOURCE, "config.json"));
    const changed = path.join(temporaryFolder(), "changed");
    fs.cpSync(SOURCE, changed, { recursive: true });
    fs.writeFileSync(path.join(changed, "config.json"), Buffer.concat([config, Buffer.from(" ")]));
    const other = await startHub(changed);
    const failure = await failureOf(() => installRemote(options({ base: other.base })));
    other.stop();
    expect(failure.code).toBe("install.state");
    expect(failure.message).toContain(`its configSHA256 is ${sha256(config)}`);
    expect(readSaved(directory())).toBeDefined();
  });

  test("follows no link or pipe that has come into its folder", async () => {
    await interrupt(2);
    const partial = `${directory()}.partial`;
    const victim = path.join(models, "victim");
    fs.writeFileSync(victim, "mine");
    const layer = path.join(partial, "packed_experts/layer_00.bin");
    const kept = fs.readFileSync(layer);
    const ways = [
      () => fs.symlinkSync(victim, layer),
      () => Bun.spawnSync(["mkfifo", layer]),
      () => fs.mkdirSync(layer),
    ];
    for (const put of ways) {
      fs.rmSync(layer, { recursive: true });
      put();
      expect((await failureOf(() => installRemote(options()))).code).toBe("format.path");
    }
    fs.rmSync(layer, { recursive: true });
    fs.writeFileSync(layer, kept);
    // What is in the way of a temporary file goes; where a link leads is left alone.
    const inTheWay = path.join(partial, ".range.tmp");
    fs.rmSync(inTheWay, { force: true });
    fs.symlinkSync(victim, inTheWay);
    const other = path.join(partial, ".range-1.tmp");
    fs.rmSync(other, { force: true });
    fs.mkdirSync(path.join(other, "below"), { recursive: true });
    await installRemote(options());
    await expectInstalled();
    expect(fs.readFileSync(victim, "utf8")).toBe("mine");
  });

  test("is not thrown away for a local install", async () => {
    await interrupt(2);
    const failure = await failureOf(() => installLocal({ source: SOURCE, name: "m", models }));
    expect(failure.code).toBe("install.state");
  });

  test.each([
    ["a damaged record", "{"],
    ["a record with a part listed twice", undefined],
  ])("with %s says so and keeps everything", async (_, text) => {
    await interrupt(2);
    const saved = readSaved(directory())!;
    const [first] = saved.completedRanges;
    const twice = { ...saved, completedRanges: [first, first] };
    fs.writeFileSync(resumePath(directory()), text ?? JSON.stringify(twice));
    expect((await failureOf(() => installRemote(options()))).code).toBe("install.state");
    expect(fs.existsSync(`${directory()}.partial`)).toBe(true);
  });

  test("needs room for the rest only", async () => {
    await interrupt(3);
    const asked: number[] = [];
    const io = {
      ...systemIo,
      availableBytes: () => {
        asked.push(1);
        return 1;
      },
    };
    const failure = await failureOf(() => installRemote(options({ io })));
    expect(failure.code).toBe("install.space");
    const rest = Number(/\((\d+) bytes\), /.exec(failure.message)![1]);
    const fresh = await failureOf(() => installRemote(options({ io, name: "fresh" })));
    const whole = Number(/\((\d+) bytes\), /.exec(fresh.message)![1]);
    const done = readSaved(directory())!.completedRanges;
    const doneBytes = done.reduce((total, { destinationBytes }) => total + destinationBytes, 0);
    expect(rest).toBe(whole - doneBytes);
    expect(asked.length).toBeGreaterThan(0);
    expect(fs.existsSync(path.join(models, "fresh.gturbo.partial"))).toBe(false);
  });

  test("by a full disk keeps what it has", async () => {
    let written = 0;
    const io = {
      ...systemIo,
      write(descriptor: number, bytes: Uint8Array, offset: number) {
        written += bytes.length;
        if (written > 700_000) throw Object.assign(new Error("full"), { code: "ENOSPC" });
        return systemIo.write(descriptor, bytes, offset);
      },
    };
    expect((await failureOf(() => installRemote(options({ io })))).code).toBe("install.space");
    await installRemote(options());
    await expectInstalled();
  });
});

test("an install that waits for its first answer holds the lock, and gives it back when it is cancelled", async () => {
  hub.fault = () => ({ kind: "hang" });
  const controller = new AbortController();
  const limits = { ...options().limits, idleMs: 60_000 };
  const first = failureOf(() => installRemote(options({ signal: controller.signal, limits })));
  while (hub.requests.length === 0) await Bun.sleep(1);
  const alias = path.join(temporaryFolder(), "alias");
  fs.symlinkSync(models, alias);
  for (const place of [models, alias]) {
    expect((await failureOf(() => installRemote(options({ models: place })))).code).toBe(
      "install.busy",
    );
  }
  controller.abort();
  expect((await first).code).toBe("install.cancelled");
  hub.fault = () => undefined;
  await installRemote(options());
  await expectInstalled();
});

test("links in the place of the package's files are not followed", async () => {
  const victim = path.join(models, "victim");
  fs.writeFileSync(victim, "mine");
  fs.symlinkSync(victim, resumePath(directory()));
  expect((await failureOf(() => installRemote(options()))).code).toBe("format.path");
  fs.rmSync(resumePath(directory()));
  fs.symlinkSync(models, `${directory()}.partial`);
  expect((await failureOf(() => installRemote(options()))).code).toBe("format.path");
  expect(fs.readFileSync(victim, "utf8")).toBe("mine");
});

describe("an install that is killed", () => {
  const spawn = () =>
    Bun.spawn(
      [
        process.execPath,
        path.join(import.meta.dir, "../fixtures/install-child.ts"),
        hub.base.href,
        models,
        sha256(INDEX),
        String(RANGE_BYTES),
      ],
      { stderr: "pipe" },
    );

  test("at any moment is finished by the next ones, and nothing durable is fetched twice", async () => {
    // The requests after which each child is killed: among the headers, and in the midst of the payload.
    for (const requestCount of [3, 12, 17, 22]) {
      const child = spawn();
      const first = hub.requests.length;
      const before = readSaved(directory())?.completedRanges.length ?? 0;
      const isOver = () => child.exitCode !== null || hub.requests.length - first >= requestCount;
      while (!isOver()) await Bun.sleep(1);
      child.kill("SIGKILL");
      await child.exited;
      const after = readSaved(directory())?.completedRanges.length ?? 0;
      expect(after).toBeGreaterThanOrEqual(before);
    }
    const durable = readSaved(directory())!.completedRanges.length;
    hub.requests.length = 0;
    const last = spawn();
    expect([await last.exited, await new Response(last.stderr).text()]).toEqual([0, ""]);
    const fetched = hub.requests.filter(isPayload).length;
    await expectInstalled();
    hub.requests.length = 0;
    await installRemote(options({ name: "whole" }));
    expect(fetched).toBeLessThanOrEqual(hub.requests.filter(isPayload).length - durable + 1);
  }, 30_000);
});
