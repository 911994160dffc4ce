/**
 * What the machine itself can do, measured by a small program in C: reading memory, reading a file past
 * the system's cache. Beside such figures those of the runtime mean something.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const DISK_BYTES = 600e6;

export class Readers {
  readonly #folder = mkdtempSync(path.join(tmpdir(), "mference-bench-"));

  /** Builds the program into a folder of its own; `remove` deletes it. */
  constructor() {
    const source = path.join(import.meta.dir, "reader.c");
    const flags = ["-O3", "-march=native", "-pthread", "-o", path.join(this.#folder, "reader")];
    const { exitCode } = Bun.spawnSync(["cc", ...flags, source], { stderr: "inherit" });
    if (exitCode !== 0) throw new Error("cc could not build bench/reader.c");
  }

  /** GB/s of reading memory. */
  memory(threads: number): number {
    return this.#run("memory", String(threads));
  }

  /** GB/s of direct reads of an expert's size from scattered places of a file. */
  disk(file: string): number {
    return this.#run("disk", file, String(DISK_BYTES));
  }

  /** Gives the cached pages of files back to the system. */
  drop(files: readonly string[]): void {
    this.#run("drop", ...files);
  }

  remove(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #run(...args: string[]): number {
    const { stdout, exitCode } = Bun.spawnSync([path.join(this.#folder, "reader"), ...args]);
    if (exitCode !== 0) throw new Error(`reader ${args[0]} failed`);
    return Number(stdout.toString());
  }
}
