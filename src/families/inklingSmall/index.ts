import { defineKeptFamily } from "../family.ts";
import { ARCH_276B, archOf, parseConfig, type InklingConfig } from "./config.ts";
import { tensors } from "./tensors.ts";

/** Inkling Small: learned relative positions, short convolutions, routed and shared experts. */
export const inklingSmall = defineKeptFamily<InklingConfig>({
  id: "inklingSmall",
  manifestName: "inklingSmall",
  modelTypes: ["inkling_mm_model"],
  sources: [
    {
      name: "inklingsmall",
      modelId: "inkling-small-4bit",
      sourceSha256: "fe16aec3cef12438f1d0ff657f7e785781b61271528a66b3b7160fcf1aaca30c",
      remote: {
        repository: "pipenetwork/Inkling-Small-MLX-4bit",
        revision: "9d6e4720ab7002af25d6129c88ccea6cd9f19372",
        downloadBytes: 148_441_426_867,
        installedBytes: 149_000_000_000,
        reserveBytes: 2_147_483_648,
      },
    },
  ],
  parseConfig,
  tensors,
  archOf,
  baselines: [ARCH_276B],
  quantWidths: {
    embedding: [4],
    attention: [4],
    router: [8],
    sharedExpert: [4, 8],
    routedExpert: [2, 4],
  },
});
