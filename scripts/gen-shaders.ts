/** Writes include/mf_shaders.gen.h, all shaders as one text; `--check` fails if it is stale. */
import { join } from "node:path";
import { ROOT } from "../src/native/built.ts";
import { renderShaderHeader, SHADER_HEADER } from "../src/native/shader-source.ts";

const target = join(ROOT, SHADER_HEADER);
const text = renderShaderHeader();
if (process.argv.includes("--check")) {
  const file = Bun.file(target);
  const current = (await file.exists()) ? await file.text() : "";
  if (current !== text) {
    console.error(`${SHADER_HEADER} is stale: run \`bun run gen\``);
    process.exit(1);
  }
} else {
  await Bun.write(target, text);
}
