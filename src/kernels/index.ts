/** The catalogue of every kernel: pure data, from which headers, call sites and tests are made. */
import {
  attentionF16,
  attentionF32,
  outputGate,
  qkEpilogueF16,
  qkEpilogueF32,
  qkvEpilogueF16,
  qkvEpilogueF32,
  ropeTable,
  splitGate,
} from "./attention.ts";
import { causalConv, deltaPrepare, gatedDelta, gatedNorm } from "./delta.ts";
import { embedAffine } from "./embed.ts";
import { gatedMatmulAffine, matmulAffine } from "./matmul.ts";
import {
  gatedShared,
  routedDown,
  routedGate,
  routedReduce,
  routerTopk,
  slotLookup,
} from "./moe.ts";
import { residualNorm, rmsNorm, sandwichSetup, sandwichTail } from "./norm.ts";
import { argmax, candidates, gumbel, penalize, softcap } from "./sampling.ts";
import type { AnyKernel } from "./spec.ts";

/** Every kernel; a kernel's id on the wire is its position here. */
export const catalogue: readonly AnyKernel[] = [
  embedAffine,
  rmsNorm,
  sandwichSetup,
  sandwichTail,
  matmulAffine,
  gatedMatmulAffine,
  ropeTable,
  qkvEpilogueF32,
  qkvEpilogueF16,
  attentionF32,
  attentionF16,
  routerTopk,
  routedGate,
  routedDown,
  routedReduce,
  argmax,
  softcap,
  penalize,
  candidates,
  gumbel,
  residualNorm,
  qkEpilogueF32,
  qkEpilogueF16,
  splitGate,
  outputGate,
  causalConv,
  deltaPrepare,
  gatedDelta,
  gatedNorm,
  gatedShared,
  slotLookup,
];

/** One line for each kernel with everything that the two sides of the ABI must agree on. */
export function describeCatalogue(): string {
  return catalogue
    .map(({ name, buffers, params }, id) => {
      const bound = Object.entries(buffers).map(
        ([key, { access, dtype, shape }]) => `${key}:${access} ${dtype} ${shape}`,
      );
      const scalars = Object.entries(params).map(([key, type]) => `${key}:${type}`);
      return `${id} ${name}(${[...bound, ...scalars].join("; ")})`;
    })
    .join("\n");
}

/** FNV-1a, 32 bits, of the description: a library built from another catalogue has another hash. */
export function catalogueHash(): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(describeCatalogue())) {
    hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  }
  return hash;
}
