import { defineFamily } from "../family.ts";
import { chat } from "./chat.ts";
import { ARCH_26B, archOf, parseConfig, shapeOf, type Gemma4Config } from "./config.ts";
import { Gemma4Forward } from "./forward.ts";
import { tensors } from "./tensors.ts";

/** Google's Gemma 4 with a mixture of experts beside a dense branch in every layer. */
export const gemma4 = defineFamily<Gemma4Config>({
  id: "gemma4",
  manifestName: undefined,
  modelTypes: ["gemma4"],
  sources: [
    {
      name: "gemma4",
      modelId: "mlx-community/gemma-4-26b-a4b-it-4bit",
      sourceSha256: "bf198c9f5ea6462addca1966e5dd669c407537a876e82cf06db9084c5c850b13",
      remote: {
        repository: "mlx-community/gemma-4-26b-a4b-it-4bit",
        revision: "0d77464eeb233a2da68ebf9d7dc4edaac7db956d",
        downloadBytes: 14_620_479_420,
        installedBytes: 14_291_921_884,
        reserveBytes: 1_073_741_824,
      },
    },
    {
      name: "demo",
      modelId: "mference-demo",
      sourceSha256: "abbfd093acebd69a275a51ea5d6bdf707918e4a55f4d840d430b9fe5e2ca6089",
      sampling: { temperature: 0 },
    },
  ],
  parseConfig,
  tensors,
  archOf,
  baselines: [ARCH_26B],
  quantWidths: {
    embedding: [4],
    attention: [4],
    router: [8],
    sharedExpert: [4, 8],
    routedExpert: [2, 4],
  },
  chat,
  shapeOf,
  createForward: (parts, config) => new Gemma4Forward(parts, config),
});
