import { afterEach, beforeEach, expect, test } from "bun:test";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { memoryFacts, refaultedBytes, type SystemRoots } from "../../src/util/limits.ts";

let roots: SystemRoots;
beforeEach(() => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "mference-limits-"));
  roots = { proc: path.join(folder, "proc"), cgroup: path.join(folder, "cgroup") };
  put("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    8000000 kB\n");
});
afterEach(() => fs.rmSync(path.dirname(roots.proc), { recursive: true }));

function put(file: string, text: string): void {
  const target = path.join(path.dirname(roots.proc), file);
  fs.mkdirSync(path.dirname(target), { recursive: true });
  fs.writeFileSync(target, text);
}

const AVAILABLE = 8_192_000_000;

test("without control groups everything available is usable", () => {
  expect(memoryFacts(roots)).toMatchObject({
    availableBytes: AVAILABLE,
    limitBytes: undefined,
    usableBytes: AVAILABLE,
  });
});

test("version 1: the tightest group above counts, its droppable pages do not", () => {
  put("proc/self/cgroup", "5:cpu:/\n4:memory:/a/b\n0::/\n");
  put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("cgroup/memory/a/memory.limit_in_bytes", "2000000000\n");
  put("cgroup/memory/a/memory.usage_in_bytes", "900000000\n");
  put(
    "cgroup/memory/a/memory.stat",
    "total_inactive_file 300000000\ntotal_active_file 100000000\n",
  );
  put("cgroup/memory/a/b/memory.limit_in_bytes", "3000000000\n");
  put("cgroup/memory/a/b/memory.usage_in_bytes", "800000000\n");
  expect(memoryFacts(roots)).toMatchObject({ limitBytes: 2e9, usableBytes: 1.5e9 });
});

test("version 2: max means no limit", () => {
  put("proc/self/cgroup", "0::/a\n");
  put("cgroup/memory.max", "max\n");
  expect(memoryFacts(roots).limitBytes).toBeUndefined();
  put("cgroup/a/memory.max", "1000000\n");
  put("cgroup/a/memory.current", "5000000\n");
  put("cgroup/a/memory.stat", "file 1\ninactive_file 10\n");
  expect(memoryFacts(roots)).toMatchObject({ limitBytes: 1e6, usableBytes: 0 });
});

test("file pages that had to be read again are counted by the innermost group, else by the system", () => {
  expect(refaultedBytes(roots)).toBe(0);
  put("proc/vmstat", "nr_free_pages 7\nworkingset_refault_file 3\n");
  expect(refaultedBytes(roots)).toBe(3 * 4096);
  put("proc/self/cgroup", "4:memory:/a\n");
  put("cgroup/memory/a/memory.limit_in_bytes", "2000000000\n");
  put(
    "cgroup/memory/a/memory.stat",
    "workingset_refault_file 1\ntotal_workingset_refault_file 5\n",
  );
  expect(refaultedBytes(roots)).toBe(5 * 4096);
});

test("what is only free is told apart from what is available", () => {
  expect(memoryFacts(roots).isExact).toBe(true);
  fs.rmSync(path.join(roots.proc, "meminfo"));
  expect(memoryFacts(roots).isExact).toBe(false);
});

test("a group of another name space falls back to the mounted one", () => {
  put("proc/self/cgroup", "0::/../elsewhere\n");
  put("cgroup/memory.max", "7000000\n");
  expect(memoryFacts(roots)).toMatchObject({ limitBytes: 7e6, usableBytes: 7e6 });
});

test("the machine's own figures make sense", () => {
  const { totalBytes, usableBytes } = memoryFacts();
  expect(usableBytes).toBeGreaterThan(0);
  expect(usableBytes).toBeLessThanOrEqual(totalBytes);
});
