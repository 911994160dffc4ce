/** Loaded before the tests, as bunfig.toml says. */
import { afterAll, setDefaultTimeout } from "bun:test";
import { undoEverything } from "./fixtures/cleanup.ts";

// No test asserts a speed, and a machine at work on something else is no failure. A GPU in software needs
// longer.
setDefaultTimeout(process.env["MFERENCE_TEST_DEVICE"] === "metal" ? 600_000 : 120_000);

afterAll(undoEverything);
