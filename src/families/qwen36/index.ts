import { defineFamily } from "../family.ts";
import { chat } from "./chat.ts";
import { ARCH_35B, archOf, parseConfig, type Qwen36Config, shapeOf } from "./config.ts";
import { Qwen36Forward } from "./forward.ts";
import { tensors } from "./tensors.ts";

/** Qwen 3.6: layers of gated delta rule and of attention, each with routed experts. */
export const qwen36 = defineFamily<Qwen36Config>({
  id: "qwen36",
  manifestName: "qwen36",
  modelTypes: ["qwen3_5_moe"],
  sources: [
    {
      name: "qwen36",
      modelId: "qwen3.6-35b-a3b-4bit",
      sourceSha256: "0b28df60e33753a14e816d3b31577ae2c93884c58430a4a6de6ae9ea483842ea",
      remote: {
        repository: "mlx-community/Qwen3.6-35B-A3B-4bit",
        revision: "38740b847e4cb78f352aba30aa41c76e08e6eb46",
        downloadBytes: 19_529_025_048,
        installedBytes: 19_546_491_213,
        reserveBytes: 1_073_741_824,
      },
    },
    {
      name: "demo-qwen36",
      modelId: "mference-demo-qwen36",
      sourceSha256: "00cb5bfd787a9a4432bf0d7bca8a64f5813309cab586cfa43632a2fb809d8db4",
      files: {
        "tokenizer/config.json": "e0f983172f627fd5eb18609e481bfa3d225cf0c1c79b9490f46aa0425b93699e",
        "tokenizer/tokenizer.json":
          "0adbd0ba0af07edeb3b163be1a96122e15d3faf1a4dabbd562630725d666af27",
        "tokenizer/tokenizer_config.json":
          "97cf609a7e4babb7268fbcecb1cb33d9c7665363e6e24df0e1038f1136e27400",
        "tokenizer/chat_template.jinja":
          "a43b21b5f436bc08348eefda7a4c6c66a256656abba8d4c987cbb9015302e0b6",
      },
      sampling: { temperature: 0 },
    },
  ],
  parseConfig,
  tensors,
  archOf,
  baselines: [ARCH_35B],
  quantWidths: {
    embedding: [4],
    attention: [4],
    router: [8],
    sharedExpert: [4, 8],
    routedExpert: [2, 4],
  },
  chat,
  shapeOf,
  createForward: (parts, config) => new Qwen36Forward(parts, config),
});
