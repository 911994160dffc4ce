/** Every conformance case: what a device must pass. */
import { attentionCases } from "./attention.ts";
import type { ConformanceCase } from "./cases.ts";
import { deltaCases } from "./delta.ts";
import { embedCases } from "./embed.ts";
import { matmulAffineCases } from "./matmul.ts";
import { moeCases } from "./moe.ts";
import { normCases } from "./norm.ts";
import { routerCases } from "./router.ts";
import { samplingCases } from "./sampling.ts";

export const allCases: readonly ConformanceCase[] = [
  ...embedCases,
  ...matmulAffineCases,
  ...moeCases,
  ...normCases,
  ...attentionCases,
  ...routerCases,
  ...samplingCases,
  ...deltaCases,
];
