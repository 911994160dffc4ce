/** Loaded before the tests, as bunfig.toml says. */
import { afterAll } from "bun:test";
import { undoEverything } from "./fixtures/cleanup.ts";

afterAll(undoEverything);
