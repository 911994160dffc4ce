/** The build of the Metal library: reuse, its sentences, and what makes a library stale. */
import { describe, expect, test } from "bun:test";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { buildMetalLibrary, metalHindrance } from "../../src/native/build-metal.ts";
import { SUFFIX } from "../../src/native/built.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";

/** A Swift of the test's own: writes its arguments where the package manager leaves the library. */
function fakeSwift(lines = "", version = "Swift version 6.0.3 (swift-6.0.3-RELEASE)"): string {
  const path = join(temporaryFolder(), "swift");
  const product = `libmference.${SUFFIX}`;
  const script = `[ "$1" = --version ] && { echo "${version}"; exit; }
for word; do [ "$previous" = --scratch-path ] && folder=$word; previous=$word; done
${lines}
mkdir -p "$folder/release" && echo "$@" > "$folder/release/${product}"`;
  writeFileSync(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  return path;
}

describe("the Metal library", () => {
  test("is built once, and again with other flags, in folders that do not disturb each other", async () => {
    const buildDir = temporaryFolder();
    const said: string[] = [];
    const options = { buildDir, swift: fakeSwift(), onProgress: (text: string) => said.push(text) };
    const path = await buildMetalLibrary(options);
    expect(await buildMetalLibrary(options)).toBe(path);
    expect(said).toEqual(["Building the Metal device (once, a minute or two)"]);
    const plain = await Bun.file(path).text();
    expect(plain).toContain("build -c release --product mference --scratch-path");
    const other = await buildMetalLibrary({ ...options, flags: ["-Xswiftc", "-g"] });
    expect(other).not.toBe(path);
    expect(await Bun.file(other).text()).toEndWith("-Xswiftc -g\n");
    const folders = readdirSync(buildDir).filter((name) => name.startsWith("swift"));
    expect(folders).toHaveLength(2);
  });

  test("is not built by a system without Swift, which is said with what to install", async () => {
    const failure = await failureOf(() =>
      buildMetalLibrary({ buildDir: temporaryFolder(), swift: "no-such-swift" }),
    );
    expect(failure.code).toBe("native.build");
    expect(failure.message).toContain("no-such-swift was not found");
    expect(failure.message).toMatch(/xcode-select --install|apt install swiftlang/);
    expect(metalHindrance("sh")).toBeUndefined();
  });

  test.each([
    ["Swift version 5.10.1 (swift-5.10.1-RELEASE)", /says Swift version 5\.10\.1: \S/],
    [
      "xcode-select: note: No developer tools were found",
      /says "xcode-select: note: No dev[^"]+": \S/,
    ],
  ])("is not built by a Swift that says %p", async (version, says) => {
    const buildDir = temporaryFolder();
    const swift = fakeSwift("", version);
    const failure = await failureOf(() => buildMetalLibrary({ buildDir, swift }));
    expect(failure.code).toBe("native.build");
    expect(failure.message).toStartWith("the Metal device needs Swift 6 and ");
    expect(failure.message).toMatch(says);
    expect(failure.message).not.toContain("\n");
    expect(readdirSync(buildDir)).toEqual([]);
  });

  test("shows the compiler's own first errors, which it prints to its output", async () => {
    const buildDir = temporaryFolder();
    const noise = 'for i in 1 2 3 4 5 6 7 8 9; do echo "[$i/9] Compiling"; done';
    const swift = fakeSwift(`${noise}\necho "Device.swift:3:1: error: trouble"\nexit 1`);
    const failure = await failureOf(() => buildMetalLibrary({ buildDir, swift }));
    expect(failure.code).toBe("native.build");
    expect(failure.message).toContain("Device.swift:3:1: error: trouble");
    expect(failure.message).not.toContain("Compiling");
    expect(readdirSync(buildDir)).toEqual([]);
  });

  test("says when the package manager left no library", async () => {
    const buildDir = temporaryFolder();
    mkdirSync(buildDir, { recursive: true });
    const failure = await failureOf(() =>
      buildMetalLibrary({ buildDir, swift: fakeSwift("exit 0") }),
    );
    expect(failure.code).toBe("native.build");
    expect(failure.message).toContain("the Metal device cannot be built");
  });
});
