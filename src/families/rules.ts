import { MferenceError } from "../util/errors.ts";
import { elementBytes } from "../format/dtype.ts";
import type { JsonValue } from "../format/json.ts";
import type { LayerLayout } from "../format/layout.ts";
import { PROJECTIONS } from "../format/layout.ts";
import { checkArch, checkQuantSlots, type Arch, type Manifest } from "../format/manifest.ts";
import type { PackageContents, PackageRules, ResidentTensor } from "../format/package.ts";
import { isSameShape } from "../format/quant.ts";
import type { ExpertSpec, Family, ResidentSpec } from "./family.ts";

/**
 * The checks of a package that follow from a family's declarations: architecture, completeness of the
 * common file, shapes of the experts. The same for every family; holds no name of any.
 */
export function packageRules<Config>(family: Family<Config>): PackageRules {
  return {
    id: family.id,
    checkManifest: (manifest) => checkManifest(family, manifest),
    checkContents: (contents) => checkContents(family, contents),
  };
}

function checkManifest<Config>(
  family: Family<Config>,
  manifest: Pick<Manifest, "arch" | "quant" | "flashHead">,
): void {
  const baseline = baselineOf(family, manifest.arch);
  if (baseline !== undefined)
    checkArch(manifest.arch, baseline, `the released ${family.id} checkpoint`);
  checkQuantSlots(manifest, family.quantWidths, family.quantSlots);
  if (manifest.flashHead === undefined || family.flashHeadOf !== undefined) return;
  throw new MferenceError(
    "format.manifest",
    `manifest.json: it has a flashHead, which the ${family.id} family does not know`,
  );
}

/** The released architecture of the same size, if any. */
export function baselineOf<Config>(family: Family<Config>, arch: Arch): Arch | undefined {
  return family.baselines.find(
    (known) => known.hiddenSize === arch.hiddenSize && known.numLayers === arch.numLayers,
  );
}

function checkContents<Config>(family: Family<Config>, contents: PackageContents): void {
  const config = family.parseConfig(contents.config);
  checkArch(contents.manifest.arch, family.archOf(config), "tokenizer/config.json");
  checkFlashHead(contents.manifest.flashHead, family.flashHeadOf?.(config));
  const expected = family.tensors.resident(config);
  for (const spec of expected) checkResident(contents.resident.get(spec.name), spec);
  const names = new Set(expected.map((spec) => spec.name));
  const extra = [...contents.resident.keys()].find((name) => !names.has(name));
  if (extra !== undefined)
    fail(`model_weights.bin holds ${extra}, which the ${family.id} family does not know`);
  for (const layer of contents.layers)
    checkExperts(layer, family.tensors.experts(config, layer.index));
}

function checkFlashHead(found: unknown, expected: JsonValue | undefined): void {
  const isSame = Bun.deepEquals(found ?? null, expected ?? null);
  if (isSame) return;
  throw new MferenceError(
    "format.manifest",
    `manifest.json: flashHead is ${JSON.stringify(found) ?? "absent"}; tokenizer/config.json says ${JSON.stringify(expected) ?? "none"}`,
  );
}

/**
 * Checks a tensor of the common file against its declaration.
 *
 * @throws MferenceError "format.index"
 */
export function checkResident(found: ResidentTensor | undefined, spec: ResidentSpec): void {
  if (found === undefined) return fail(`model_weights.bin lacks the tensor ${spec.name}`);
  if (!isSameShape(found.shape, spec.shape)) {
    fail(
      `${spec.name} has the shape [${found.shape.join(", ")}]; expected [${spec.shape.join(", ")}]`,
    );
  }
  const values = spec.shape.reduce((left, right) => left * right, 1);
  if (spec.bits === undefined) {
    const { dtype = "BF16" } = spec;
    const bytes = elementBytes(dtype) * values;
    if (found.dtype !== dtype) fail(`${spec.name} is ${found.dtype}; expected ${dtype}`);
    if (found.scales !== undefined) fail(`${spec.name} has scales, but is not quantized`);
    if (found.bytes !== bytes) fail(`${spec.name} has ${found.bytes} bytes; expected ${bytes}`);
    return;
  }
  if (found.dtype !== "U32" || found.scales === undefined || found.biases === undefined) {
    return fail(`${spec.name} is not a quantized matrix with scales and biases`);
  }
  if (!spec.bits.includes(found.bits ?? 0)) {
    fail(
      `${spec.name} has ${found.bytes} bytes for ${values} values; expected ${spec.bits.join(" or ")} bits each`,
    );
  }
  const groups = values / 64;
  if (found.scales.bytes !== 2 * groups || found.biases.bytes !== 2 * groups) {
    fail(
      `${spec.name} has ${found.scales.bytes} and ${found.biases.bytes} bytes of scales and biases; expected ${2 * groups} each`,
    );
  }
  if (found.offset % 2 !== 0) fail(`${spec.name} starts at the odd offset ${found.offset}`);
}

function checkExperts(layer: LayerLayout, spec: ExpertSpec | undefined): void {
  const table = layer.subTensors;
  if (spec === undefined || table === undefined) {
    if ((spec === undefined) === (table === undefined)) return;
    return fail(
      `layer ${layer.index} ${table === undefined ? "lacks" : "should not have"} routed experts`,
    );
  }
  for (const projection of PROJECTIONS) {
    const part = table[projection];
    const shape = spec.shapes[projection];
    if (!isSameShape(part.shape, shape)) {
      fail(
        `the experts of layer ${layer.index}: ${projection} is [${part.shape.join(", ")}]; expected [${shape.join(", ")}]`,
      );
    }
    if (!spec.bits.includes(part.bits ?? 0)) {
      fail(
        `the experts of layer ${layer.index}: ${projection} has ${part.bits} bits; expected ${spec.bits.join(" or ")}`,
      );
    }
    const sizes = spec.groupSizes?.[projection] ?? [64];
    const groups = table[`${projection}_scales`].shape.at(-1) ?? 0;
    if (!sizes.some((size) => groups * size === shape.at(-1))) {
      fail(
        `the experts of layer ${layer.index}: ${projection} is not in groups of ${sizes.join(" or ")}`,
      );
    }
  }
}

function fail(problem: string): never {
  throw new MferenceError("format.index", `the package does not fit its config.json: ${problem}`);
}
