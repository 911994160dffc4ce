import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { failPlan, applyPlan, planExperts, publishPlan } from "../../src/experts/plan.ts";
import { type ReadAt, readAt } from "../../src/experts/reader.ts";
import { ExpertStore, type StoreOptions } from "../../src/experts/store.ts";
import { openLayer } from "../../src/format/package.ts";
import { Device } from "../../src/native/device.ts";
import { flipByte } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";
import { open, packageOf } from "../fixtures/packages.ts";
import { library } from "../golden/library.ts";

type Options = Partial<Pick<StoreOptions, "slots" | "read" | "isDirect">>;

/** A store over a private package; it and its device are closed after the test. */
async function withStore(
  { slots = 3, ...rest }: Options,
  work: (store: ExpertStore, directory: string, device: Device) => Promise<void>,
): Promise<void> {
  const directory = await packageOf();
  const model = await open(directory);
  const files = new Map(
    model.layers.map((layer) => [
      layer.index,
      {
        layer: layer.index,
        path: layer.path,
        strideBytes: layer.strideBytes,
        offsets: layer.expertOffsets,
        open: () => openLayer(model, layer.index),
      },
    ]),
  );
  const device = new Device({ library, threads: 1 });
  const store = new ExpertStore({ device, files, slots, ...rest });
  try {
    await work(store, directory, device);
  } finally {
    store.close();
    device.close();
  }
}

const layerFile = (directory: string, layer: number): string =>
  path.join(directory, "packed_experts", `layer_0${layer}.bin`);

const openFiles = (): number => fs.readdirSync("/proc/self/fd").length;
const hasProc = fs.existsSync("/proc/self/fd");

describe("a store of slots", () => {
  test("opens a layer at its first touch, and only that one", async () => {
    await withStore({}, async (store, directory) => {
      expect([store.slabBytes, store.reads, store.bytesRead]).toEqual([0, 0, 0]);
      const layer = await store.open(2);
      expect(layer.slotCount).toBe(3);
      expect(layer.slab.byteLength).toBe(3 * layer.slotBytes);
      expect(store.slabBytes).toBe(3 * layer.slotBytes);
      expect(await store.open(2)).toBe(layer);
      fs.rmSync(layerFile(directory, 5));
      store.check();
      expect((await failureOf(() => store.open(5))).code).toBe("install.missing");
    });
  });

  test("takes no more slots than there are experts", async () => {
    await withStore({ slots: 100 }, async (store) => {
      expect((await store.open(0)).slotCount).toBe(8);
    });
  });

  test("reads an expert into the slot it is given", async () => {
    const targets: { bytes: Uint8Array; position: number }[] = [];
    const read: ReadAt = (descriptor, target, position) => {
      targets.push({ bytes: target, position });
      return readAt(descriptor, target, position);
    };
    await withStore({ read }, async (store, directory) => {
      const layer = await store.open(1);
      await Promise.all([layer.fetch(5, 0), layer.fetch(2, 2)]);
      await layer.fetch(7, 0);
      const file = fs.readFileSync(layerFile(directory, 1));
      const expertOf = (expert: number): Buffer =>
        file.subarray(expert * layer.slotBytes, (expert + 1) * layer.slotBytes);
      const [slot0, slot2] = targets.map(({ bytes }) => bytes);
      // The later read replaced expert 5.
      expect(Buffer.compare(slot0!, expertOf(7))).toBe(0);
      expect(Buffer.compare(slot2!, expertOf(2))).toBe(0);
      expect(targets.map(({ position }) => position / layer.slotBytes)).toEqual([5, 2, 7]);
      expect([store.reads, store.bytesRead]).toEqual([3, 3 * layer.slotBytes]);
    });
  });

  test("reads past the system's cache when asked to, and closes what it opened", async () => {
    const before = hasProc ? openFiles() : 0;
    const targets: Uint8Array[] = [];
    const read: ReadAt = (descriptor, target, position) => {
      targets.push(target);
      return readAt(descriptor, target, position);
    };
    await withStore({ read, isDirect: true }, async (store, directory) => {
      const layer = await store.open(1);
      await layer.fetch(5, 1);
      const file = fs.readFileSync(layerFile(directory, 1));
      const wanted = file.subarray(5 * layer.slotBytes, 6 * layer.slotBytes);
      expect(Buffer.compare(targets[0]!, wanted)).toBe(0);
    });
    if (hasProc) expect(openFiles()).toBe(before);
  });

  test("counts nothing for a read that failed", async () => {
    await withStore({ read: () => Promise.resolve(0) }, async (store) => {
      const layer = await store.open(1);
      const cache = layer.cache!;
      const plan = planExperts(cache, [4])!;
      applyPlan(cache, plan);
      const failure = await failureOf(() => layer.fetch(4, plan.slots[0]!));
      failPlan(cache, plan);
      expect(failure.code).toBe("expert.read");
      expect(failure.message).toContain("expert 4 of layer 1");
      expect([store.reads, store.bytesRead]).toEqual([0, 0]);
      // The slot is free again.
      const again = planExperts(cache, [1, 2, 3])!;
      applyPlan(cache, again);
      publishPlan(cache, again);
      expect(cache.table[4]).toBe(-1);
    });
  });

  test("refuses a layer without experts", async () => {
    await withStore({}, async (store) => {
      expect((await failureOf(() => store.open(6))).code).toBe("format.layout");
    });
  });
});

test("a store that shrinks keeps the experts that would leave last, and their bytes", async () => {
  await withStore({ slots: 4 }, async (store, directory, device) => {
    const layer = await store.open(1);
    for (const ids of [
      [3, 5, 6],
      [5, 6],
      [6, 1],
    ]) {
      const plan = planExperts(layer.cache!, ids)!;
      applyPlan(layer.cache!, plan);
      for (const miss of plan.misses) await layer.fetch(plan.ids[miss]!, plan.slots[miss]!);
      publishPlan(layer.cache!, plan);
    }
    const targets: Uint8Array[] = [];
    const view = device.view.bind(device);
    device.view = (...place) => {
      const bytes = view(...place);
      targets.push(bytes);
      return bytes;
    };
    store.resize(2);
    const small = await store.open(1);
    expect([store.slots, small.slotCount, store.slabBytes]).toEqual([2, 2, 2 * small.slotBytes]);
    expect([5, 6].map((expert) => small.cache!.table[expert])).toEqual([0, 1]);
    expect([1, 3].map((expert) => small.cache!.table[expert])).toEqual([-1, -1]);
    const file = fs.readFileSync(layerFile(directory, 1));
    const first = file.subarray(5 * small.slotBytes, 6 * small.slotBytes);
    expect(Buffer.compare(targets[0]!, first)).toBe(0);
    // Layers that open later are as small; a store may grow again.
    expect((await store.open(2)).slotCount).toBe(2);
    store.resize(100);
    expect((await store.open(1)).slotCount).toBe(8);
    expect((await store.open(1)).cache!.table[6]).toBeGreaterThanOrEqual(0);
  });
});

describe("a store of mapped layers", () => {
  test("has every expert and allocates nothing", async () => {
    await withStore({ slots: "resident" }, async (store, directory) => {
      const layer = await store.open(1);
      expect([layer.slotCount, layer.cache, store.slabBytes]).toEqual([8, undefined, 0]);
      expect(layer.slab.byteLength).toBe(fs.statSync(layerFile(directory, 1)).size);
    });
  });
});

describe.each(["resident", 3] as const)("files of a store of %p", (slots) => {
  test("are hashed when they are first touched", async () => {
    await withStore({ slots }, async (store, directory) => {
      flipByte(layerFile(directory, 3), 1234);
      await store.open(2);
      const failure = await failureOf(() => store.open(3));
      expect(failure.code).toBe("format.changed");
      expect(failure.message).toContain("layer_03.bin is damaged: its SHA-256 is");
    });
  });

  test.skipIf(!hasProc)("are closed, failed ones too (counted in /proc)", async () => {
    const before = openFiles();
    await withStore({ slots }, async (store, directory, device) => {
      await store.open(0);
      fs.truncateSync(layerFile(directory, 1), 100);
      expect((await failureOf(() => store.open(1))).code).toBe("format.changed");
      device.mapFile = device.allocate = () => {
        throw new Error("no memory");
      };
      expect((await failureOf(() => store.open(2))).message).toBe("no memory");
    });
    expect(openFiles()).toBe(before);
  });

  test.each([
    ["cut", (file: string) => fs.truncateSync(file, 1000), "was replaced or written to"],
    ["written to", (file: string) => flipByte(file, 7), "was replaced or written to"],
    ["removed", (file: string) => fs.rmSync(file), "was removed while it was in use"],
    [
      "replaced by its copy",
      (file: string) => {
        fs.copyFileSync(file, `${file}.copy`);
        fs.renameSync(`${file}.copy`, file);
      },
      "was replaced while it was in use",
    ],
  ] as const)("are missed when they are %s", async (_, harm, sentence) => {
    await withStore({ slots }, async (store, directory) => {
      await store.open(4);
      store.check();
      // A file system's clock may be coarse.
      await Bun.sleep(15);
      harm(layerFile(directory, 4));
      const failure = await failureOf(() => store.check());
      expect(failure.code).toBe("format.changed");
      expect(failure.message).toContain("layer_04.bin");
      expect(failure.message).toContain(sentence);
      expect(failure.message).toContain("load the model again");
    });
  });
});

test("mapped layers are looked at for each token, others are not", async () => {
  for (const slots of ["resident", 3] as const) {
    await withStore({ slots }, async (store, directory) => {
      await store.open(4);
      fs.truncateSync(layerFile(directory, 4), 1000);
      if (slots === "resident") expect(() => store.checkMapped()).toThrow("1000 now");
      else store.checkMapped();
    });
  }
});
