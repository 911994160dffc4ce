/**
 * Properties of the tree itself: layers, who may do what, names, sizes, mirrored tests, documents. Each
 * test collects every offender with its reason, so that one run shows all there is to mend. Rules that
 * oxlint knows (sizes of TypeScript, cycles, `any`) are not repeated here.
 */
import { expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, normalize } from "node:path";
import { families } from "../src/families/index.ts";
import { catalogue } from "../src/kernels/index.ts";

const ROOT = join(import.meta.dir, "..");

/** A folder of src/ may import itself and the folders named here. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  util: [],
  kernels: ["util"],
  format: ["util"],
  native: ["util", "kernels"],
  text: ["util", "native"],
  ops: ["util", "kernels", "native", "format"],
  experts: ["util", "native", "format", "ops"],
  kv: ["util", "native", "ops"],
  families: ["util", "format", "text", "ops", "experts", "kv"],
  engine: ["util", "native", "format", "text", "ops", "experts", "kv", "families"],
  install: ["util", "native", "format", "families"],
  server: ["util", "engine"],
  cli: ["util", "engine", "install", "server"],
};

/** What only some places of src/ may say; the text is searched without its comments. */
const ONLY: readonly { what: RegExp; where: readonly string[]; why: string }[] = [
  { what: /"bun:ffi"/, where: ["native/"], why: "native/ owns every pointer" },
  {
    what: /\b(process|Bun|import\.meta)\.env\b/,
    where: ["util/env.ts"],
    why: "util/env.ts registers every variable",
  },
  {
    what: /\bconsole\.\w+\(|\bprocess\.std(out|err)\.write\b|\bBun\.std(out|err)\b|"consola"/,
    where: ["cli/", "util/log.ts"],
    why: "only cli/ and util/log.ts print",
  },
  {
    what: /(?<![.#\w])fetch\(|"node:(http|https|http2|net|tls|dgram)"|\bBun\.(serve|connect|listen)\b|\bnew WebSocket\b/,
    where: ["install/", "server/"],
    why: "only install/ and server/ use the network",
  },
];

/** Lines of everything that runs for a user. It rises only in a commit that says why. */
const SHIPPED_LINES_MAX = 36_500;
const FILE_LINES_MAX = 500;
const FUNCTION_LINES_MAX = 70;

/** Test folders that mirror no folder of src/: shared cases, data, references, whole-path tests. */
const FREE_TEST_FOLDERS = new Set([
  "conformance",
  "e2e",
  "fixtures",
  "golden",
  "reference",
  "regression",
  "tokenizers",
]);

/** Suites of the device libraries, whose sources are not in src/. */
const DEVICE_SUITES = new Set(["tests/native/conformance.test.ts", "tests/native/metal.test.ts"]);

/** Every file of the repository that git would keep, tracked or new. */
const files: readonly string[] = listFiles();

function listFiles(): string[] {
  const { exitCode, stdout } = Bun.spawnSync(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    { cwd: ROOT, stderr: "ignore" },
  );
  const listed =
    exitCode === 0
      ? stdout.toString().split("\n")
      : [...new Bun.Glob("**/*").scanSync({ cwd: ROOT, dot: true })];
  return listed
    .filter((path) => path !== "" && !/(^|\/)(node_modules|build|target|\.git)\//.test(path))
    .filter((path) => existsSync(join(ROOT, path)))
    .toSorted();
}

const matching = (pattern: RegExp): string[] => files.filter((path) => pattern.test(path));
const read = (path: string): string => readFileSync(join(ROOT, path), "utf8");
const sources = matching(/^src\/.*\.ts$/);
/** Hand-written C: of the device, its driver and the headers. */
const nativeSources = matching(/^(cpu|include)\/.*\.[ch]$/).filter(
  (path) => !path.includes(".gen."),
);

/** Spaces in the place of a text, so that line numbers stay. */
const blank = (text: string): string => text.replaceAll(/[^\n]/g, " ");

function withoutComments(text: string): string {
  return text.replaceAll(/\/\*[\s\S]*?\*\//g, blank).replaceAll(/(?<![:"'`\\])\/\/.*$/gm, blank);
}

/** Every module that a file names, type-only imports included. */
const importsOf = (text: string): string[] =>
  [...text.matchAll(/(?:\bfrom\s|\bimport\s|\bimport\()\s*"([^"]+)"/g)].map((match) => match[1]!);

/** `path:line: text` of every line of the files that matches. */
function hits(paths: readonly string[], what: RegExp, textOf = read): string[] {
  return paths.flatMap((path) =>
    textOf(path)
      .split("\n")
      .flatMap((line, index) => (what.test(line) ? [`${path}:${index + 1}: ${line.trim()}`] : [])),
  );
}

const codeOf = (path: string): string => withoutComments(read(path));

test("every folder of src/ imports itself and the layers below it", () => {
  const offenders = sources.flatMap((path) => {
    const [, layer = ""] = path.split("/");
    const allowed = MAY_IMPORT[layer];
    if (allowed === undefined) return [`${path}: src/${layer} is no layer`];
    return importsOf(codeOf(path))
      .filter((target) => target.startsWith("."))
      .map((target) => normalize(join(dirname(path), target)))
      .filter((target) => {
        const [root, to = ""] = target.split("/");
        if (target === "package.json") return layer !== "cli";
        return root !== "src" || ![layer, ...allowed].includes(to);
      })
      .map((target) => `${path} imports ${target}`);
  });
  expect(offenders).toEqual([]);
});

test("a family imports nothing of families/ but its own folder and family.ts", () => {
  const offenders = sources
    .filter((path) => /^src\/families\/[^/]+\//.test(path))
    .flatMap((path) => {
      const own = path.split("/").slice(0, 3).join("/");
      return importsOf(codeOf(path))
        .filter((target) => target.startsWith("."))
        .map((target) => normalize(join(dirname(path), target)))
        .filter(
          (target) =>
            target.startsWith("src/families/") &&
            target !== "src/families/family.ts" &&
            !target.startsWith(`${own}/`),
        )
        .map((target) => `${path} imports ${target}`);
    });
  expect(offenders).toEqual([]);
});

test.each(ONLY.map((rule) => [rule.why, rule] as const))("%s", (_, { what, where }) => {
  const elsewhere = sources.filter(
    (path) => !where.some((place) => path.startsWith(`src/${place}`)),
  );
  expect(hits(elsewhere, what, codeOf)).toEqual([]);
});

test("no shared file names a model family", () => {
  const shared = matching(/^(src|cpu|include|shaders|swift|tokenizers)\//).filter(
    (path) => !path.startsWith("src/families/"),
  );
  const offenders = hits(shared, /gemma|qwen|deepseek|inkling|maple/i);
  expect(offenders).toEqual([]);
});

test("every family folder is registered under its own name", () => {
  const folders = readdirSync(join(ROOT, "src/families"), { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map((entry) => entry.name);
  expect(Object.keys(families).toSorted()).toEqual(folders.toSorted());
  for (const [id, family] of Object.entries(families)) expect(family.id).toBe(id as never);
});

test("every test file mirrors a source file", () => {
  const orphans = matching(/^tests\/.*\.test\.ts$/)
    .filter((path) => path !== "tests/tidy.test.ts" && !DEVICE_SUITES.has(path))
    .filter((path) => !FREE_TEST_FOLDERS.has(path.split("/")[1] ?? ""))
    .filter(
      (path) =>
        !existsSync(join(ROOT, path.replace(/^tests/, "src").replace(/\.test\.ts$/, ".ts"))),
    );
  expect(orphans).toEqual([]);
});

test("every group of kernels has its conformance cases", () => {
  const groups = matching(/^src\/kernels\/.*\.ts$/)
    .map((path) => basename(path))
    .filter((name) => !["index.ts", "spec.ts"].includes(name));
  const missing = groups.filter((name) => !existsSync(join(ROOT, "tests/conformance", name)));
  expect(missing).toEqual([]);
});

test.each(["gen-kernels", "gen-shaders"])("what %s.ts makes is fresh", (script) => {
  const { exitCode, stderr } = Bun.spawnSync(
    [process.execPath, join(ROOT, `scripts/${script}.ts`), "--check"],
    { cwd: ROOT },
  );
  expect(stderr.toString()).toBe("");
  expect(exitCode).toBe(0);
});

/** Functions of the shaders and the threads of a threadgroup that each is compiled for. */
const shaderFunctions = new Map(
  readdirSync(join(ROOT, "shaders"))
    .filter((name) => name.endsWith(".metal"))
    .map((name) => readFileSync(join(ROOT, "shaders", name), "utf8"))
    .flatMap((text) =>
      Array.from(
        text.matchAll(/^\[\[max_total_threads_per_threadgroup\((\d+)\)\]\]\nkernel void (\w+)\(/gm),
      ),
    )
    .map(([, threads, name]) => [name!, Number(threads)] as const),
);

test("every kernel has its function in the shaders, compiled for the threads of its grid", () => {
  const wanted = catalogue.flatMap(({ name, params, grid, wide }) => {
    const threadsAt = (rows: number): number => {
      const all = Object.fromEntries(
        Object.keys(params).map((key) => [key, key === "T" ? rows : 64]),
      );
      return grid(all as never).threads.reduce((a, b) => a * b);
    };
    const few: [string, number] = [name, threadsAt(wide === undefined ? 64 : wide.least - 1)];
    return wide === undefined ? [few] : [few, [`${name}_wide`, threadsAt(wide.least)] as const];
  });
  expect(Object.fromEntries(shaderFunctions)).toEqual(Object.fromEntries(wanted));
});

test("file names say what a file holds", () => {
  const vague =
    /(^|[-_/])(utils?|helpers?|common|types|misc|manager)(\.test)?\.(ts|c|h|rs|swift)$/i;
  const isKebab = /^[a-z0-9]+(-[a-z0-9]+)*(\.test|\.gen)?\.ts$/;
  const isSnake = /^[a-z0-9]+(_[a-z0-9]+)*(\.gen)?\.[ch]$/;
  expect(files.filter((path) => vague.test(path))).toEqual([]);
  const misnamed = files.filter((path) => {
    const name = basename(path);
    if (name.endsWith(".ts")) return !isKebab.test(name);
    return /\.[ch]$/.test(name) && !isSnake.test(name);
  });
  expect(misnamed).toEqual([]);
});

test("native files and their functions stay short", () => {
  const offenders = [...nativeSources, ...matching(/^tokenizers\/src\/.*\.rs$/)]
    .filter((path) => read(path).split("\n").length > FILE_LINES_MAX)
    .map((path) => `${path} has more than ${FILE_LINES_MAX} lines`);
  for (const path of nativeSources) {
    for (const { line, count } of longFunctions(codeOf(path))) {
      offenders.push(`${path}:${line}: a function of ${count} lines`);
    }
  }
  expect(offenders).toEqual([]);
});

/** Functions of a C text, comments taken out, with more than the allowed lines that are not blank. */
function longFunctions(code: string): { line: number; count: number }[] {
  const lines = code
    .replaceAll(/^\s*#(.*\\\n)*.*$/gm, blank)
    .replaceAll(/"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])*'/g, blank)
    .split("\n");
  const found: { line: number; count: number }[] = [];
  let depth = 0;
  let start = 0;
  for (const [index, line] of lines.entries()) {
    const before = depth;
    for (const mark of line) depth += mark === "{" ? 1 : mark === "}" ? -1 : 0;
    if (before === 0 && depth > 0) start = index;
    if (before === 0 || depth > 0) continue;
    // A body follows a parameter list; a struct, an enum or a table does not.
    const isFunction = /\)[^=]*\{/.test(lines.slice(Math.max(0, start - 1), start + 1).join(" "));
    const count = lines.slice(start, index + 1).filter((text) => text.trim() !== "").length;
    if (isFunction && count > FUNCTION_LINES_MAX) found.push({ line: start + 1, count });
  }
  return found;
}

test("what ships stays under its ceiling of lines", () => {
  const shipped = matching(
    /^(src|cpu|include|shaders|swift|tokenizers)\/.*\.(ts|c|h|rs|metal|swift)$/,
  )
    .filter((path) => !/\.gen\.|^cpu\/driver\/|^swift\/(SoftMetal|Tests)\//.test(path))
    .reduce((sum, path) => sum + read(path).split("\n").length, 0);
  expect(shipped).toBeLessThanOrEqual(SHIPPED_LINES_MAX);
});

const written = matching(/\.(ts|c|h|rs|sh|metal|swift|yml)$|^\.ci\//).filter(
  (path) => path !== "tests/tidy.test.ts",
);

test("nothing is left to do in a comment, alone, or silenced without a reason", () => {
  expect(hits(written, /\b(TODO|FIXME|XXX|HACK)\b/)).toEqual([]);
  expect(hits(written, /\b(test|it|describe)\.(only|todo)\(/)).toEqual([]);
  expect(hits(written, /oxlint-disable(?!.*-- \S)|@ts-(ignore|nocheck)\b/)).toEqual([]);
});

test("only tests look outside the repository", () => {
  const elsewhere = files.filter(
    (path) =>
      /\.(ts|c|h|rs|sh|py|json|toml|md|yml)$|^\.ci\//.test(path) && !path.startsWith("tests/"),
  );
  expect(hits(elsewhere, /\.\.\/shared\b/)).toEqual([]);
});

test("lock files name no host for packages", () => {
  const locks = matching(/(^|\/)package-lock\.json$/);
  expect(locks).not.toEqual([]);
  expect(hits(locks, /"resolved"/)).toEqual([]);
});

/** Notes beside fixtures came with them and are left as they are. */
const documents = matching(/\.md$/).filter((path) => !path.startsWith("tests/fixtures/"));

test("every document has one first-level heading", () => {
  const offenders = documents.filter((path) => {
    const prose = read(path).replaceAll(/^```[\s\S]*?^```/gm, "");
    return (prose.match(/^# /gm) ?? []).length !== 1;
  });
  expect(offenders).toEqual([]);
});

test("links of the documents resolve", () => {
  const broken = documents.flatMap((path) =>
    [...read(path).matchAll(/\]\(([^)\s]+)\)/g)]
      .map((match) => match[1]!)
      .filter((target) => !/^(https?:|mailto:|#)/.test(target))
      .filter((target) => !existsSync(join(ROOT, dirname(path), target.replace(/#.*$/, ""))))
      .map((target) => `${path} -> ${target}`),
  );
  expect(broken).toEqual([]);
});

test("every test that the list of acceptance names exists", () => {
  const list = read("docs/install-acceptance.md").replaceAll(/\s+/g, " ");
  const named = [...list.matchAll(/`([\w/-]+)` "([^"]+)"/g)];
  expect(named.length).toBeGreaterThan(100);
  const missing = named.filter(([, file, title]) => {
    const path = `tests/${file}.test.ts`;
    return (
      !existsSync(join(ROOT, path)) ||
      !new RegExp(`\\(\\s*"${RegExp.escape(title!)}"`).test(read(path))
    );
  });
  expect(missing.map(([line]) => line)).toEqual([]);
});

test("the glossary explains every shape letter of the catalogue", () => {
  const letters = new Set(
    catalogue.flatMap(({ buffers }) =>
      Object.values(buffers).flatMap(({ shape }) => shape.match(/\b[A-Z][a-z]*\b/g) ?? []),
    ),
  );
  const glossary = read("docs/glossary.md");
  const missing = [...letters].filter((letter) => !glossary.includes(`| \`${letter}\` `));
  expect(missing).toEqual([]);
});
