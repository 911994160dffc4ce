/**
 * Builds the native libraries and says where they are: `--device metal|cpu` chooses the device (default:
 * this system's), `--strict` makes warnings of the CPU device errors.
 */
import { parseArgs } from "node:util";
import { defaultDevice } from "../src/engine/libraries.ts";
import { buildDeviceLibrary } from "../src/native/build.ts";
import { buildMetalLibrary } from "../src/native/build-metal.ts";
import { buildTokenizerLibrary } from "../src/native/build-tokenizer.ts";
import { buildFolder, describeLibrary } from "../src/native/built.ts";
import { sentenceOf } from "../src/util/errors.ts";

const { values } = parseArgs({
  options: {
    device: { type: "string", default: defaultDevice() },
    strict: { type: "boolean", default: false },
  },
});
const onProgress = (sentence: string): void => console.error(sentence);

try {
  if (values.device === "metal") {
    console.log(`Metal device: ${describeLibrary(await buildMetalLibrary({ onProgress }))}`);
  } else {
    const device = await buildDeviceLibrary({ isStrict: values.strict, onProgress });
    console.log(`CPU device: ${describeLibrary(device)}`);
  }
  const options = { buildDir: buildFolder(undefined), isForced: true, onProgress };
  const tokenizer = await buildTokenizerLibrary(options);
  console.log(
    "path" in tokenizer
      ? `Tokenizer: ${describeLibrary(tokenizer.path)}`
      : `Tokenizer: the script will serve (${tokenizer.unavailable})`,
  );
} catch (error) {
  console.error(sentenceOf(error));
  process.exit(1);
}
