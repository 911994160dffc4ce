import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import fs from "node:fs";
import net from "node:net";
import tls from "node:tls";
import path from "node:path";
import { HttpSource, type RemoteFile } from "../../src/install/http.ts";
import { RETRY_POLICY, systemClock } from "../../src/install/retry.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import { COMMIT, REPOSITORY, startHub, type Fault, type Hub } from "../support/hub.ts";
import { startProxy } from "../support/proxy.ts";

const BYTES = Buffer.alloc(40_000, 3);
const PART = { offset: 100, bytes: 30_000 };

let hub: Hub;
let slept: number[];

beforeEach(async () => {
  const folder = temporaryFolder();
  fs.writeFileSync(path.join(folder, "a.safetensors"), BYTES);
  hub = await startHub(folder);
  slept = [];
});
afterEach(() => hub.stop());

const clock = {
  ...systemClock,
  random: () => 0.5,
  sleep(ms: number) {
    slept.push(ms);
    return Promise.resolve();
  },
};

function source(idleMs = 2000, attempts = 4): HttpSource {
  const retry = { ...RETRY_POLICY, attempts, clock };
  return new HttpSource({ base: hub.base, token: "hf_secret", idleMs, retry });
}

const address = (prefix = ""): URL =>
  new URL(`${prefix}/${REPOSITORY}/resolve/${COMMIT}/a.safetensors`, hub.base);

async function fetchPart(http: HttpSource, change: Partial<RemoteFile> = {}): Promise<number> {
  const file = (await http.find(address(), undefined))!;
  let came = 0;
  await http.fetch({ ...file, ...change }, PART, {
    sink: (chunk, at) => {
      came = at + chunk.length;
    },
    signal: undefined,
  });
  return came;
}

/** Faults for the first payload requests, one after the other. */
function faults(...list: readonly Fault[]): void {
  let seen = 0;
  hub.fault = ({ host }) => (host === "storage" ? list[seen++] : undefined);
}

describe("a part", () => {
  test("comes as it was asked for, and its size and hash are those the Hub knows", async () => {
    const http = source();
    expect(await http.find(address(), undefined)).toMatchObject({
      sizeBytes: BYTES.length,
      commit: COMMIT,
    });
    expect(await fetchPart(http)).toBe(PART.bytes);
    expect(hub.requests.at(-1)).toMatchObject({ host: "storage", range: [100, 30_099] });
  });

  test("outside its file is not asked for", async () => {
    expect((await failureOf(() => fetchPart(source(), { sizeBytes: 9 }))).code).toBe(
      "install.remote",
    );
    expect(hub.requests.every(({ method }) => method === "HEAD")).toBe(true);
  });

  test("announced with another length is refused", async () => {
    for (const length of ["30001", "29999", undefined]) {
      faults({ kind: "headers", headers: { "Content-Length": length } });
      expect((await failureOf(() => fetchPart(source()))).message).toMatch(/announced/);
    }
  });

  test("with more bytes behind it is taken as announced, and what follows is not taken for an answer", async () => {
    faults({ kind: "overlong" });
    const http = source();
    const file = (await http.find(address(), undefined))!;
    const came: Buffer[] = [];
    const sink = (chunk: Uint8Array, at: number): void => {
      if (at === 0) came.length = 0;
      came.push(Buffer.from(chunk));
    };
    for (let times = 0; times < 3; times += 1) {
      await http.fetch(file, PART, { sink, signal: undefined });
      expect(Buffer.concat(came).equals(BYTES.subarray(0, PART.bytes))).toBe(true);
    }
  });

  test("that drips is waited for as long as it drips", async () => {
    faults({ kind: "drip", stepMs: 250 });
    // The whole takes longer than the longest silence, which a busy machine does not reach.
    expect(await fetchPart(source(1500))).toBe(PART.bytes);
    expect(slept).toEqual([]);
  });

  test("after a sequence of failures that pass comes in the end", async () => {
    const busy = { kind: "status", status: 503, headers: { "Retry-After": "7" } } as const;
    faults({ kind: "status", status: 500 }, busy, { kind: "reset" });
    expect(await fetchPart(source())).toBe(PART.bytes);
    expect(slept).toEqual([1125, 7000, 4125]);
  });

  test("whose link has expired is asked for at the Hub once more, and not twice", async () => {
    let links = 0;
    const expired = (count: number): void => {
      links = 0;
      hub.fault = ({ host, method }) => {
        if (host !== "hub" || method !== "GET") return undefined;
        links += 1;
        return links <= count ? { kind: "expired" } : undefined;
      };
    };
    expired(1);
    expect(await fetchPart(source())).toBe(PART.bytes);
    expect(links).toBe(2);
    expired(2);
    const failure = await failureOf(() => fetchPart(source()));
    expect([failure.code, links]).toEqual(["install.auth", 2]);
    expect(failure.message).not.toContain("Signature");
  });

  test("of a file that changed between two parts is refused", async () => {
    const http = source();
    const file = (await http.find(address(), undefined))!;
    const { contentTag: _, ...untagged } = file;
    const sink = (): void => {};
    await http.fetch(untagged, PART, { sink, signal: undefined });
    faults({ kind: "headers", headers: { ETag: '"later"' } });
    const failure = await failureOf(() => http.fetch(untagged, PART, { sink, signal: undefined }));
    expect(failure.message).toMatch(/was changed meanwhile: its tag was/);
  });

  test("compressed in truth is refused before a byte of it is taken", async () => {
    faults({ kind: "gzip" });
    let taken = 0;
    const http = source();
    const file = (await http.find(address(), undefined))!;
    const failure = await failureOf(() =>
      http.fetch(file, PART, { sink: () => (taken += 1), signal: undefined }),
    );
    expect(failure.message).toMatch(/encoded as gzip/);
    expect(taken).toBe(0);
  });
});

describe("redirects", () => {
  test("take the token from the first other host on, and never give it back", async () => {
    const back = new URL(
      `/api/resolve-cache/models/${REPOSITORY}/${COMMIT}/a.safetensors`,
      hub.base,
    );
    faults({ kind: "redirect", to: back.href });
    await fetchPart(source());
    const seen = hub.requests
      .filter(({ method }) => method === "GET")
      .map(({ host, headers }) => [host, headers.get("authorization"), headers.get("range")]);
    expect(seen).toEqual([
      ["hub", "Bearer hf_secret", "bytes=100-30099"],
      ["storage", undefined, "bytes=100-30099"],
      ["hub", undefined, "bytes=100-30099"],
    ]);
    expect(hub.requests.every(({ headers }) => headers.get("accept-encoding") === "identity")).toBe(
      true,
    );
  });

  test("of a question about a file are followed within the Hub only, as questions", async () => {
    hub.fault = ({ host, target }) =>
      host === "hub" && target.startsWith("/moved")
        ? { kind: "redirect", to: address().pathname }
        : undefined;
    const file = await source().find(address("/moved"), undefined);
    expect(file?.sizeBytes).toBe(BYTES.length);
    expect(
      hub.requests.map(({ method, host, headers }) => [method, host, headers.get("authorization")]),
    ).toEqual(Array.from({ length: 2 }, () => ["HEAD", "hub", "Bearer hf_secret"]));
  });

  test("in a circle end after five, of either kind", async () => {
    hub.fault = ({ target }) => ({ kind: "redirect", to: target });
    const failure = await failureOf(() => source().find(address(), undefined));
    expect(failure.message).toMatch(/more than 5 times/);
    expect(hub.requests.length).toBe(6);
  });
});

test.each([408, 429, 500, 502, 503, 504])("%p is asked again", async (status) => {
  faults({ kind: "status", status });
  expect(await fetchPart(source())).toBe(PART.bytes);
  expect(slept.length).toBe(1);
});

test.each([200, 400, 404, 409, 412, 416, 501, 505])("%p is final", async (status) => {
  faults({ kind: "status", status });
  const failure = await failureOf(() => fetchPart(source()));
  expect([failure.code, slept.length]).toEqual(["install.remote", 0]);
});

describe("an encrypted server behind a proxy", () => {
  /** Asks for a file in a process that has these variables; what it prints. */
  async function ask(variables: Record<string, string>): Promise<string> {
    const script = `
      const { HttpSource } = await import("${path.resolve(import.meta.dir, "../../src/install/http.ts")}");
      const { RETRY_POLICY } = await import("${path.resolve(import.meta.dir, "../../src/install/retry.ts")}");
      const base = new URL("https://hub.example");
      const retry = { ...RETRY_POLICY, attempts: 1 };
      const http = new HttpSource({ base, token: "hf_secret", idleMs: 20_000, retry });
      const url = new URL("/${REPOSITORY}/resolve/${COMMIT}/a.safetensors", base);
      await http.find(url, undefined).then(
        (file) => console.log("found", file.sizeBytes),
        (error) => console.log(error.message),
      );
      process.exit(0);`;
    const child = Bun.spawn([process.execPath, "-e", script], {
      env: { PATH: process.env["PATH"], ...variables },
      stdout: "pipe",
    });
    return await new Response(child.stdout).text();
  }

  test("that opens no tunnel is told of without its password", async () => {
    const proxy = await startProxy();
    const said = await ask({ HTTPS_PROXY: proxy.address });
    proxy.stop();
    expect(proxy.asked).toMatchObject([{ method: "CONNECT", target: "hub.example:443" }]);
    expect(proxy.asked[0]!.headers["proxy-authorization"]).toBe(`Basic ${btoa("user:swordfish")}`);
    expect(said).toMatch(/^lost https:\/\/hub\.example\/\S+: .*403/);
    expect(JSON.stringify(proxy.asked) + said).not.toMatch(/swordfish|hf_secret/);
  });

  const title = "is reached through a tunnel, and only the server sees the token (needs openssl)";
  test.skipIf(Bun.which("openssl") === null)(title, async () => {
    const folder = temporaryFolder();
    const [key, cert] = [path.join(folder, "key.pem"), path.join(folder, "cert.pem")];
    const made = Bun.spawnSync(
      ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"].concat(
        ["-keyout", key, "-out", cert, "-subj", "/CN=hub.example"],
        ["-addext", "subjectAltName=DNS:hub.example"],
      ),
    );
    expect(made.exitCode).toBe(0);
    const files = { key: fs.readFileSync(key), cert: fs.readFileSync(cert) };
    const front = tls.createServer(files, (socket) => {
      const onward = net.connect(Number(hub.base.port), "127.0.0.1");
      socket.on("error", () => onward.destroy());
      onward.on("error", () => socket.destroy());
      socket.pipe(onward).pipe(socket);
    });
    const { promise, resolve } = Promise.withResolvers<void>();
    front.listen(0, "127.0.0.1", resolve);
    await promise;
    const proxy = await startProxy((front.address() as net.AddressInfo).port);
    // The Hub sends shards on to its storage, which is not encrypted: here it answers itself.
    hub.fault = () => ({
      kind: "status",
      status: 200,
      headers: { "Content-Length": "0", "X-Linked-Size": "40000", "X-Repo-Commit": COMMIT },
    });
    const said = await ask({ HTTPS_PROXY: proxy.address, NODE_EXTRA_CA_CERTS: cert });
    proxy.stop();
    front.close();
    expect(said).toBe("found 40000\n");
    expect(proxy.asked).toMatchObject([{ method: "CONNECT", target: "hub.example:443" }]);
    expect(JSON.stringify(proxy.asked)).not.toContain("hf_secret");
    expect(hub.requests.map(({ headers }) => headers.get("authorization"))).toEqual([
      "Bearer hf_secret",
    ]);
    expect(hub.requests[0]!.headers.has("proxy-authorization")).toBe(false);
  });
});
