import { MferenceError, sentenceOf } from "../util/errors.ts";
import { redacted, redirectTarget } from "./address.ts";
import { retryAfterMs, retrying, type Attempt, type RetryPolicy } from "./retry.ts";

/**
 * Parts of files from a server that may lie. Every answer is checked against what was asked for before a
 * byte of it is passed on: status, range, size, encoding, identity. Owns redirects, the token's reach and
 * retries; knows no checkpoint and writes no file.
 */
export interface HttpOptions {
  /** The Hub or its mirror. */
  readonly base: URL;
  /** Goes to the origin of `base` and nowhere else. */
  readonly token?: string | undefined;
  /** Longest silence; there is no limit on the whole. */
  readonly idleMs: number;
  readonly retry: RetryPolicy;
}

/** What the server says of a file. */
export interface RemoteFile {
  readonly name: string;
  readonly url: URL;
  readonly sizeBytes: number;
  /** The commit that it belongs to. */
  readonly commit: string;
  /** Content hash that its parts must carry as their tag. */
  readonly contentTag?: string;
}

/** Takes the next bytes of a part; `at` counts from the start of the part. */
export type Sink = (chunk: Uint8Array, at: number) => void;

export interface RemotePart {
  readonly offset: number;
  readonly bytes: number;
}

const REDIRECTS_MAX = 5;
const TRANSIENT = new Set([408, 429, 500, 502, 503, 504]);
const COMMIT = /^[0-9a-f]{40}$/;

interface Answer {
  readonly response: Response;
  readonly url: URL;
  readonly watch: IdleWatch;
  /** Of the redirects on the way, the last first. */
  readonly hops: readonly Headers[];
}

/** Ends a request after a silence, or when the user wants it to end. */
class IdleWatch {
  readonly #controller = new AbortController();
  readonly #ms: number;
  #timer: Timer | undefined;
  readonly signal: AbortSignal;

  constructor(ms: number, signal: AbortSignal | undefined) {
    this.#ms = ms;
    const own = this.#controller.signal;
    this.signal = signal === undefined ? own : AbortSignal.any([own, signal]);
    this.touch();
  }

  get hasExpired(): boolean {
    return this.#controller.signal.aborted;
  }

  touch(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#controller.abort(), this.#ms).unref();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

export class HttpSource {
  readonly #options: HttpOptions;
  /** Tag of each file's parts so far: all must be of one file. */
  readonly #tags = new Map<string, string>();

  constructor(options: HttpOptions) {
    this.#options = options;
  }

  /**
   * Asks for a file's size and commit.
   *
   * @returns undefined when there is no such file
   * @throws MferenceError "install.network", "install.remote", "install.auth"
   */
  async find(url: URL, signal: AbortSignal | undefined): Promise<RemoteFile | undefined> {
    return await this.#retrying(signal, async () => {
      const answer = await this.#send("HEAD", url, { signal });
      if ("again" in answer) return answer;
      answer.watch.stop();
      await answer.response.body?.cancel();
      if (answer.response.status === 404) return { value: undefined };
      const failure = this.#failure(answer, answer.response.status < 400);
      return failure ?? { value: fileOf(url, answer) };
    });
  }

  /**
   * Fetches a part of a file. After a failure that may pass, it begins again: the sink then sees `at` 0.
   *
   * @throws MferenceError "install.network", "install.remote", "install.auth"
   */
  async fetch(
    file: RemoteFile,
    part: RemotePart,
    options: { readonly sink: Sink; readonly signal: AbortSignal | undefined },
  ): Promise<void> {
    if (part.bytes <= 0 || part.offset + part.bytes > file.sizeBytes) {
      const end = part.offset + part.bytes;
      throw lie(
        file.url,
        `has ${file.sizeBytes} bytes; bytes ${part.offset} to ${end} of it are needed`,
      );
    }
    let isSecondLink = false;
    await this.#retrying<void>(options.signal, async () => {
      const last = part.offset + part.bytes - 1;
      const range = `bytes=${part.offset}-${last}`;
      const answer = await this.#send("GET", file.url, { signal: options.signal, range });
      if ("again" in answer) return answer;
      const { response, url, watch } = answer;
      try {
        // A signed address may have expired on the way: one more is asked for.
        const isDenied = response.status === 401 || response.status === 403;
        if (isDenied && url.origin !== this.#options.base.origin && !isSecondLink) {
          isSecondLink = true;
          return { again: denied(url, response.status) };
        }
        const failure = this.#failure(answer, response.status === 206);
        if (failure !== undefined) return failure;
        this.#checkPart(file, part, response);
        return await readBody(answer, { part, sink: options.sink, signal: options.signal });
      } finally {
        watch.stop();
        await response.body?.cancel().catch(() => undefined);
      }
    });
  }

  async #retrying<T>(
    signal: AbortSignal | undefined,
    attempt: () => Promise<Attempt<T>>,
  ): Promise<T> {
    return await retrying(attempt, this.#options.retry, signal);
  }

  /** Sends a request and follows its redirects; HEAD only within the origin, for the Hub's own answer. */
  async #send(
    method: "GET" | "HEAD",
    start: URL,
    options: { readonly signal: AbortSignal | undefined; readonly range?: string },
  ): Promise<Answer | { readonly again: MferenceError }> {
    const { base, token, idleMs } = this.#options;
    let url = start;
    const hops: Headers[] = [];
    let isTokenSent = token !== undefined;
    for (let count = 0; ; count += 1) {
      isTokenSent &&= url.origin === base.origin;
      const headers: Record<string, string> = { "Accept-Encoding": "identity" };
      if (options.range !== undefined) headers["Range"] = options.range;
      if (isTokenSent) headers["Authorization"] = `Bearer ${token}`;
      const watch = new IdleWatch(idleMs, options.signal);
      const outcome = await request(url, { method, headers, watch, signal: options.signal });
      if ("again" in outcome) return outcome;
      const { response } = outcome;
      if (response.status < 300 || response.status > 399) return { response, url, watch, hops };
      const target = redirectTarget(response.headers.get("location"), url, base);
      if (method === "HEAD" && target.origin !== base.origin) return { response, url, watch, hops };
      hops.unshift(response.headers);
      watch.stop();
      await response.body?.cancel();
      if (count === REDIRECTS_MAX) throw lie(start, `redirects more than ${REDIRECTS_MAX} times`);
      url = target;
    }
  }

  /** What a status means where it is not the one hoped for. */
  #failure(
    { response, url }: Answer,
    isGood: boolean,
  ): { again: MferenceError; afterMs?: number } | undefined {
    const { status, headers } = response;
    if (isGood) return undefined;
    if (TRANSIENT.has(status)) {
      const afterMs = retryAfterMs(headers.get("retry-after"), this.#options.retry.clock.now());
      const again = new MferenceError("install.network", `${redacted(url)} answered ${status}`);
      return afterMs === undefined ? { again } : { again, afterMs };
    }
    if (status === 401 || status === 403) throw denied(url, status);
    if (status === 200) throw lie(url, "sent the whole file where a part was asked for");
    if (status === 416)
      throw lie(url, "says that the part asked for is outside the file (416); it was changed");
    throw lie(url, `answered ${status}`);
  }

  #checkPart(file: RemoteFile, part: RemotePart, { headers }: Response): void {
    const encoding = headers.get("content-encoding") ?? "identity";
    if (encoding !== "identity") throw lie(file.url, `sent its bytes encoded as ${encoding}`);
    const end = part.offset + part.bytes - 1;
    const range = `bytes ${part.offset}-${end}/${file.sizeBytes}`;
    const found = headers.get("content-range");
    if (found !== range) throw lie(file.url, `sent the range "${found}"; asked for was "${range}"`);
    const length = headers.get("content-length");
    if (length !== String(part.bytes)) {
      throw lie(
        file.url,
        `announced ${length ?? "no number of"} bytes; asked for were ${part.bytes}`,
      );
    }
    this.#checkTag(file, headers.get("etag"));
  }

  #checkTag(file: RemoteFile, tag: string | null): void {
    const strong = /^"(.*)"$/.exec(tag ?? "")?.[1]?.toLowerCase();
    if (file.contentTag !== undefined && strong !== file.contentTag) {
      throw lie(file.url, `sent bytes tagged ${tag}; the file's hash is ${file.contentTag}`);
    }
    if (strong === undefined) return;
    const first = this.#tags.get(file.name) ?? strong;
    if (first !== strong)
      throw lie(file.url, `was changed meanwhile: its tag was ${first}, now it is ${strong}`);
    this.#tags.set(file.name, strong);
  }
}

async function request(
  url: URL,
  options: {
    readonly method: string;
    readonly headers: Record<string, string>;
    readonly watch: IdleWatch;
    readonly signal: AbortSignal | undefined;
  },
): Promise<{ readonly response: Response } | { readonly again: MferenceError }> {
  const { method, headers, watch, signal } = options;
  try {
    const response = await fetch(url, {
      method,
      headers,
      redirect: "manual",
      decompress: false,
      signal: watch.signal,
    });
    watch.touch();
    return { response };
  } catch (error) {
    watch.stop();
    signal?.throwIfAborted();
    return { again: lost(url, watch, error) };
  }
}

async function readBody(
  { response, url, watch }: Answer,
  options: {
    readonly part: RemotePart;
    readonly sink: Sink;
    readonly signal: AbortSignal | undefined;
  },
): Promise<Attempt<void>> {
  const { part, sink, signal } = options;
  let done = 0;
  const reader = response.body?.getReader();
  for (;;) {
    let chunk: Uint8Array | undefined;
    try {
      chunk = (await reader?.read())?.value;
    } catch (error) {
      signal?.throwIfAborted();
      return { again: lost(url, watch, error) };
    }
    signal?.throwIfAborted();
    if (chunk === undefined) break;
    watch.touch();
    if (done + chunk.length > part.bytes) {
      await reader?.cancel().catch(() => undefined);
      throw lie(url, `sent more than the ${part.bytes} bytes asked for`);
    }
    sink(chunk, done);
    done += chunk.length;
  }
  if (done === part.bytes) return { value: undefined };
  const sentence = `${redacted(url)} ended after ${done} of ${part.bytes} bytes`;
  return { again: new MferenceError("install.network", sentence) };
}

/** The Hub says what it knows of a file where it redirects, and not always again where that leads. */
function fileOf(url: URL, { response, hops }: Answer): RemoteFile {
  const { headers, status } = response;
  const said = (name: string): string | undefined =>
    [headers, ...hops].map((hop) => hop.get(name)).find((value) => value !== null) ?? undefined;
  const commit = said("x-repo-commit") ?? "";
  if (!COMMIT.test(commit)) throw lie(url, `names no commit, but "${commit.slice(0, 60)}"`);
  const own = status < 300 ? headers.get("content-length") : null;
  const size = said("x-linked-size") ?? own ?? "";
  const sizeBytes = /^\d{1,16}$/.test(size) ? Number(size) : Number.NaN;
  if (!Number.isSafeInteger(sizeBytes)) throw lie(url, `says its size is "${size.slice(0, 60)}"`);
  const contentTag = said("x-xet-hash")?.toLowerCase();
  const name = url.pathname;
  return { name, url, sizeBytes, commit, ...(contentTag === undefined ? {} : { contentTag }) };
}

function lost(url: URL, watch: IdleWatch, error: unknown): MferenceError {
  const sentence = sentenceOf(error).replaceAll(url.href, redacted(url));
  const why = watch.hasExpired ? "it was silent for too long" : sentence;
  return new MferenceError("install.network", `lost ${redacted(url)}: ${why}`);
}

/** A server that does not keep to the protocol, or not to what it said before. */
function lie(url: URL, what: string): MferenceError {
  return new MferenceError("install.remote", `${redacted(url)} ${what}`);
}

function denied(url: URL, status: number): MferenceError {
  return new MferenceError(
    "install.auth",
    `${redacted(url)} answered ${status}: it does not let you have this file; accept the model's terms on its page if there are any, set HF_TOKEN to a token that may read it, or HF_ENDPOINT to a mirror`,
  );
}
