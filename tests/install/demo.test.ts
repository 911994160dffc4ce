import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { openLayer } from "../../src/format/package.ts";
import { bundledNames, demoSource, ensureDemo, installDemo } from "../../src/install/demo.ts";
import { acquireLock } from "../../src/native/lock.ts";
import { registerEmbedded } from "../../src/util/embedded.ts";
import { failureOf } from "../fixtures/failures.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { open } from "../fixtures/packages.ts";

const ROOT = path.resolve(import.meta.dir, "../..");

describe("installDemo", () => {
  test("gives a package with a text side under its own name", async () => {
    const models = temporaryFolder();
    const installed = await installDemo({ models });
    expect(installed).toMatchObject({ name: "demo", modelId: "mference-demo", droppedCount: 0 });
    expect(installed.notice).toBeUndefined();
    const model = await open(installed.directory);
    expect(model.notice).toBeUndefined();
    expect(fs.readFileSync(model.text!.tokenizerPath)).toEqual(
      fs.readFileSync(path.join(demoSource(), "tokenizer.json")),
    );
    expect(model.text!.chatTemplatePath).toContain("chat_template.jinja");
    expect(model.text!.specialTokensMapPath).toBeUndefined();
    for (const { index } of model.layers) fs.closeSync((await openLayer(model, index)).descriptor);
    await open(installed.directory, "trusted-receipt");
  });

  // A copy of the whole checkpoint, or of its largest tensor for each layer, would pass 29 MB.
  test("keeps the heap small", async () => {
    const code = `
      import { installDemo } from ${JSON.stringify(path.join(ROOT, "src/install/demo.ts"))};
      import { heapStats } from "bun:jsc";
      const held = () => { const { heapSize, extraMemorySize } = heapStats(); return heapSize + extraMemorySize; };
      Bun.gc(true);
      const before = held();
      let peak = 0;
      let steps = 0;
      // Each look collects garbage first, so that few are affordable and what is seen is in use.
      const onProgress = () => { if (steps++ % 150 === 0) peak = Math.max(peak, held()); };
      await installDemo({ models: ${JSON.stringify(temporaryFolder())}, onProgress });
      console.log(peak - before);`;
    const child = Bun.spawn([process.execPath, "-e", code], { stdout: "pipe" });
    const grown = Number(await new Response(child.stdout).text());
    expect(await child.exited).toBe(0);
    expect(grown).toBeGreaterThan(0);
    expect(grown).toBeLessThan(14_000_000);
  });
});

describe("ensureDemo", () => {
  test("an executable offers the checkpoints that it carries, and no other", async () => {
    registerEmbedded({ needs: "nothing", files: { demo: [] } });
    try {
      expect(bundledNames()).toEqual(["demo"]);
      const error = await failureOf(() => installDemo({ name: "demo-other" }));
      expect(error).toMatchObject({ code: "model.unknown" });
    } finally {
      registerEmbedded(undefined);
    }
    expect(bundledNames().length).toBeGreaterThan(1);
  });

  test("installs once for two first runs", async () => {
    const models = temporaryFolder();
    let waits = 0;
    const onWait = () => (waits += 1);
    const directories = await Promise.all([
      ensureDemo({ models, onWait }),
      ensureDemo({ models, onWait }),
    ]);
    expect(directories[0]).toBe(directories[1]);
    expect(waits).toBe(1);
    await open(directories[0]);
    const { mtimeMs } = fs.statSync(path.join(directories[0], "manifest.json"));
    await ensureDemo({ models });
    expect(fs.statSync(path.join(directories[0], "manifest.json")).mtimeMs).toBe(mtimeMs);
  });

  test("stops waiting when cancelled", async () => {
    const models = temporaryFolder();
    const lock = acquireLock(path.join(models, "demo.gturbo.install.lock"));
    const controller = new AbortController();
    const { code } = await failureOf(() =>
      ensureDemo({ models, signal: controller.signal, onWait: () => controller.abort() }),
    );
    expect(code).toBe("install.cancelled");
    lock.release();
  });
});
