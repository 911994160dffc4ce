import { declareCommand } from "./command.ts";
export const doctor = declareCommand({
  name: "doctor",
  description: "x",
  args: {},
  run: async () => 0,
});
