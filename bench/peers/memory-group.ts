/**
 * A control group with a memory limit, made for one process and removed after it: version 1 where its
 * controller is mounted, else version 2. Needs the right to make groups, which is root's as a rule. The pages
 * of files count against the limit, for whoever touches them first.
 */
import fs from "node:fs";
import path from "node:path";

/** What a group has counted since it was made. */
export interface GroupCounts {
  /** Pages of files and all. */
  readonly peakBytes: number;
  /** Memory now that is no file's. */
  readonly privateBytes: number;
  /** Pages of files that had been pushed out and were read again. */
  readonly refaultedBytes: number;
  readonly majorFaults: number;
  /** Processes ended because the limit was reached. */
  readonly kills: number;
}

/** How a version of control groups names things. */
interface Version {
  readonly root: string;
  readonly limit: string;
  readonly peak: string;
  readonly privateKey: string;
  readonly kills: string;
}

const ROOT = "/sys/fs/cgroup";
const VERSION_1: Version = {
  root: `${ROOT}/memory`,
  limit: "memory.limit_in_bytes",
  peak: "memory.max_usage_in_bytes",
  privateKey: "rss",
  kills: "memory.oom_control",
};
const VERSION_2: Version = {
  root: ROOT,
  limit: "memory.max",
  peak: "memory.peak",
  privateKey: "anon",
  kills: "memory.events",
};
const PAGE_BYTES = 4096;

export class MemoryGroup {
  readonly #folder: string;
  readonly #version: Version;

  constructor(limitBytes: number) {
    this.#version = versionOfSystem();
    this.#folder = path.join(this.#version.root, `mference-${process.pid}`);
    fs.mkdirSync(this.#folder);
    this.#write(this.#version.limit, String(limitBytes));
  }

  /** A command that joins the group and becomes `command`. */
  enter(command: readonly string[]): string[] {
    const members = path.join(this.#folder, "cgroup.procs");
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', members, ...command];
  }

  counts(): GroupCounts {
    const { peak, privateKey, kills } = this.#version;
    return {
      peakBytes: Number(this.#read(peak)),
      privateBytes: this.#value("memory.stat", privateKey),
      refaultedBytes: PAGE_BYTES * this.#value("memory.stat", "workingset_refault_file"),
      majorFaults: this.#value("memory.stat", "pgmajfault"),
      kills: this.#value(kills, "oom_kill"),
    };
  }

  /** Only when its process has ended. */
  remove(): void {
    // Version 1 keeps a group alive for the sake of the pages it was charged for.
    if (this.#version === VERSION_1) this.#write("memory.force_empty", "0");
    fs.rmdirSync(this.#folder);
  }

  #value(file: string, key: string): number {
    const match = new RegExp(`^${key} (\\d+)$`, "m").exec(this.#read(file));
    return Number(match?.[1] ?? 0);
  }

  #read(name: string): string {
    const file = path.join(this.#folder, name);
    return fs.existsSync(file) ? fs.readFileSync(file, "utf8") : "";
  }

  #write(name: string, text: string): void {
    fs.writeFileSync(path.join(this.#folder, name), text);
  }
}

function versionOfSystem(): Version {
  if (fs.existsSync(path.join(VERSION_1.root, VERSION_1.limit))) return VERSION_1;
  const controllers = path.join(ROOT, "cgroup.subtree_control");
  if (fs.existsSync(controllers)) {
    fs.writeFileSync(controllers, "+memory");
    return VERSION_2;
  }
  throw new Error(
    `no memory controller under ${ROOT}: run without --limit, or where it is mounted`,
  );
}
