/** Memory of this process, measured. */
import { readFileSync } from "node:fs";

/**
 * The largest physical memory that the process has had, in bytes. Read from the system on Linux, where
 * it counts every thread and every library; elsewhere from the runtime's own account.
 */
export function peakMemoryBytes(): number {
  return 1024 * (statusValue("VmHWM") ?? process.resourceUsage().maxRSS);
}

/** The physical memory that the process has now, in bytes. */
export function currentMemoryBytes(): number {
  const resident = statusValue("VmRSS");
  return resident === undefined ? process.memoryUsage.rss() : 1024 * resident;
}

/** A line of /proc/self/status in kibibytes; undefined where there is no such file. */
function statusValue(name: string): number | undefined {
  if (process.platform !== "linux") return undefined;
  const status = readFileSync("/proc/self/status", "utf8");
  const match = new RegExp(`^${name}:\\s+(\\d+) kB`, "m").exec(status);
  return match === null ? undefined : Number(match[1]);
}
