import { expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import type { InstallProgress } from "../../src/install/assemble.ts";
import { installLocal } from "../../src/install/install.ts";
import { installRemote } from "../../src/install/remote.ts";
import { GOLDEN, temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import { REPOSITORY, startHub } from "../support/hub.ts";

const SOURCE = path.join(GOLDEN, "gemma4-a-e16");
type Phase = InstallProgress["phase"];

/** A folder with names of a package, and something that must stay. */
function victim(): string {
  const folder = temporaryFolder();
  for (const name of ["packed_experts", "tokenizer"]) fs.mkdirSync(path.join(folder, name));
  const kept = ["manifest.json", "packed_experts/layout.json", "tokenizer/config.json"];
  for (const name of kept) fs.writeFileSync(path.join(folder, name), "mine");
  fs.chmodSync(folder, 0o700);
  return folder;
}

const listing = (folder: string): string[] =>
  (fs.readdirSync(folder, { recursive: true }) as string[]).toSorted();

/** Puts a link in the place of the folder that is being built, or of one in it, when a phase begins. */
function swapAt(phase: Phase, place: string, target: string) {
  let isSwapped = false;
  return (progress: InstallProgress): void => {
    if (isSwapped || progress.phase !== phase) return;
    isSwapped = true;
    fs.renameSync(place, `${place}.away`);
    fs.symlinkSync(target, place);
  };
}

test.each<[Phase, string]>([
  ["downloading", ""],
  ["hashing", ""],
  ["hashing", "packed_experts"],
  ["hashing", "tokenizer"],
  ["finishing", ""],
  ["finishing", "packed_experts"],
  ["finishing", "tokenizer"],
])(
  "a link that comes while %s in the place of the folder %j is not followed",
  async (phase, name) => {
    const hub = await startHub(SOURCE);
    const installs = [
      (models: string, onProgress: (progress: InstallProgress) => void) =>
        installRemote({
          source: { repository: REPOSITORY, revision: "main" },
          name: "m",
          base: hub.base,
          models,
          onProgress,
          limits: { rangeBytes: 100_000 },
        }),
      (models: string, onProgress: (progress: InstallProgress) => void) =>
        installLocal({ source: SOURCE, name: "m", models, onProgress }),
    ];
    for (const install of phase === "downloading" ? installs.slice(0, 1) : installs) {
      const models = temporaryFolder();
      const target = victim();
      const before = listing(target);
      const place = path.join(models, "m.gturbo.partial", name);
      const failure = await failureOf(() => install(models, swapAt(phase, place, target)));
      expect(failure.code).toMatch(/^(format\.path|install\.io)$/);
      expect(listing(target)).toEqual(before);
      expect(fs.readFileSync(path.join(target, "packed_experts/layout.json"), "utf8")).toBe("mine");
      expect(fs.statSync(target).mode & 0o777).toBe(0o700);
      expect(fs.existsSync(path.join(models, "m.gturbo"))).toBe(false);
    }
    hub.stop();
  },
);
