import { MferenceError } from "../util/errors.ts";
import { familyOfConfig, type AnyFamily } from "../families/index.ts";
import { sha256 } from "../format/digest.ts";
import { parseJson, type JsonValue } from "../format/json.ts";
import { METADATA_BYTES_MAX, SIDECARS } from "../format/paths.ts";
import type { Quantization } from "../format/quant.ts";
import { HEADER_BYTES_MAX, parseSafetensorsHeader, PREFIX_BYTES } from "../format/safetensors.ts";
import type { HttpSource, RemoteFile } from "./http.ts";
import {
  addTensors,
  checkListing,
  checkTextSide,
  INDEX_FILE,
  parseIndex,
  quantizationOf,
  type ShardTensor,
  type SourceSidecar,
} from "./source.ts";

/**
 * A checkpoint in a repository of the Hub: index, configuration and the headers of the shards, all of
 * one commit and each within its cap. Owns the addresses of its files; fetches no tensor.
 */
export interface RemoteSource {
  /** `owner/name`. */
  readonly repository: string;
  /** A commit, or the name of a branch. */
  readonly revision: string;
  /** What the index must hash to; absent only where the user accepts whatever is there. */
  readonly indexSha256?: string | undefined;
}

/** What a download is planned from. */
export interface RemoteCheckpoint {
  readonly family: AnyFamily;
  readonly config: JsonValue;
  readonly configBytes: Uint8Array;
  readonly quantization: Quantization;
  readonly tensors: ReadonlyMap<string, ShardTensor>;
  readonly shards: ReadonlyMap<string, RemoteFile>;
  /** Text files that are there; config.json is not among them. */
  readonly textFiles: ReadonlyMap<string, RemoteFile>;
  readonly sourceSha256: string;
  readonly commit: string;
}

export interface HubOptions {
  readonly http: HttpSource;
  readonly base: URL;
  readonly signal: AbortSignal | undefined;
  /** Called with each file that was read. */
  readonly onFile?: (done: number, total: number) => void;
}

const REPOSITORY = /^[A-Za-z0-9][\w.-]{0,95}\/[A-Za-z0-9][\w.-]{0,95}$/;
const REVISION = /^[A-Za-z0-9][\w.-]{0,99}$/;
const COMMIT = /^[0-9a-f]{40}$/;

/**
 * Checks the name of a repository and a revision.
 *
 * @throws MferenceError "usage.value"
 */
export function checkRepository({ repository, revision }: RemoteSource): void {
  if (!REPOSITORY.test(repository) || repository.includes("..")) {
    throw new MferenceError(
      "usage.value",
      `"${repository}" names no repository; expected owner/name`,
    );
  }
  if (!REVISION.test(revision) || revision.includes("..")) {
    throw new MferenceError("usage.value", `"${revision}" names no revision`);
  }
}

/**
 * Reads everything of a repository that a plan needs.
 *
 * @throws MferenceError "install.network", "install.remote", "install.auth", "install.source",
 * "model.family", "format.*"
 */
export async function readRemote(
  source: RemoteSource,
  options: HubOptions,
): Promise<RemoteCheckpoint> {
  checkRepository(source);
  const repository = new Repository(source, options);
  const index = await repository.small(INDEX_FILE, METADATA_BYTES_MAX.sourceIndex);
  const sourceSha256 = sha256(index);
  if (source.indexSha256 !== undefined && sourceSha256 !== source.indexSha256.toLowerCase()) {
    throw new MferenceError(
      "install.remote",
      `the index of ${source.repository} has the digest ${sourceSha256}; expected ${source.indexSha256}: this is not the checkpoint meant`,
    );
  }
  const configBytes = await repository.small("config.json", METADATA_BYTES_MAX.config);
  const what = `config.json of ${source.repository}`;
  const config = parseJson(configBytes, { code: "format.config", what });
  const family = familyOfConfig(config);
  const quantization = quantizationOf(family, config, what);
  const listings = parseIndex(index, `${INDEX_FILE} of ${source.repository}`);
  const shards = new Map<string, RemoteFile>();
  const tensors = new Map<string, ShardTensor>();
  for (const [name, entries] of listings) {
    const shard = await repository.file(name);
    const before = tensors.size;
    addTensors(tensors, await repository.header(name, shard), name);
    checkListing(name, { entries, tensors, count: tensors.size - before });
    shards.set(name, shard);
    options.onFile?.(shards.size, listings.size);
  }
  const textFiles = await findTextFiles(repository, source.repository);
  const { commit } = repository;
  return {
    family,
    config,
    configBytes,
    quantization,
    tensors,
    shards,
    textFiles,
    sourceSha256,
    commit,
  };
}

async function findTextFiles(
  repository: Repository,
  where: string,
): Promise<ReadonlyMap<string, RemoteFile>> {
  const found = new Map<string, RemoteFile>();
  for (const { name, bytesMax, need } of SIDECARS) {
    if (need === "config") continue;
    const file = await repository.find(name);
    if (file === undefined) continue;
    checkSize(file, bytesMax);
    found.set(name, file);
  }
  checkTextSide([...found.keys()], where);
  return found;
}

/**
 * The small files of a checkpoint, fetched whole.
 *
 * @throws MferenceError as `readRemote`
 */
export async function fetchSidecars(
  checkpoint: RemoteCheckpoint,
  { http, signal }: Pick<HubOptions, "http" | "signal">,
): Promise<readonly SourceSidecar[]> {
  const sidecars: SourceSidecar[] = [{ name: "config.json", bytes: checkpoint.configBytes }];
  for (const [name, file] of checkpoint.textFiles) {
    sidecars.push({ name, bytes: await fetchWhole(http, file, signal) });
  }
  return sidecars;
}

async function fetchWhole(
  http: HttpSource,
  file: RemoteFile,
  signal: AbortSignal | undefined,
): Promise<Uint8Array> {
  return await fetchPart(http, { file, offset: 0, bytes: file.sizeBytes }, signal);
}

async function fetchPart(
  http: HttpSource,
  part: { readonly file: RemoteFile; readonly offset: number; readonly bytes: number },
  signal: AbortSignal | undefined,
): Promise<Uint8Array> {
  const bytes = new Uint8Array(part.bytes);
  if (part.bytes === 0) return bytes;
  await http.fetch(part.file, part, { sink: (chunk, at) => bytes.set(chunk, at), signal });
  return bytes;
}

function checkSize(file: RemoteFile, bytesMax: number): void {
  if (file.sizeBytes <= bytesMax) return;
  throw new MferenceError(
    "install.remote",
    `${file.url.pathname} has ${file.sizeBytes} bytes; at most ${bytesMax} are accepted`,
  );
}

/** Files of one repository at one commit: the first answer fixes it. */
class Repository {
  readonly #source: RemoteSource;
  readonly #options: HubOptions;
  #commit: string | undefined;

  constructor(source: RemoteSource, options: HubOptions) {
    this.#source = source;
    this.#options = options;
  }

  get commit(): string {
    return this.#commit ?? this.#source.revision;
  }

  /** The file, once it is known to be of the commit meant; undefined when there is none. */
  async find(name: string): Promise<RemoteFile | undefined> {
    const { base, http, signal } = this.#options;
    const place = `${this.#source.repository}/resolve/${this.commit}/${encodeURIComponent(name)}`;
    const url = new URL(`${base.href.replace(/\/$/, "")}/${place}`);
    const file = await http.find(url, signal);
    if (file === undefined) return undefined;
    const expected = COMMIT.test(this.commit) ? this.commit : file.commit;
    if (file.commit !== expected) {
      throw new MferenceError(
        "install.remote",
        `${name} of ${this.#source.repository} is of the commit ${file.commit}; expected ${expected}`,
      );
    }
    this.#commit = expected;
    return file;
  }

  async file(name: string): Promise<RemoteFile> {
    const file = await this.find(name);
    if (file !== undefined) return file;
    throw new MferenceError(
      "install.remote",
      `${this.#source.repository} has no ${name} at ${this.commit}`,
    );
  }

  async small(name: string, bytesMax: number): Promise<Uint8Array> {
    const file = await this.file(name);
    checkSize(file, bytesMax);
    if (file.sizeBytes === 0) {
      throw new MferenceError("install.remote", `${name} of ${this.#source.repository} is empty`);
    }
    // The first answer may have fixed the commit: what follows is asked of it.
    return await fetchWhole(this.#options.http, file, this.#options.signal);
  }

  async header(name: string, file: RemoteFile): Promise<ReturnType<typeof parseSafetensorsHeader>> {
    const { http, signal } = this.#options;
    const fail = (what: string): never => {
      throw new MferenceError(
        "format.safetensors",
        `${name} of ${this.#source.repository} ${what}`,
      );
    };
    if (file.sizeBytes < PREFIX_BYTES) fail(`has ${file.sizeBytes} bytes, less than its prefix`);
    const prefix = await fetchPart(http, { file, offset: 0, bytes: PREFIX_BYTES }, signal);
    const length = new DataView(prefix.buffer).getBigUint64(0, true);
    const most = Math.min(HEADER_BYTES_MAX, file.sizeBytes - PREFIX_BYTES);
    if (length === 0n || length > BigInt(most)) {
      fail(`declares a header of ${length} bytes; expected 1 to ${most}`);
    }
    const part = { file, offset: PREFIX_BYTES, bytes: Number(length) };
    const header = await fetchPart(http, part, signal);
    return parseSafetensorsHeader(header, { path: name, sizeBytes: file.sizeBytes });
  }
}
