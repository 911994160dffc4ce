import { MferenceError } from "../util/errors.ts";
import type { JsonValue } from "../format/json.ts";
import type { PackageRules } from "../format/package.ts";
import type { Family, RunnableFamily } from "./family.ts";
import { deepseekV4Flash } from "./deepseekV4Flash/index.ts";
import { gemma4 } from "./gemma4/index.ts";
import { inklingSmall } from "./inklingSmall/index.ts";
import { maple } from "./maple/index.ts";
import { qwen36 } from "./qwen36/index.ts";
import { packageRules } from "./rules.ts";

/** Every supported family. Adding one is a folder beside this file and a line here. */
export const families = { gemma4, qwen36, deepseekV4Flash, inklingSmall, maple } as const;

export type FamilyId = keyof typeof families;

/** A family whose configuration type the caller does not need. */
export type AnyFamily = { [Id in FamilyId]: (typeof families)[Id] }[FamilyId];

/** All families, in the order of the registry. */
export function allFamilies(): readonly AnyFamily[] {
  return Object.values(families);
}

/**
 * The family of a checkpoint, by its config.json.
 *
 * @throws MferenceError "model.family" naming the model type found and those known
 */
export function familyOfConfig(config: JsonValue): AnyFamily {
  const isObject = config !== null && typeof config === "object" && !Array.isArray(config);
  const modelType = isObject ? config["model_type"] : undefined;
  const found = allFamilies().find((family) =>
    family.modelTypes.some((known) => known === modelType),
  );
  if (found !== undefined) return found;
  const known = allFamilies().flatMap((family) => family.modelTypes);
  throw new MferenceError(
    "model.family",
    `config.json says model_type ${JSON.stringify(modelType) ?? "nothing"}; this program knows ${known.join(", ")}`,
  );
}

/**
 * The family of a package, by the name in its manifest.
 *
 * @throws MferenceError "model.family"
 */
export function familyOfManifest(name: string | undefined): AnyFamily {
  const found = allFamilies().find((family) => family.manifestName === name);
  if (found !== undefined) return found;
  const known = allFamilies().map((family) => family.id);
  throw new MferenceError(
    "model.family",
    `the package belongs to the family ${JSON.stringify(name) ?? "without a name"}; this program knows ${known.join(", ")}`,
  );
}

/**
 * The family of a package that is to be run.
 *
 * @throws MferenceError "model.family" also where the family can be kept, but not run yet
 */
export function runnableFamily(name: string | undefined): RunnableFamily<unknown> {
  const family = familyOfManifest(name) as Family<unknown>;
  const { chat, shapeOf, createForward } = family;
  if (chat !== undefined && shapeOf !== undefined && createForward !== undefined) {
    return { ...family, chat, shapeOf, createForward };
  }
  throw new MferenceError(
    "model.family",
    `models of the ${family.id} family can be installed and verified, but not run yet: this program has no forward pass for them`,
  );
}

/** The checks that a package of a family must pass; pass it to `openPackage`. */
export function packageRulesOf(name: string | undefined): PackageRules {
  return packageRules(familyOfManifest(name) as Family<unknown>);
}
