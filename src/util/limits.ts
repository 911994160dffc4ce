/**
 * How much memory and how many cores this process may use: what the system has free, cut by the limits of
 * the control groups it runs in, version 1 and 2. Reads the system's own files and changes nothing.
 */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

export interface MemoryFacts {
  readonly totalBytes: number;
  /** What can be had without pushing anything out. */
  readonly availableBytes: number;
  /** The tightest limit of the control groups; undefined where there is none. */
  readonly limitBytes: number | undefined;
  /** What this process can have: the smaller of what is available and what its limit leaves. */
  readonly usableBytes: number;
}

/** Where the system's files are; replaced by tests. */
export interface SystemRoots {
  readonly proc: string;
  readonly cgroup: string;
}

const ROOTS: SystemRoots = { proc: "/proc", cgroup: "/sys/fs/cgroup" };
/** A limit of version 1 that means none is a number near 2^63. */
const NO_LIMIT_BYTES = 2 ** 60;

/** The memory that this process may use. */
export function memoryFacts(roots: SystemRoots = ROOTS): MemoryFacts {
  const totalBytes = os.totalmem();
  const meminfo = readText(path.join(roots.proc, "meminfo"));
  const match = /^MemAvailable:\s+(\d+) kB/m.exec(meminfo ?? "");
  const availableBytes = match === null ? os.freemem() : 1024 * Number(match[1]);
  const groups = memoryGroups(roots);
  const limits = groups.map(({ limitBytes }) => limitBytes);
  const rooms = groups.map(({ limitBytes, usedBytes }) => Math.max(0, limitBytes - usedBytes));
  return {
    totalBytes,
    availableBytes,
    limitBytes: limits.length === 0 ? undefined : Math.min(...limits),
    usableBytes: Math.min(availableBytes, ...rooms),
  };
}

/** A control group with a limit, and what of it is taken by more than droppable file pages. */
interface MemoryGroup {
  readonly limitBytes: number;
  readonly usedBytes: number;
}

/** Names of the files in which a version of control groups keeps its figures. */
interface GroupFiles {
  readonly limit: string;
  readonly used: string;
  /** Key of the file pages that can be dropped, in memory.stat. */
  readonly droppable: string;
}

const VERSION_1: GroupFiles = {
  limit: "memory.limit_in_bytes",
  used: "memory.usage_in_bytes",
  droppable: "total_inactive_file",
};
const VERSION_2: GroupFiles = {
  limit: "memory.max",
  used: "memory.current",
  droppable: "inactive_file",
};

/** The groups that hold this process and limit its memory, the ancestors included. */
function memoryGroups({ proc, cgroup }: SystemRoots): MemoryGroup[] {
  const lines = readText(path.join(proc, "self/cgroup"))?.split("\n") ?? [];
  const found: MemoryGroup[] = [];
  for (const line of lines) {
    const [, controllers = "", place = ""] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    if (controllers.split(",").includes("memory")) {
      found.push(...groupsUpwards(path.join(cgroup, "memory"), place, VERSION_1));
    } else if (line.startsWith("0::")) {
      found.push(...groupsUpwards(cgroup, place, VERSION_2));
    }
  }
  return found;
}

function groupsUpwards(root: string, place: string, files: GroupFiles): MemoryGroup[] {
  const parts = place.split("/").filter((part) => part !== "" && part !== "..");
  return Array.from({ length: parts.length + 1 }, (_, depth) => {
    return readGroup(path.join(root, ...parts.slice(0, depth)), files);
  }).filter((group) => group !== undefined);
}

function readGroup(folder: string, files: GroupFiles): MemoryGroup | undefined {
  const limit = readText(path.join(folder, files.limit))?.trim();
  if (limit === undefined || !/^\d+$/.test(limit)) return undefined;
  const limitBytes = Number(limit);
  if (limitBytes >= NO_LIMIT_BYTES) return undefined;
  const used = Number(readText(path.join(folder, files.used)) ?? 0);
  const stat = readText(path.join(folder, "memory.stat")) ?? "";
  const droppable = new RegExp(`^${files.droppable} (\\d+)$`, "m").exec(stat);
  return { limitBytes, usedBytes: Math.max(0, used - Number(droppable?.[1] ?? 0)) };
}

function readText(file: string): string | undefined {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}
