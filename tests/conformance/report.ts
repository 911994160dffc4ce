/**
 * What a run of the conformance cases found, for the report that holds devices against each other: with
 * MFERENCE_TEST_REPORT=FILE a JSON object of kernel names. Knows no device.
 */
import { writeFileSync } from "node:fs";
import { afterEverything } from "../fixtures/cleanup.ts";
import type { Deviation } from "./cases.ts";

/** The cases of one kernel. */
export interface KernelReport {
  readonly run: number;
  readonly passed: number;
  /** Largest difference from the reference, and the tolerance of that case. */
  readonly difference: number;
  readonly allowed: number;
}

export type ConformanceReport = Readonly<Record<string, KernelReport>>;

const file = process.env["MFERENCE_TEST_REPORT"];
const kernels = new Map<string, KernelReport>();
if (file !== undefined) {
  afterEverything(() => writeFileSync(file, JSON.stringify(Object.fromEntries(kernels))));
}

const NOTHING: KernelReport = { run: 0, passed: 0, difference: 0, allowed: 0 };

/** One case of a kernel has run; `deviations` are those of its outputs on every path. */
export function recordCase(
  kernel: string,
  deviations: readonly Deviation[],
  hasPassed: boolean,
): void {
  const known = kernels.get(kernel) ?? NOTHING;
  let { difference, allowed } = known;
  for (const deviation of deviations) {
    // By what is left of the tolerance; equal outputs say nothing about rounding.
    if (deviation.difference * allowed < difference * deviation.allowed) continue;
    if (deviation.allowed === 0 && deviation.difference === 0) continue;
    ({ difference, allowed } = deviation);
  }
  const next = {
    run: known.run + 1,
    passed: known.passed + (hasPassed ? 1 : 0),
    difference,
    allowed,
  };
  kernels.set(kernel, next);
}
