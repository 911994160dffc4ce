import { afterAll, describe, expect, test } from "bun:test";
import { Session } from "../../src/engine/session.ts";
import type { ModelOptions } from "../../src/engine/model.ts";
import { argmax, softcap } from "../../src/kernels/sampling.ts";
import { rmsNorm } from "../../src/kernels/norm.ts";
import { Commands, printCommands } from "../../src/native/commands.ts";
import { sha256 } from "../../src/format/digest.ts";
import { closeModels, loadTiny, promptOf } from "../fixtures/models.ts";

afterAll(closeModels);

const [x, y] = [{ buffer: { id: 17 } }, { buffer: { id: 18 }, offset: 64 }];

describe("a command list", () => {
  test("has the layout of include/mf.h", () => {
    const commands = new Commands();
    commands.dispatch(softcap, { x, y }, { N: 300, cap: 1.5 });
    commands.wait({ id: 5 }, 2 ** 40);
    const { bytes } = commands;
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    expect(bytes.length).toBe(40 + 2 * 24 + 8 + 16);
    const words = (at: number, count: number): number[] =>
      Array.from({ length: count }, (_, i) => view.getUint32(at + 4 * i, true));
    // Kind, kernel, buffers, bytes of parameters, groups, threads.
    expect([words(0, 1), words(8, 2), words(16, 3)]).toEqual([[1], [2, 8], [2, 1, 1]]);
    expect(words(40, 2)).toEqual([17, 0]);
    expect([view.getFloat64(48, true), view.getFloat64(56, true)]).toEqual([0, 1200]);
    expect(words(64, 2)).toEqual([18, 0]);
    expect([view.getFloat64(72, true), view.getFloat64(80, true)]).toEqual([64, 1200]);
    expect(view.getUint32(88, true)).toBe(300);
    expect(view.getFloat32(92, true)).toBe(1.5);
    expect(words(96, 2)).toEqual([2, 5]);
    expect(view.getFloat64(104, true)).toBe(2 ** 40);
  });

  test("is printed one command a line", () => {
    const commands = new Commands();
    commands.dispatch(rmsNorm, { x, weight: y, y: x }, { T: 2, D: 8, eps: 0.5 });
    commands.signal({ id: 5 }, 3);
    commands.dispatch(argmax, { logits: x, result: y }, { T: 1, V: 10 });
    commands.wait({ id: 6 }, 4);
    expect(commands.count).toBe(4);
    expect(printCommands(commands.bytes)).toBe(
      [
        "rms_norm x=17+0[64] weight=18+64[16] y=17+0[64] T=2 D=8 eps=0.5",
        "signal event 5 >= 3",
        "argmax logits=17+0[40] result=18+64[8] T=1 V=10",
        "wait event 6 >= 4",
      ].join("\n"),
    );
  });

  test("is the same whether it grew or not, and after being used before", () => {
    const [small, large] = [new Commands(1), new Commands(1 << 20)];
    // What an earlier use left behind must not show through, padding included.
    for (const commands of [small, large]) {
      for (let i = 0; i < 50; i += 1) commands.signal({ id: 0xffff_ffff }, 2 ** 53 - 1);
      commands.reset();
      expect([commands.count, commands.bytes.length]).toEqual([0, 0]);
      for (let i = 0; i < 300; i += 1) {
        commands.dispatch(rmsNorm, { x, weight: y, y: x }, { T: i, D: 8, eps: i });
      }
    }
    expect(small.bytes).toEqual(large.bytes);
    expect(small.bytes.length).toBe(300 * (40 + 3 * 24 + 16));
  });

  test.each([-1, 1.5, 2 ** 32, Number.NaN, Number.POSITIVE_INFINITY])(
    "refuses %p where a whole number belongs",
    (N) => {
      const commands = new Commands();
      expect(() => commands.dispatch(softcap, { x, y }, { N, cap: 1 })).toThrow("no 32-bit number");
    },
  );

  test("takes the largest 32-bit number", () => {
    const commands = new Commands();
    commands.dispatch(argmax, { logits: x, result: y }, { T: 1, V: 2 ** 32 - 1 });
    expect(printCommands(commands.bytes)).toEndWith("V=4294967295");
  });

  test("refuses a kernel that no library knows", () => {
    const unknown = { ...softcap };
    expect(() => new Commands().dispatch(unknown, { x, y }, { N: 1, cap: 1 })).toThrow("catalogue");
  });
});

/** The lists of one step in words, handles numbered in the order of their appearance. */
async function listsOf(
  T: number,
  options: Partial<ModelOptions>,
  isPlanned = true,
): Promise<string> {
  const model = await loadTiny({ chunkRows: 8, ...options });
  // Who looks on has every layer planned.
  if (isPlanned) model.experts.observer = () => {};
  const session = new Session(model);
  await session.extend(Uint32Array.from(promptOf(9)), { head: "none" });
  const lists: string[] = [];
  model.stream.observe((commands) => lists.push(printCommands(commands)));
  await session.extend(Uint32Array.from(promptOf(T, 2)));
  model.stream.commit();
  session.close();
  const names = new Map<string, string>();
  const nameOf = (handle: string): string => {
    if (!names.has(handle)) names.set(handle, `#${names.size}`);
    return names.get(handle)!;
  };
  return lists
    .join("\n---\n")
    .replaceAll(/(?<==)\d+(?=\+\d+\[)|(?<=event )\d+/g, (handle) => nameOf(handle));
}

const kernelsOf = (lists: string): string[] =>
  lists.split("\n").map((line) => /^(wait|signal)? ?\S+/.exec(line)![0]);

describe("a step's command lists", () => {
  test.each([1, 5])("are the same for two fresh models (T = %d)", async (T) => {
    const options = { slots: 3 };
    expect(await listsOf(T, options)).toBe(await listsOf(T, options));
  });

  test("differ by nothing but numbers between one token and another", async () => {
    const [one, other] = [await listsOf(1, { slots: "resident" }), await listsOf(1, { slots: 8 })];
    const dispatches = (lists: string): string[] =>
      kernelsOf(lists).filter((name) => !/^(wait|signal|---|routed_(gate|down))/.test(name));
    expect(dispatches(one)).toEqual(dispatches(other));
  });

  test("of a token whose experts are all in slots are one list, which looks them up", async () => {
    const planned = kernelsOf(await listsOf(1, { slots: "resident" }));
    const lookedUp = kernelsOf(await listsOf(1, { slots: "resident" }, false));
    const lookup = "slot_lookup";
    expect(planned.filter((name) => name === "---")).toHaveLength(6);
    expect(lookedUp.filter((name) => name === lookup)).toHaveLength(6);
    expect(lookedUp[lookedUp.indexOf(lookup) + 1]).toBe("routed_gate");
    expect(lookedUp.filter((name) => name !== lookup)).toEqual(
      planned.filter((name) => name !== "---"),
    );
  });

  // A refactor leaves these as they are; a change of the graph changes them on purpose.
  test("are those recorded", async () => {
    const lists = await listsOf(1, { slots: "resident" });
    const end = kernelsOf(lists).indexOf("---");
    expect(kernelsOf(lists).slice(0, end)).toMatchInlineSnapshot(`
      [
        "embed_affine",
        "rope_table",
        "rope_table",
        "rms_norm",
        "matmul_affine",
        "matmul_affine",
        "matmul_affine",
        "qkv_epilogue_f32",
        "attention_f32",
        "matmul_affine",
        "sandwich_setup",
        "matmul_affine",
        "router_topk",
        "signal event",
        "gated_matmul_affine",
        "matmul_affine",
      ]
    `);
    expect(kernelsOf(lists).slice(-8)).toMatchInlineSnapshot(`
      [
        "matmul_affine",
        "---",
        "routed_gate",
        "routed_down",
        "routed_reduce",
        "sandwich_tail",
        "rms_norm",
        "matmul_affine",
      ]
    `);
    expect(sha256(new TextEncoder().encode(lists))).toMatchInlineSnapshot(
      `"89fbba37607b384fc404d744db24b7f7c21b59c8c134ca3a8fe0e0af1189e4d8"`,
    );
  });
});
