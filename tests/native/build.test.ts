/** The build of the device library: reuse, its sentences, and two builds at once. */
import { afterAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildDeviceLibrary, deviceUnits } from "../../src/native/build.ts";
import { MferenceError } from "../../src/util/errors.ts";

const scratch = mkdtempSync(join(tmpdir(), "mference-build-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

/** A compiler of the test's own: a script that the system's shell runs. */
function fakeCompiler(name: string, lines: string): string {
  const path = join(scratch, name);
  writeFileSync(path, `#!/bin/sh\n${lines}\n`, { mode: 0o755 });
  return path;
}

/** Writes whatever was asked for with -o. */
const COPIER = `for word; do last=$previous; previous=$word; [ "$last" = -o ] && echo built > "$word"; done; exit 0`;

async function failureOf(work: Promise<unknown>): Promise<MferenceError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof MferenceError) return error;
    throw error;
  }
  throw new Error("it did not fail");
}

describe("the device library", () => {
  test("each architecture compiles its own instruction sets", () => {
    const suffixes = (arch: string): string[] => {
      const names = deviceUnits(arch).map(
        ({ source }) => /_(avx2|avx512|neon)\.c$/.exec(source)?.[1],
      );
      return [...new Set(names.filter((name) => name !== undefined))].toSorted();
    };
    expect(suffixes("x64")).toEqual(["avx2", "avx512"]);
    expect(suffixes("arm64")).toEqual(["neon"]);
    expect(suffixes("riscv64")).toEqual([]);
    for (const { source, flags } of deviceUnits("x64")) {
      expect(flags.includes("-mavx2")).toBe(/_avx(2|512)\.c$/.test(source));
      expect(flags.includes("-mavx512vnni")).toBe(source.endsWith("_avx512.c"));
    }
  });

  test("it is built once, and again for another compiler", async () => {
    const buildDir = join(scratch, "once");
    const said: string[] = [];
    const onProgress = (sentence: string): void => void said.push(sentence);
    const compiler = fakeCompiler("first", COPIER);
    const path = await buildDeviceLibrary({ buildDir, compiler, onProgress });
    expect(await Bun.file(path).text()).toBe("built\n");
    expect(await buildDeviceLibrary({ buildDir, compiler, onProgress })).toBe(path);
    expect(said).toEqual(["Building the CPU device (once, some seconds)"]);
    const other = await buildDeviceLibrary({ buildDir, compiler: fakeCompiler("second", COPIER) });
    expect(other).not.toBe(path);
    expect(readdirSync(buildDir)).toHaveLength(2);
  });

  test("two first builds at once give one library and leave nothing else", async () => {
    const buildDir = join(scratch, "twice");
    const compiler = fakeCompiler("slow", `sleep 0.01\n${COPIER}`);
    const paths = await Promise.all([0, 1].map(() => buildDeviceLibrary({ buildDir, compiler })));
    expect(paths[0]).toBe(paths[1]);
    expect(readdirSync(buildDir)).toHaveLength(1);
  });

  test("libraries that nobody has used for long go, younger ones stay", async () => {
    const buildDir = join(scratch, "old");
    const young = await buildDeviceLibrary({ buildDir, compiler: fakeCompiler("young", COPIER) });
    const old = await buildDeviceLibrary({ buildDir, compiler: fakeCompiler("old-one", COPIER) });
    const ago = (hours: number): Date => new Date(Date.now() - hours * 3600 * 1000);
    const monthAgo = ago(30 * 24);
    utimesSync(old, monthAgo, monthAgo);
    // Of killed builds, and of one that may still run.
    const [dead, live] = ["dead", "live"].map((end) => `${old}.tmp-${end}`) as [string, string];
    for (const leftover of [dead, live]) mkdirSync(leftover);
    writeFileSync(join(dead, "part.o"), "");
    utimesSync(dead, ago(2), ago(2));
    utimesSync(young, ago(47), ago(47));
    writeFileSync(join(buildDir, "foreign"), "");
    utimesSync(join(buildDir, "foreign"), monthAgo, monthAgo);
    const latest = await buildDeviceLibrary({ buildDir, compiler: fakeCompiler("new", COPIER) });
    const names = readdirSync(buildDir).map((name) => join(buildDir, name));
    expect(names.toSorted()).toEqual([young, latest, live, join(buildDir, "foreign")].toSorted());
  });

  test("without a compiler one sentence says what to install", async () => {
    const failure = await failureOf(
      buildDeviceLibrary({ buildDir: join(scratch, "none"), compiler: "no-such-compiler -O3" }),
    );
    expect(failure.code).toBe("native.build");
    expect(failure.message).toContain("no-such-compiler was not found");
    expect(failure.message).toMatch(/apt install gcc|xcode-select --install/);
  });

  test("the compiler's own first lines are shown, and nothing is left behind", async () => {
    const buildDir = join(scratch, "wrong");
    const lines = Array.from({ length: 50 }, (_, i) => `echo "trouble ${i}" >&2`).join("\n");
    const compiler = fakeCompiler("broken", `${lines}\nexit 3`);
    const failure = await failureOf(buildDeviceLibrary({ buildDir, compiler }));
    expect(failure.code).toBe("native.build");
    expect(failure.message).toContain("status 3");
    expect(failure.message).toContain("trouble 0\n");
    expect(failure.message).not.toContain("trouble 20");
    expect(readdirSync(buildDir)).toEqual([]);
  });

  test("a build folder that cannot be made is said", async () => {
    const file = join(scratch, "a-file");
    writeFileSync(file, "");
    const compiler = fakeCompiler("unused", COPIER);
    const failure = await failureOf(
      buildDeviceLibrary({ buildDir: join(file, "build"), compiler }),
    );
    expect(failure.code).toBe("native.build");
    expect(failure.message).toContain(file);
  });
});
