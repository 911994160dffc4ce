/**
 * Packs the program for this system into build/release/: an archive and its SHA-256 checksum. Refuses a
 * tree with changes that are not committed unless `--allow-dirty` is given; `--with-demo` packs the demo
 * model too. docs/release.md says what else a release takes.
 */
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import manifest from "../package.json";
import { buildFolder, ROOT } from "../src/native/built.ts";
import { MferenceError, sentenceOf } from "../src/util/errors.ts";
import { formatBytes } from "../src/util/units.ts";
import { thirdPartyNotices } from "./third-party.ts";

/** No user of the machine that packs is named in an archive. */
const NOBODY =
  process.platform === "darwin"
    ? ["--uid", "0", "--gid", "0", "--uname", "", "--gname", ""]
    : ["--owner=0", "--group=0", "--numeric-owner"];

async function outputOf(command: readonly string[], cwd: string = ROOT): Promise<string> {
  const child = Bun.spawn([...command], { cwd, stdout: "pipe", stderr: "inherit" });
  const [text, status] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  if (status === 0) return text.trim();
  throw new MferenceError("native.build", `${command.join(" ")} failed with status ${status}`);
}

async function checkClean(): Promise<void> {
  const changes = await outputOf(["git", "status", "--porcelain"]);
  if (changes === "") return;
  const count = changes.split("\n").length;
  throw new MferenceError(
    "usage.value",
    `${count} files differ from the last commit: commit them first, or give --allow-dirty for an archive that no commit describes`,
  );
}

/** Fills a folder with what goes into the archive. */
async function fill(folder: string, isWithDemo: boolean): Promise<void> {
  const binary = path.join(folder, "mference");
  const build = [process.execPath, "scripts/build-binary.ts", "--complete", "--outfile", binary];
  console.log(await outputOf([...build, ...(isWithDemo ? ["--with-demo"] : [])]));
  const version = await outputOf([binary, "--version"]);
  if (version !== manifest.version) {
    throw new MferenceError(
      "native.build",
      `the binary says that it is version ${version}; package.json has ${manifest.version}`,
    );
  }
  for (const name of ["LICENSE", "README.md"]) {
    fs.copyFileSync(path.join(ROOT, name), path.join(folder, name));
  }
  fs.writeFileSync(path.join(folder, "THIRD-PARTY.txt"), await thirdPartyNotices());
}

/** Packs the program and returns the archive's path. */
async function release(isWithDemo: boolean): Promise<string> {
  const target = `${process.platform === "darwin" ? "macos" : process.platform}-${process.arch}`;
  const name = `mference-${manifest.version}-${target}${isWithDemo ? "-demo" : ""}`;
  const folder = path.join(buildFolder(undefined), "release");
  fs.mkdirSync(folder, { recursive: true });
  const work = fs.mkdtempSync(path.join(folder, "making-"));
  const archive = path.join(folder, `${name}.tar.gz`);
  try {
    fs.mkdirSync(path.join(work, name));
    await fill(path.join(work, name), isWithDemo);
    await outputOf(["tar", ...NOBODY, "-czf", `${name}.tar.gz`, name], work);
    fs.renameSync(path.join(work, `${name}.tar.gz`), archive);
  } finally {
    fs.rmSync(work, { recursive: true, force: true });
  }
  const hasher = new Bun.CryptoHasher("sha256");
  for await (const tile of Bun.file(archive).stream()) hasher.update(tile);
  // The form that `sha256sum -c` and `shasum -a 256 -c` read.
  fs.writeFileSync(`${archive}.sha256`, `${hasher.digest("hex")}  ${name}.tar.gz\n`);
  return archive;
}

const { values } = parseArgs({
  options: {
    "with-demo": { type: "boolean", default: false },
    "allow-dirty": { type: "boolean", default: false },
  },
});
try {
  if (!values["allow-dirty"]) await checkClean();
  const archive = await release(values["with-demo"]);
  console.log(`${archive}: ${formatBytes(fs.statSync(archive).size)}`);
} catch (error) {
  console.error(sentenceOf(error));
  process.exit(1);
}
