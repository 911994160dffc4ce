import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";
import { undoEverything } from "../fixtures/cleanup.ts";
import { FAMILY_NAMES, indexDigest, makeRepositories, type FamilyName } from "./repositories.ts";

/**
 * A Hub that serves folders as repositories, over bare sockets so that it can lie in any way. Like the
 * real one it redirects small files within itself, and shards to signed links of another host that
 * expire. `bun run hub` starts it in a process of its own.
 */
export const COMMIT = "0123456789abcdef0123456789abcdef01234567";
export const REPOSITORY = "owner/model";

export interface HubRequest {
  readonly method: string;
  /** Path and query. */
  readonly target: string;
  /** `owner/name`, where the target names one. */
  readonly repository: string;
  readonly file: string;
  readonly host: "hub" | "storage";
  readonly headers: ReadonlyMap<string, string>;
  /** First and last byte asked for. */
  readonly range: readonly [number, number] | undefined;
}

/** One way to misbehave. */
export type Fault =
  | { readonly kind: "status"; readonly status: number; readonly headers?: Record<string, string> }
  | { readonly kind: "redirect"; readonly to: string }
  | { readonly kind: "headers"; readonly headers: Record<string, string | undefined> }
  | {
      readonly kind: "whole" | "short" | "shortToTheEnd" | "stall" | "reset" | "hang";
    }
  /** Eight pieces, this long apart. */
  | { readonly kind: "drip"; readonly stepMs?: number }
  /** More bytes than were announced, on a connection that goes on. */
  | { readonly kind: "overlong" }
  /** The body is compressed, asked for or not. */
  | { readonly kind: "gzip" }
  /** The link that the Hub gives has expired before it is used. */
  | { readonly kind: "expired" }
  | { readonly kind: "body"; readonly change: (bytes: Buffer) => Buffer };

export interface Hub {
  readonly base: URL;
  readonly storage: URL;
  readonly requests: HubRequest[];
  /** How long a signed link holds. */
  linkMs: number;
  /** Decides for each request whether and how to misbehave. */
  fault: (request: HubRequest) => Fault | undefined;
  stop(): void;
}

/** A fault for some of the requests, in a form that can be sent. */
export interface Order {
  readonly fault: Exclude<Fault, { kind: "body" }>;
  readonly host?: HubRequest["host"];
  readonly method?: string;
  /** End of the file's name. */
  readonly file?: string;
  /** Requests of these that are answered honestly before, and how many are not; all. */
  readonly after?: number;
  readonly times?: number;
}

/** Decides by orders: the first that is meant for a request counts. */
export function faultsOf(orders: readonly Order[]): Hub["fault"] {
  const seen = new Map<Order, number>();
  return (request) => {
    for (const order of orders) {
      const { host = request.host, method = request.method, file = "" } = order;
      if (host !== request.host || method !== request.method) continue;
      if (!request.file.endsWith(file)) continue;
      const count = seen.get(order) ?? 0;
      seen.set(order, count + 1);
      const { after = 0, times = Infinity } = order;
      if (count >= after && count < after + times) return order.fault;
    }
    return undefined;
  };
}

/** A folder for each repository. */
export type Repositories = ReadonlyMap<string, string>;

interface Reply {
  status: number;
  headers: Record<string, string | undefined>;
  body: Buffer;
  /** Stands in for the body where nothing is wrong with it. */
  part?: FilePart;
}

interface FilePart {
  readonly file: string;
  readonly offset: number;
  readonly bytes: number;
}

/** What a large body is sent through. */
const TILE_BYTES = 262_144;

/**
 * Starts a Hub on two ports of this machine: its own and that of its storage. A folder alone is served
 * as the repository `owner/model`.
 */
export async function startHub(served: string | Repositories, port = 0): Promise<Hub> {
  const repositories = typeof served === "string" ? new Map([[REPOSITORY, served]]) : served;
  const sockets = new Set<net.Socket>();
  const servers: net.Server[] = [];
  const hub: Hub = {
    base: new URL("http://127.0.0.1"),
    storage: new URL("http://127.0.0.1"),
    requests: [],
    linkMs: 3_600_000,
    fault: () => undefined,
    stop() {
      for (const socket of sockets) socket.destroy();
      for (const server of servers) server.close();
    },
  };
  for (const host of ["hub", "storage"] as const) {
    const server = net.createServer((socket) => {
      sockets.add(socket);
      socket.on("close", () => sockets.delete(socket));
      socket.on("error", () => undefined);
      serve(socket, (head) => void answer(socket, readRequest(head, host), { hub, repositories }));
    });
    servers.push(server);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    server.once("error", reject);
    server.listen(host === "hub" ? port : 0, "127.0.0.1", resolve);
    await promise;
    const { port: found } = server.address() as net.AddressInfo;
    (host === "hub" ? hub.base : hub.storage).port = String(found);
  }
  return hub;
}

function serve(socket: net.Socket, onHead: (head: string) => void): void {
  let text = "";
  socket.on("data", (chunk) => {
    text += chunk.toString("latin1");
    for (let end = text.indexOf("\r\n\r\n"); end >= 0; end = text.indexOf("\r\n\r\n")) {
      onHead(text.slice(0, end));
      text = text.slice(end + 4);
    }
  });
}

function readRequest(head: string, host: "hub" | "storage"): HubRequest {
  const [first = "", ...lines] = head.split("\r\n");
  const [method = "", asked = ""] = first.split(" ");
  // A proxy may pass the whole address on.
  const target = asked.replace(/^http:\/\/[^/]*/, "");
  const headers = new Map(
    lines.map((line) => {
      const colon = line.indexOf(":");
      return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
    }),
  );
  const match = /^bytes=(\d+)-(\d+)$/.exec(headers.get("range") ?? "");
  const range = match === null ? undefined : ([Number(match[1]), Number(match[2])] as const);
  const [, repository = ""] =
    /\/([^/?]+\/[^/?]+)\/resolve\//.exec(target) ??
    /^\/(?:api\/resolve-cache\/models|blobs)\/([^/?]+\/[^/?]+)\//.exec(target) ??
    [];
  const file = decodeURIComponent(target.split("?")[0]!.split("/").at(-1)!);
  return { method, target, repository, file, host, headers, range };
}

async function answer(
  socket: net.Socket,
  request: HubRequest,
  place: { readonly hub: Hub; readonly repositories: Repositories },
): Promise<void> {
  const { hub } = place;
  if (request.target.startsWith("/-/")) return control(socket, request, hub);
  hub.requests.push(request);
  const fault = hub.fault(request);
  if (fault?.kind === "hang") return;
  const folder = place.repositories.get(request.repository);
  const file = folder === undefined ? undefined : path.join(folder, request.file);
  const reply = misbehave(honest(request, hub, { file, fault }), fault, file);
  const { body } = reply;
  const bodyBytes = reply.part?.bytes ?? body.length;
  const length = fault?.kind === "shortToTheEnd" ? undefined : String(bodyBytes);
  const headers: Record<string, string | undefined> = {
    "Content-Length": length,
    ...reply.headers,
  };
  const lines = Object.entries(headers).flatMap(([name, value]) =>
    value === undefined ? [] : [`${name}: ${value}\r\n`],
  );
  socket.write(`HTTP/1.1 ${reply.status} X\r\n${lines.join("")}\r\n`);
  if (request.method === "HEAD") return;
  if (reply.part === undefined) await send(socket, body, fault);
  else await sendPart(socket, reply.part);
}

/** Orders for a Hub of another process: `/-/misbehave?ORDERS`, and `/-/requests` for what was asked. */
function control(socket: net.Socket, { target }: HubRequest, hub: Hub): void {
  const [place, query = "[]"] = target.split("?");
  if (place === "/-/misbehave") {
    hub.fault = faultsOf(JSON.parse(decodeURIComponent(query)) as readonly Order[]);
    hub.requests.length = 0;
  }
  const asked = hub.requests.map(({ headers, ...request }) => ({
    ...request,
    headers: Object.fromEntries(headers),
  }));
  const body = Buffer.from(JSON.stringify(asked));
  socket.end(`HTTP/1.1 200 X\r\nContent-Length: ${body.length}\r\n\r\n${body.toString()}`);
}

/** What a fault makes of an honest reply; some show only while the body is sent. */
function misbehave(reply: Reply, fault: Fault | undefined, file: string | undefined): Reply {
  const { headers } = reply;
  if (fault?.kind === "redirect") return redirect(fault.to);
  if (fault?.kind === "status") return { ...refusal(fault.status), headers: { ...fault.headers } };
  if (fault?.kind === "headers") return { ...reply, headers: { ...headers, ...fault.headers } };
  if (fault?.kind === "body") return { ...reply, body: fault.change(Buffer.from(reply.body)) };
  if (fault?.kind === "gzip") {
    const body = gzipSync(reply.body);
    return { ...reply, headers: { ...headers, "Content-Encoding": "gzip" }, body };
  }
  if (fault?.kind !== "whole" || reply.status !== 206 || file === undefined) return reply;
  return { ...reply, status: 200, body: fs.readFileSync(file) };
}

async function send(socket: net.Socket, body: Buffer, fault: Fault | undefined): Promise<void> {
  const kind = fault?.kind;
  const half = body.subarray(0, Math.floor(body.length / 2));
  if (kind === "short" || kind === "shortToTheEnd") socket.end(half);
  else if (kind === "stall") socket.write(half);
  else if (kind === "reset") socket.write(half, () => socket.resetAndDestroy());
  else if (fault?.kind === "drip") await drip(socket, body, fault.stepMs ?? 5);
  else if (kind === "overlong") socket.write(Buffer.concat([body, body]));
  else socket.write(body);
}

/** Sends a part of a file tile by tile, each when the one before it has left. */
async function sendPart(socket: net.Socket, { file, offset, bytes }: FilePart): Promise<void> {
  const tile = Buffer.allocUnsafe(Math.min(bytes, TILE_BYTES));
  const descriptor = fs.openSync(file, "r");
  try {
    for (let done = 0; done < bytes && !socket.destroyed; done += tile.length) {
      const count = fs.readSync(descriptor, tile, 0, tile.length, offset + done);
      const rest = tile.subarray(0, Math.min(count, bytes - done));
      const { promise, resolve } = Promise.withResolvers<void>();
      const onEnd = (): void => resolve();
      socket.once("close", onEnd);
      socket.write(rest, onEnd);
      await promise;
      socket.off("close", onEnd);
    }
  } finally {
    fs.closeSync(descriptor);
  }
}

async function drip(socket: net.Socket, body: Buffer, stepMs: number): Promise<void> {
  const step = Math.ceil(body.length / 8);
  for (let at = 0; at < body.length; at += step) {
    socket.write(body.subarray(at, at + step));
    await Bun.sleep(stepMs);
  }
}

const redirect = (to: string): Reply => ({
  status: 302,
  headers: { Location: to },
  body: Buffer.alloc(0),
});

const refusal = (status: number): Reply => ({ status, headers: {}, body: Buffer.alloc(0) });

/** What a server that keeps its word says. */
function honest(
  request: HubRequest,
  hub: Hub,
  { file, fault }: { readonly file: string | undefined; readonly fault: Fault | undefined },
): Reply {
  const { host, method, target, repository } = request;
  if (file === undefined || !fs.existsSync(file)) return refusal(404);
  const size = fs.statSync(file).size;
  const hash = Bun.hash(request.file).toString(16).padStart(64, "0");
  if (host === "hub" && target.includes(`/${repository}/resolve/`)) {
    const commit = { "X-Repo-Commit": COMMIT };
    if (!request.file.endsWith(".safetensors")) {
      const hop = redirect(`/api/resolve-cache/models/${repository}/${COMMIT}/${request.file}`);
      return { ...hop, status: 307, headers: { ...hop.headers, ...commit } };
    }
    const expires = Date.now() + (fault?.kind === "expired" ? -1 : hub.linkMs);
    const signed = `${repository}/${request.file}?Expires=${expires}&Signature=secret`;
    const link = redirect(`${hub.storage.origin}/blobs/${signed}`);
    const linked = { "X-Linked-Size": String(size), "X-Xet-Hash": hash, "Accept-Ranges": "bytes" };
    return { ...link, headers: { ...link.headers, ...commit, ...linked } };
  }
  const expires = /[?&]Expires=(\d+)/.exec(target)?.[1];
  if (host === "storage" && Number(expires ?? 0) < Date.now()) return refusal(403);
  if (method === "HEAD") return { ...refusal(200), headers: { "Content-Length": String(size) } };
  const [first, last] = request.range ?? [0, size - 1];
  if (last >= size) return refusal(416);
  const headers = { "Content-Range": `bytes ${first}-${last}/${size}`, ETag: `"${hash}"` };
  const part = { file, offset: first, bytes: last - first + 1 };
  if (fault === undefined) return { status: 206, headers, body: Buffer.alloc(0), part };
  const body = Buffer.alloc(part.bytes);
  const descriptor = fs.openSync(file, "r");
  fs.readSync(descriptor, body, 0, body.length, first);
  fs.closeSync(descriptor);
  return { status: 206, headers, body };
}

/** The Hub in a process of its own, until a signal ends it. Says what can be installed from it. */
async function serveRepositories(): Promise<void> {
  const { values } = parseArgs({
    options: {
      port: { type: "string", default: "8411" },
      family: { type: "string", multiple: true },
      misbehave: { type: "string", default: "[]" },
    },
  });
  const unknown = values.family?.find((name) => !FAMILY_NAMES.includes(name as FamilyName));
  if (unknown !== undefined) throw new Error(`--family is one of ${FAMILY_NAMES.join(", ")}`);
  const repositories = makeRepositories(values.family as FamilyName[] | undefined);
  const hub = await startHub(repositories, Number(values.port));
  hub.fault = faultsOf(JSON.parse(values.misbehave) as readonly Order[]);
  const lines = [...repositories].map(
    ([name, folder]) =>
      `bun run mference install --source ${hub.base.href}${name} --index-sha256 ${indexDigest(folder)}\n`,
  );
  process.stdout.write(`a Hub at ${hub.base.href}\n${lines.join("")}`);
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(signal, () => {
      undoEverything();
      process.exit(0);
    });
  }
}

if (import.meta.main) await serveRepositories();
