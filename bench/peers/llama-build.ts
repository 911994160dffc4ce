/**
 * Brings llama.cpp's CPU backend here and builds our program on it: its libraries come from an npm package
 * that is installed into this folder, its headers from the source bundle in the same package. None of it
 * is kept in the repository.
 */
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";

const HERE = import.meta.dir;
const MODULES = path.join(HERE, "node_modules");
/** Leaving out what is optional leaves out the packages of every other system. */
const NPM_FLAGS = ["--omit=optional", "--no-package-lock", "--no-audit", "--no-fund"];
const BUILD = path.join(HERE, "../../build/peers");

export interface LlamaBuild {
  readonly program: string;
  /** Folder of the libraries. */
  readonly backends: string;
}

function run(command: readonly string[], directory: string): string {
  const { exitCode, stdout } = Bun.spawnSync([...command], { cwd: directory, stderr: "inherit" });
  if (exitCode !== 0) throw new Error(`${command.slice(0, 2).join(" ")} failed in ${directory}`);
  return stdout.toString();
}

/** The headers as the bundle has them; it is shallow, hence no clone. */
function unpackHeaders(bundle: string): void {
  const source = path.join(BUILD, "source.git");
  rmSync(BUILD, { recursive: true, force: true });
  mkdirSync(source, { recursive: true });
  run(["git", "init", "--quiet", "--bare"], source);
  const [head = ""] = run(["git", "bundle", "list-heads", bundle, "HEAD"], source).split(" ");
  writeFileSync(path.join(source, "shallow"), `${head}\n`);
  run(["git", "fetch", "--quiet", bundle, "HEAD"], source);
  const archive = path.join(BUILD, "headers.tar");
  run(["git", "archive", "-o", archive, "FETCH_HEAD", "include", "ggml/include"], source);
  run(["tar", "xf", archive], BUILD);
  rmSync(source, { recursive: true });
}

/** Everything that a comparison needs, fetched and built where it is not there yet. */
export function buildLlama(): LlamaBuild {
  if (!existsSync(MODULES)) run(["npm", "install", ...NPM_FLAGS], HERE);
  const backends = path.join(MODULES, "@node-llama-cpp/linux-x64/bins/linux-x64");
  if (!existsSync(path.join(BUILD, "include"))) {
    unpackHeaders(path.join(MODULES, "node-llama-cpp/llama/gitRelease.bundle"));
  }
  const libraries = readdirSync(backends)
    .filter((name) => /^lib(llama|ggml)\.v.*\.so$|^libggml-base\.so$/.test(name))
    .map((name) => path.join(backends, name));
  const program = path.join(BUILD, "llama");
  const includes = ["include", "ggml/include"].map((name) => `-I${path.join(BUILD, name)}`);
  const sources = [path.join(HERE, "llama.c"), ...libraries, `-Wl,-rpath,${backends}`];
  run(["cc", "-O2", "-Wall", "-Wextra", ...includes, "-o", program, ...sources, "-lm"], HERE);
  return { program, backends };
}
