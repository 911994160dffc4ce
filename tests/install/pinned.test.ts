import { afterEach, beforeEach, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import type { CheckpointPin } from "../../src/families/family.ts";
import { allFamilies, families } from "../../src/families/index.ts";
import { sha256 } from "../../src/format/digest.ts";
import { bundledNames, demoSource } from "../../src/install/demo.ts";
import { installLocal } from "../../src/install/install.ts";
import { checkPinned } from "../../src/install/pinned.ts";
import { installRemote } from "../../src/install/remote.ts";
import { verifyPackage } from "../../src/install/verify.ts";
import { DEMO, temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import { forge, packageOf } from "../fixtures/packages.ts";
import { SNAPSHOTS, writeSnapshot } from "../fixtures/snapshots.ts";
import { REPOSITORY, startHub, type Hub } from "../support/hub.ts";

let folder: string;
let hub: Hub;
let models: string;
let indexSha256: string;
const sources = families.maple.sources as CheckpointPin[];

beforeEach(async () => {
  folder = writeSnapshot(SNAPSHOTS.maple("tiny"));
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    fs.copyFileSync(path.join(DEMO, name), path.join(folder, name));
  }
  indexSha256 = sha256(fs.readFileSync(path.join(folder, "model.safetensors.index.json")));
  hub = await startHub(folder);
  models = temporaryFolder();
  const digest = (name: string): string => sha256(fs.readFileSync(path.join(folder, name)));
  const names = ["config.json", "tokenizer.json", "tokenizer_config.json"];
  const files = Object.fromEntries(names.map((name) => [`tokenizer/${name}`, digest(name)]));
  sources.push({ name: "tiny", modelId: "tiny/maple", sourceSha256: indexSha256, files });
});
afterEach(() => {
  sources.pop();
  hub.stop();
});

const download = () =>
  installRemote({
    source: { repository: REPOSITORY, revision: "main", indexSha256 },
    name: "m",
    base: hub.base,
    models,
  });
const copyFolder = () => installLocal({ source: folder, name: "m", models });

/** A change that leaves JSON and its meaning as they are. */
const touch = (name: string): void => fs.appendFileSync(path.join(folder, name), "\n");

test("a checkpoint whose small files are the pinned ones is installed under its name", async () => {
  const { directory, modelId } = await download();
  expect(modelId).toBe("tiny/maple");
  expect((await verifyPackage(directory, { full: true })).fileCount).toBeGreaterThan(8);
});

test.each(["config.json", "tokenizer.json", "tokenizer_config.json"])(
  "a changed %s under a pinned index is refused by name, from a folder and from a server",
  async (name) => {
    touch(name);
    for (const install of [download, copyFolder]) {
      const failure = await failureOf(install);
      expect(failure.code).toBe("install.hash");
      expect(failure.message).toContain(`tokenizer/${name} of tiny has the digest`);
      expect(fs.existsSync(path.join(models, "m.gturbo"))).toBe(false);
      fs.rmSync(models, { recursive: true });
    }
  },
);

test("a changed config.json costs no payload", async () => {
  touch("config.json");
  await failureOf(download);
  const asked = hub.requests.filter(({ host, range }) => host === "storage" && range?.[0] !== 0);
  expect(asked.every(({ range }) => range![0] === 8)).toBe(true);
});

test("a package of a pinned checkpoint whose small files were forged does not pass", async () => {
  const { directory } = await copyFolder();
  forge(directory, "tokenizer/tokenizer_config.json", "{}");
  expect((await failureOf(() => verifyPackage(directory, { full: false }))).code).toBe(
    "install.hash",
  );
});

test.each(bundledNames())("the small files of %s are pinned, and come with the program", (name) => {
  const pins: readonly CheckpointPin[] = allFamilies().flatMap(({ sources }) => sources);
  const pin = pins.find((each) => each.name === name)!;
  const files = Object.keys(pin.files!).map((file) => {
    const bytes = fs.readFileSync(path.join(demoSource(name), path.basename(file)));
    return [file, { sha256: sha256(bytes) }] as const;
  });
  expect(files.length).toBe(4);
  checkPinned(pin, Object.fromEntries(files));
});

test("what no pin knows is not held to one", async () => {
  checkPinned(undefined, { "tokenizer/config.json": { sha256: "0" } });
  await verifyPackage(await packageOf(), { full: false });
});
