import fs from "node:fs";
import { MferenceError } from "../util/errors.ts";
import { HASH_TILE_BYTES, type HashOptions } from "../format/digest.ts";

/**
 * SHA-256 of what lies in open files, on threads of its own, so that hashing goes on beside fetching and
 * writing. Small amounts are hashed at once where they are asked for: a thread costs more than they do.
 */
export type HashPiece = Uint8Array | FilePiece;

/** Bytes of an open file. */
export interface FilePiece {
  readonly descriptor: number;
  readonly path: string;
  readonly offset: number;
  readonly bytes: number;
}

/** To a thread: the next pieces of a hash. */
export interface HashRequest {
  readonly job: number;
  readonly pieces: readonly HashPiece[];
  readonly isLast: boolean;
}

/** From a thread, for each request in turn; the digest when it was the last of its hash. */
export interface HashAnswer {
  readonly digest?: string;
  /** What went wrong. */
  readonly failure?: string;
}

/** More of them need memory and bring nothing: the disk and the line are slower than two. */
export const HASH_THREADS = 2;
const INLINE_BYTES = 4_194_304;
/** Between two looks at the signal. */
const BATCH_BYTES = 33_554_432;

/**
 * Adds pieces to a hash. The descriptors may be of another thread: they belong to the process.
 *
 * @throws MferenceError "install.io" when a file ends before its piece
 */
export function addPieces(hasher: Bun.CryptoHasher, pieces: readonly HashPiece[]): void {
  const tile = new Uint8Array(HASH_TILE_BYTES);
  for (const piece of pieces) {
    if (piece instanceof Uint8Array) {
      hasher.update(piece);
      continue;
    }
    const { descriptor, path, offset, bytes } = piece;
    for (let done = 0; done < bytes;) {
      const wanted = Math.min(tile.length, bytes - done);
      const count = fs.readSync(descriptor, tile, 0, wanted, offset + done);
      if (count === 0) {
        throw new MferenceError("install.io", `${path} ended early while it was read back`);
      }
      hasher.update(tile.subarray(0, count));
      done += count;
    }
  }
}

export class HashThreads {
  readonly #threads: HashThread[] = [];
  #lastJob = 0;

  /**
   * The digest of all pieces, in lower-case hex.
   *
   * @throws MferenceError "install.io"; the signal's reason when it comes
   */
  async digest(pieces: Iterable<HashPiece>, options: HashOptions = {}): Promise<string> {
    let thread: HashThread | undefined;
    this.#lastJob += 1;
    const job = this.#lastJob;
    const batches = [...batchesOf(pieces)];
    if (batches.length === 1 && sizeOf(batches[0]!) <= INLINE_BYTES) {
      options.signal?.throwIfAborted();
      const hasher = new Bun.CryptoHasher("sha256");
      addPieces(hasher, batches[0]!);
      options.onBytes?.(sizeOf(batches[0]!));
      return hasher.digest("hex");
    }
    let digest: string | undefined;
    for (const [index, batch] of batches.entries()) {
      options.signal?.throwIfAborted();
      thread ??= this.#leastBusy();
      const isLast = index === batches.length - 1;
      digest = await thread.send({ job, pieces: batch, isLast });
      options.onBytes?.(sizeOf(batch));
    }
    return digest!;
  }

  #leastBusy(): HashThread {
    const idle = this.#threads.find((thread) => thread.waitingCount === 0);
    if (idle !== undefined) return idle;
    if (this.#threads.length < HASH_THREADS) {
      const thread = new HashThread();
      this.#threads.push(thread);
      return thread;
    }
    return this.#threads.toSorted((a, b) => a.waitingCount - b.waitingCount)[0]!;
  }

  /** Ends the threads; what is still being hashed fails. */
  close(): void {
    for (const thread of this.#threads.splice(0)) thread.close();
  }
}

class HashThread {
  readonly #worker = new Worker(new URL("./hash-worker.ts", import.meta.url).href);
  /** In the order of the requests, which is that of the answers. */
  readonly #waiting: ReturnType<typeof Promise.withResolvers<string | undefined>>[] = [];
  #dead: MferenceError | undefined;

  constructor() {
    this.#worker.addEventListener("message", ({ data }: MessageEvent<HashAnswer>) => {
      const waiting = this.#waiting.shift();
      if (data.failure === undefined) waiting?.resolve(data.digest);
      else waiting?.reject(new MferenceError("install.io", data.failure));
    });
    this.#worker.addEventListener("error", ({ message }) => this.#die(message));
  }

  get waitingCount(): number {
    return this.#waiting.length;
  }

  async send(request: HashRequest): Promise<string | undefined> {
    if (this.#dead !== undefined) throw this.#dead;
    const waiting = Promise.withResolvers<string | undefined>();
    this.#waiting.push(waiting);
    this.#worker.postMessage(request);
    return await waiting.promise;
  }

  close(): void {
    this.#die("it was closed");
    this.#worker.terminate();
  }

  #die(why: string): void {
    this.#dead ??= new MferenceError("install.io", `the thread that hashes ended: ${why}`);
    for (const waiting of this.#waiting.splice(0)) waiting.reject(this.#dead);
  }
}

function sizeOf(pieces: readonly HashPiece[]): number {
  return pieces.reduce(
    (sum, piece) => sum + (piece instanceof Uint8Array ? piece.length : piece.bytes),
    0,
  );
}

/** Groups pieces so that a thread is never away for long. */
function* batchesOf(pieces: Iterable<HashPiece>): Generator<readonly HashPiece[]> {
  let batch: HashPiece[] = [];
  let room = BATCH_BYTES;
  for (const piece of pieces) {
    if (piece instanceof Uint8Array) {
      batch.push(piece);
      continue;
    }
    for (let done = 0; done < piece.bytes;) {
      const bytes = Math.min(room, piece.bytes - done);
      batch.push({ ...piece, offset: piece.offset + done, bytes });
      done += bytes;
      room -= bytes;
      if (room > 0) continue;
      yield batch;
      batch = [];
      room = BATCH_BYTES;
    }
  }
  yield batch;
}
