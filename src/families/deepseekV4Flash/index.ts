import { defineKeptFamily } from "../family.ts";
import { ARCH_284B, archOf, parseConfig, type DeepseekV4Config } from "./config.ts";
import { tensors } from "./tensors.ts";

/** DeepSeek V4 Flash: compressed attention, hyper-connections, routed experts of two bits. */
export const deepseekV4Flash = defineKeptFamily<DeepseekV4Config>({
  id: "deepseekV4Flash",
  manifestName: "deepseekV4Flash",
  modelTypes: ["deepseek_v4"],
  sources: [
    {
      name: "deepseekv4flash",
      modelId: "deepseek-v4-flash-2bit-dq",
      sourceSha256: "d1c2d929ab0a35be32cf18026bb31d6f99dad58d6c93a5a2abbe43791f9d6c30",
      remote: {
        repository: "mlx-community/DeepSeek-V4-Flash-2bit-DQ",
        revision: "722bf559b7de93575b2320973cf2002e05bfe6c9",
        downloadBytes: 97_000_000_000,
        installedBytes: 97_500_000_000,
        reserveBytes: 2_147_483_648,
      },
    },
  ],
  parseConfig,
  tensors,
  archOf,
  baselines: [ARCH_284B],
  quantWidths: {
    embedding: [4],
    attention: [4],
    router: [8],
    sharedExpert: [4, 8],
    routedExpert: [2, 4],
  },
});
