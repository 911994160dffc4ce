#!/usr/bin/env bun
/** The program as a script. A compiled binary has an entry of its own. */
import { main } from "./program.ts";

await main();
