import { describe, expect, test } from "bun:test";
import { StopStrings } from "../../src/text/stop-strings.ts";

const run = (stops: readonly string[], pushes: readonly string[]) => {
  const matcher = new StopStrings(stops);
  const outputs = pushes.map((text) => matcher.push(text));
  return { outputs, rest: matcher.flush(), hit: matcher.hit };
};

describe("stop strings", () => {
  test("one that arrives in parts is never shown, nor what follows it", () => {
    expect(run(["END"], ["hello E", "N", "D ignored", "more"])).toEqual({
      outputs: ["hello ", "", "", ""],
      rest: "",
      hit: "END",
    });
  });

  test("a tail that only began like one is released", () => {
    expect(run(["END"], ["hello EN", "ough"])).toEqual({
      outputs: ["hello ", "ENough"],
      rest: "",
      hit: undefined,
    });
    expect(run(["END", "ห้อง"], ["ห้อ"])).toEqual({ outputs: [""], rest: "ห้อ", hit: undefined });
  });

  test("the earliest of several wins", () => {
    const { outputs, hit } = run(["cd", "bcx", "b"], ["abcd"]);
    expect(outputs).toEqual(["a"]);
    expect(hit).toBe("b");
  });

  test("empty ones are ignored", () => {
    expect(run([""], ["a", "b"]).outputs).toEqual(["a", "b"]);
  });

  test("every split gives the same text", () => {
    const text = "aabaabaaab<stop>x";
    for (const stops of [["<stop>"], ["aaab"], ["ab<"], ["never"]]) {
      const whole = run(stops, [text]);
      for (let first = 0; first <= text.length; first += 1) {
        for (let second = first; second <= text.length; second += 1) {
          const parts = [text.slice(0, first), text.slice(first, second), text.slice(second)];
          const split = run(stops, parts);
          expect(split.outputs.join("") + split.rest).toBe(whole.outputs.join("") + whole.rest);
          expect(split.hit).toBe(whole.hit);
        }
      }
    }
  });
});
