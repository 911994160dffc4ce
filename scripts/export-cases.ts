// Writes conformance cases as files for cpu/driver/replay.c: `bun scripts/export-cases.ts DIR [--all]`.
// Without --all, cases with too much arithmetic for an emulator or a sanitizer are left out.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { exportCase } from "../tests/conformance/export.ts";
import { allCases } from "../tests/conformance/index.ts";

const folder = process.argv.slice(2).find((word) => !word.startsWith("--"));
if (folder === undefined) {
  console.error("usage: bun scripts/export-cases.ts DIR [--all]");
  process.exit(2);
}
await mkdir(folder, { recursive: true });
const cases = allCases.filter(({ isHeavy }) => !isHeavy || process.argv.includes("--all"));
for (const [i, conformanceCase] of cases.entries()) {
  const name = `${String(i).padStart(3, "0")}-${conformanceCase.kernel.name}.case`;
  await Bun.write(join(folder, name), exportCase(conformanceCase));
}
console.log(`${cases.length} cases in ${folder}`);
