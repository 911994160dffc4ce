/** Builds the native libraries and says where they are; `--strict` makes warnings errors. */
import { join } from "node:path";
import { buildDeviceLibrary, describeLibrary } from "../src/native/build.ts";
import { buildTokenizerLibrary } from "../src/native/build-tokenizer.ts";
import { env } from "../src/util/env.ts";
import { sentenceOf } from "../src/util/errors.ts";

const onProgress = (sentence: string): void => console.error(sentence);
const isStrict = process.argv.includes("--strict");

try {
  const device = await buildDeviceLibrary({ isStrict, onProgress });
  console.log(`CPU device: ${describeLibrary(device)}`);
  const buildDir = env("MFERENCE_BUILD_DIR") ?? join(import.meta.dir, "../build");
  const tokenizer = await buildTokenizerLibrary({ buildDir, isForced: true, onProgress });
  console.log(
    "path" in tokenizer
      ? `Tokenizer: ${describeLibrary(tokenizer.path)}`
      : `Tokenizer: the script will serve (${tokenizer.unavailable})`,
  );
} catch (error) {
  console.error(sentenceOf(error));
  process.exit(1);
}
