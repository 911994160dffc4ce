/** The families that have a synthetic package. */
import { syntheticGemma4 } from "./gemma4.ts";
import { syntheticQwen36 } from "./qwen36.ts";

export const synthetics = { gemma4: syntheticGemma4, qwen36: syntheticQwen36 } as const;
export type SyntheticId = keyof typeof synthetics;
