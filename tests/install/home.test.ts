import { afterEach, describe, expect, test } from "bun:test";
import path from "node:path";
import {
  checkModelName,
  mferenceHome,
  modelsHome,
  packageDirectory,
} from "../../src/install/home.ts";

const saved = { ...process.env };
afterEach(() => {
  for (const name of ["MFERENCE_HOME", "XDG_DATA_HOME", "HOME"]) {
    if (saved[name] === undefined) delete process.env[name];
    else process.env[name] = saved[name];
  }
});

describe("the home", () => {
  test("is $MFERENCE_HOME when that is set", () => {
    process.env["MFERENCE_HOME"] = "/somewhere";
    expect(modelsHome()).toBe("/somewhere/models");
    expect(packageDirectory("x")).toBe("/somewhere/models/x.gturbo");
    process.env["MFERENCE_HOME"] = "relative";
    expect(mferenceHome()).toBe(path.resolve("relative"));
  });

  test.skipIf(process.platform === "darwin")(
    "follows the data folder elsewhere (macOS has its own)",
    () => {
      delete process.env["MFERENCE_HOME"];
      process.env["HOME"] = "/home/someone";
      process.env["XDG_DATA_HOME"] = "/data";
      expect(mferenceHome()).toBe("/data/mference");
      for (const unusable of ["", "relative"]) {
        process.env["XDG_DATA_HOME"] = unusable;
        expect(mferenceHome()).toBe("/home/someone/.local/share/mference");
      }
    },
  );
});

test("names are brought into normal form", () => {
  expect(checkModelName("cafe\u0301")).toBe("caf\u00e9");
  expect(checkModelName("gemma-4_26B.v1+x")).toBe("gemma-4_26B.v1+x");
});
