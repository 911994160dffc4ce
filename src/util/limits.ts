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
  /** False where the system does not say what is available, but only what is free. */
  readonly isExact: boolean;
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
    isExact: match !== null,
  };
}

/**
 * Bytes of file pages that were pushed out and had to be read again, since some time in the past: of the
 * control groups that hold this process, or of the system where none limits it. 0 where nobody counts.
 */
export function refaultedBytes(roots: SystemRoots = ROOTS): number {
  const group = memoryGroups(roots).at(-1);
  const text = group?.stat ?? readText(path.join(roots.proc, "vmstat")) ?? "";
  return PAGE_BYTES * statValue(text, `${group?.prefix ?? ""}workingset_refault_file`);
}

const PAGE_BYTES = 4096;

function statValue(stat: string, key: string): number {
  return Number(new RegExp(`^${key} (\\d+)$`, "m").exec(stat)?.[1] ?? 0);
}

/** A control group with a limit, and what of it is taken by more than droppable file pages. */
interface MemoryGroup {
  readonly limitBytes: number;
  readonly usedBytes: number;
  /** Its memory.stat. */
  readonly stat: string;
  readonly prefix: string;
}

/** Names of the files in which a version of control groups keeps its figures. */
interface GroupFiles {
  readonly limit: string;
  readonly used: string;
  /** What the keys of memory.stat begin with that count the groups below too. */
  readonly prefix: string;
}

const VERSION_1: GroupFiles = {
  limit: "memory.limit_in_bytes",
  used: "memory.usage_in_bytes",
  prefix: "total_",
};
const VERSION_2: GroupFiles = {
  limit: "memory.max",
  used: "memory.current",
  prefix: "",
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
  const { prefix } = files;
  // Active pages of files can be dropped as well, if later.
  const droppable = ["inactive_file", "active_file"].map((key) => statValue(stat, prefix + key));
  const usedBytes = Math.max(
    0,
    droppable.reduce((left, bytes) => left - bytes, used),
  );
  return { limitBytes, usedBytes, stat, prefix };
}

function readText(file: string): string | undefined {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}
