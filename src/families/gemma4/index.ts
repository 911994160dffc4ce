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
      files: {
        "tokenizer/config.json": "af4bad66758402c59aaf39a94e5cda326f088134db7867d0458a686b398b4f1a",
        "tokenizer/tokenizer.json":
          "853494ed4db646e61a845fb5d82e3f1a475f334c78b4e08c2d23496a9b0aa866",
        "tokenizer/tokenizer_config.json":
          "2cc236619404a294944cde39160c0d88b635f12ac62e1fc622c23d74c5450f17",
        "tokenizer/chat_template.jinja":
          "eaa393414c8d096f4aaa302e0bc9d3f99889de1f67146b69e95493938a39cb72",
      },
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
