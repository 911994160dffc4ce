import { expect, test } from "bun:test";
import { type Findings, report } from "../../src/cli/doctor.ts";

const NEEDS = {
  commonBytes: 1.35e9,
  kvBytes: 320e6,
  slotBytes: 100e6,
  expertCount: 128,
  expertsPerToken: 8,
  contextRows: 4096,
};

const FINDINGS: Findings = {
  version: "1.2.3",
  bun: "1.4.5",
  system: "linux x64 6",
  cpu: { model: "A processor", cores: 2 },
  memory: {
    totalBytes: 8e9,
    availableBytes: 6e9,
    limitBytes: 4e9,
    usableBytes: 3e9,
    isExact: true,
  },
  device: {
    kind: "cpu",
    name: "CPU",
    simd: "avx2",
    threads: 2,
    pageBytes: 4096,
    bufferBytesMax: 1,
    memoryBytes: 1,
    library: "/build/lib.so",
  },
  tokenizer: "script",
  disk: { bytesPerSecond: 3e9, isDirect: true, folder: "/models" },
  home: "/home",
  models: [
    { name: "big", status: "installed", needs: NEEDS, slotsThatFit: 13 },
    { name: "small", status: "installed", needs: NEEDS, slotsThatFit: 128 },
    { name: "huge", status: "installed", needs: NEEDS, slotsThatFit: 0 },
    { name: "cut", status: "partial", reason: "its install did not finish" },
  ],
  environment: { MFERENCE_SIMD: "avx2" },
  notices: ["cargo was not found"],
};

test("the report names everything", () => {
  const text = report(FINDINGS);
  for (const part of [
    "mference 1.2.3 on Bun 1.4.5, linux x64 6",
    "3.00 GB usable of 8.00 GB (limit 4.00 GB)",
    "CPU, avx2, 2 threads, /build/lib.so",
    "3.00 GB/s in /models",
    "MFERENCE_SIMD  avx2 (instruction set",
    "cargo was not found",
    "big: up to --slots 13 fit",
    "small: fits whole, with all 128 experts",
    "huge: does not fit",
    "cut: cannot be used: its install did not finish",
  ]) {
    expect(text).toContain(part);
  }
});

test("what could not be found out is said", () => {
  const { device: _device, disk: _disk, ...rest } = FINDINGS;
  const text = report({ ...rest, deviceError: "no compiler", diskError: "read-only", models: [] });
  expect(text).toContain("none: no compiler");
  expect(text).toContain("not measured: read-only");
  expect(text).toContain("no model is installed");
});
