/** Loaded before the tests, as bunfig.toml says. */
import { plugin } from "bun";
import { afterAll } from "bun:test";
import { undoEverything } from "./fixtures/cleanup.ts";

// No test asserts a speed, and a machine at work on something else is no failure. A GPU in software needs
// longer. A default that is set here holds for the first file only (seen with Bun 1.4.5), and bunfig.toml
// has none: so each file sets it itself, on its first line.
const timeoutMs = process.env["MFERENCE_TEST_DEVICE"] === "metal" ? 600_000 : 120_000;
const FIRST = `import { setDefaultTimeout as _setPatience } from "bun:test"; _setPatience(${timeoutMs}); `;

plugin({
  name: "patience",
  setup: (build) => {
    build.onLoad({ filter: /\.test\.ts$/ }, async ({ path }) => ({
      contents: FIRST + (await Bun.file(path).text()),
      loader: "ts",
    }));
  },
});

afterAll(undoEverything);
