import { sentenceOf } from "../util/errors.ts";
import { addPieces, type HashAnswer, type HashRequest } from "./hashing.ts";

/** The thread of `HashThreads`: hashes pieces of open files in the order in which they are named. */
declare const self: Worker;

const hashers = new Map<number, Bun.CryptoHasher>();

function answer({ job, pieces, isLast }: HashRequest): HashAnswer {
  const hasher = hashers.get(job) ?? new Bun.CryptoHasher("sha256");
  hashers.set(job, hasher);
  try {
    addPieces(hasher, pieces);
  } catch (error) {
    hashers.delete(job);
    return { failure: sentenceOf(error) };
  }
  if (!isLast) return {};
  hashers.delete(job);
  return { digest: hasher.digest("hex") };
}

self.addEventListener("message", ({ data }: MessageEvent<HashRequest>) => {
  self.postMessage(answer(data));
});
