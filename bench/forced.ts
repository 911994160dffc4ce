/**
 * Forced token ids and the steps that compute them, for measurements of a full-size package. Ids are forced,
 * because greedy decoding of random weights repeats one id and flatters the cache.
 */
import type { Model } from "../src/engine/model.ts";
import type { Session } from "../src/engine/session.ts";
import { fractions, permutation } from "./weights.ts";

/** "following" ids share experts as the package was written to, "scattered" ones only by chance. */
export const STREAMS = ["following", "scattered"] as const;
export type StreamName = (typeof STREAMS)[number];

/** What ids are drawn from, and which of several draws. */
export interface Draw {
  readonly vocabSize: number;
  readonly run: number;
}

/** The same ids for the same arguments. */
export function idsOf(stream: StreamName, count: number, { vocabSize, run }: Draw): Uint32Array {
  const random = fractions(`${stream}/${run}`);
  if (stream === "scattered") {
    return Uint32Array.from(permutation(vocabSize, random).slice(0, count));
  }
  const first = Math.floor(random() * (vocabSize - count));
  return Uint32Array.from({ length: count }, (_, i) => first + i);
}

const GREEDY = {
  options: { temperature: 0, topK: undefined, topP: 1, repetitionPenalty: 1, seed: 0n },
  index: 0,
  seen: new Uint32Array(0),
} as const;

/** Computes ids and chooses a token, as generating does; what is chosen is ignored. */
export async function compute(session: Session, ids: Uint32Array): Promise<void> {
  await session.extend(ids);
  await session.choose(GREEDY);
}

/** Brings every expert into its slot where there is one for each, and something into each else. */
export async function fill(session: Session): Promise<void> {
  const { slots, shape } = session.model;
  // One chunk leaves hardly an expert untouched, and a hit rate below 100 % would tell.
  const draw = { vocabSize: shape.vocabSize, run: 0 };
  if (slots === shape.expertCount) return await compute(session, idsOf("scattered", 128, draw));
  for (const id of idsOf("scattered", 2, draw)) await compute(session, Uint32Array.of(id));
}

/** What has been counted since the model was loaded. */
export const countersOf = ({ model }: Session) => ({
  ...model.experts.counters,
  waitSeconds: model.stream.waitSeconds,
});

export const expertFilesOf = (model: Model): string[] =>
  model.package.layers.map((layer) => layer.path);

/**
 * Bytes of weights that one decode step reads: all common ones once, and the chosen experts. Of an embedding
 * that is not the head as well it reads a row.
 */
export function bytesPerToken(model: Model): number {
  const { package: opened, shape } = model;
  const experts = opened.layers.filter((layer) => layer.subTensors !== undefined).length;
  const unread = opened.manifest.arch.tieWordEmbeddings
    ? []
    : [...opened.resident.values()].filter(({ name }) => name.endsWith("embed_tokens.weight"));
  const embeddingBytes = unread
    .flatMap(({ bytes, scales, biases }) => [bytes, scales?.bytes ?? 0, biases?.bytes ?? 0])
    .reduce((a, b) => a + b, 0);
  const common = opened.weights.residentBytes - embeddingBytes;
  return common + experts * shape.expertsPerToken * opened.strideBytes;
}
