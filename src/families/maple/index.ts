import type { QuantSlot } from "../../format/manifest.ts";
import { defineKeptFamily } from "../family.ts";
import { ARCH_20B, archOf, parseConfig, parseQuantization, type MapleConfig } from "./config.ts";
import { tensors } from "./tensors.ts";

const ABSENT: QuantSlot = {
  weightBits: 0,
  scheme: "none",
  scaleType: "none",
  biasType: "none",
  groupSize: 0,
};

/** Maple Preview: ternary weights, attention with and without rotation, an approximate head. */
export const maple = defineKeptFamily<MapleConfig>({
  id: "maple",
  manifestName: "maple",
  modelTypes: ["maple"],
  sources: [
    {
      name: "maple",
      modelId: "maple-preview-2bit-mlx",
      sourceSha256: "56000110535c5023b43209a5c142035e12c1cde7b1118759cc9f86335d46ef95",
      remote: {
        repository: "deepgrove/maple-preview-2bit-mlx",
        revision: "361db5da5e74ff6fcdd852d478e1f266ce11013a",
        downloadBytes: 5_330_000_000,
        installedBytes: 6_650_000_000,
        reserveBytes: 1_073_741_824,
        notice:
          "the checkpoint of maple declares no licence: ask its authors what you may do with it",
      },
    },
  ],
  parseConfig,
  parseQuantization,
  tensors,
  archOf,
  baselines: [ARCH_20B],
  quantWidths: {
    embedding: [4],
    attention: [4],
    router: [],
    sharedExpert: [],
    routedExpert: [2],
  },
  quantSlots: {
    router: { ...ABSENT, weightBits: 16, scheme: "unquantized" },
    sharedExpert: ABSENT,
  },
  flashHeadOf: ({ flashHead }) =>
    flashHead === undefined ? undefined : { ...flashHead, forceTokens: [...flashHead.forceTokens] },
});
