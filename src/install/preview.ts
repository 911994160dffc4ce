import { EXPERTS_FOLDER, WEIGHTS_FILE } from "../format/paths.ts";
import { UNKNOWN_MODEL, pinOf } from "./assemble.ts";
import { HttpSource } from "./http.ts";
import { readRemote, type RemoteSource } from "./hub.ts";
import { planInstall, type InstallPlan } from "./plan.ts";
import { planRanges } from "./ranges.ts";
import { TRANSFER_LIMITS } from "./remote.ts";
import { openCheckpoint } from "./source.ts";

/** What an install would do, from index and headers alone. Writes nothing. */
export interface Preview {
  readonly family: string;
  readonly modelId: string;
  /** SHA-256 of the index, or of the single file. */
  readonly sourceSha256: string;
  /** Of a repository. */
  readonly commit?: string;
  readonly rangeCount: number;
  /** Bytes of the ranges. */
  readonly sourceBytes: number;
  /** Of these, bytes that no tensor of the package needs. */
  readonly gapBytes: number;
  /** Bytes of the files that the ranges fill. */
  readonly outputBytes: number;
  readonly outputs: InstallPlan["outputs"];
  readonly residentCount: number;
  readonly droppedCount: number;
  readonly strideBytes: number;
  /** Where each tensor of the common file and each part of an expert goes. */
  readonly places: readonly TensorPlace[];
}

export interface TensorPlace {
  readonly name: string;
  readonly file: string;
  readonly offset: number;
  readonly bytes: number;
  /** Distance to the same part of the next expert. */
  readonly strideBytes?: number;
}

/** Plans the install of a repository. */
export async function previewRemote(
  source: RemoteSource,
  options: {
    readonly base: URL;
    readonly token?: string | undefined;
    readonly signal?: AbortSignal | undefined;
  },
): Promise<Preview> {
  const { base, token, signal } = options;
  const { idleMs, retry } = TRANSFER_LIMITS;
  const http = new HttpSource({ base, token, idleMs, retry });
  const checkpoint = await readRemote(source, { http, base, signal });
  const { commit, family, sourceSha256 } = checkpoint;
  const identity = { family: family.id, modelId: modelIdOf(checkpoint), sourceSha256, commit };
  return { ...identity, ...describe(planInstall(checkpoint)) };
}

/** Plans the install of a folder. */
export async function previewLocal(
  directory: string,
  signal: AbortSignal | undefined,
): Promise<Preview> {
  const checkpoint = await openCheckpoint(directory, { signal });
  try {
    const { family, sourceSha256 } = checkpoint;
    const identity = { family: family.id, modelId: modelIdOf(checkpoint), sourceSha256 };
    return { ...identity, ...describe(planInstall(checkpoint)) };
  } finally {
    checkpoint.close();
  }
}

function modelIdOf(source: Parameters<typeof pinOf>[0]): string {
  return pinOf(source)?.modelId ?? UNKNOWN_MODEL;
}

function describe(plan: InstallPlan): Omit<Preview, "family" | "modelId" | "sourceSha256"> {
  const ranges = planRanges(plan);
  const sourceBytes = ranges.reduce((total, { bytes }) => total + bytes, 0);
  return {
    rangeCount: ranges.length,
    sourceBytes,
    gapBytes: sourceBytes - wantedBytes(plan),
    outputBytes: plan.outputs.reduce((total, { bytes }) => total + bytes, 0),
    outputs: plan.outputs,
    residentCount: plan.resident.entries.size,
    droppedCount: plan.droppedCount,
    strideBytes: plan.layout.strideBytes,
    places: [...residentPlaces(plan), ...expertPlaces(plan)],
  };
}

/** A byte that goes to two places comes once. */
function wantedBytes({ copies }: InstallPlan): number {
  const sources = new Map(copies.map((copy) => [`${copy.shard}/${copy.sourceOffset}`, copy.bytes]));
  return sources.values().reduce((total, bytes) => total + bytes, 0);
}

function residentPlaces({ resident }: InstallPlan): TensorPlace[] {
  return [...resident.entries.values()].map(({ name, offset, bytes, scales, biases }) => ({
    name,
    file: WEIGHTS_FILE,
    offset,
    bytes: bytes + (scales?.bytes ?? 0) + (biases?.bytes ?? 0),
  }));
}

function expertPlaces({ layout }: InstallPlan): TensorPlace[] {
  return layout.layers.flatMap(({ index, file, subTensors }) =>
    Object.entries(subTensors ?? {}).map(([part, { offset, bytes }]) => ({
      name: `layer ${index}, each expert's ${part}`,
      file: `${EXPERTS_FOLDER}/${file}`,
      offset,
      bytes,
      strideBytes: layout.strideBytes,
    })),
  );
}
