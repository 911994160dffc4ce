import { describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import {
  openDirect,
  type ReadAt,
  readAt,
  ReadQueue,
  READS_IN_FLIGHT,
  readWhole,
} from "../../src/experts/reader.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";
import { failureOf } from "../fixtures/failures.ts";

const name = path.join(temporaryFolder(), "experts");
fs.writeFileSync(
  name,
  Uint8Array.from({ length: 1000 }, (_, i) => i % 251),
);

/** Reads 600 bytes from byte 300 on. */
async function fill(via?: ReadAt, bytes = 600): Promise<Uint8Array> {
  const descriptor = fs.openSync(name, "r");
  const target = new Uint8Array(bytes);
  try {
    await readWhole({ descriptor, target, position: 300, what: "expert 3 of layer 4" }, via);
    return target;
  } finally {
    fs.closeSync(descriptor);
  }
}

const wanted = Uint8Array.from({ length: 600 }, (_, i) => (300 + i) % 251);

/** A read that fails the first time with a system error. */
function failingOnce(code: string): ReadAt {
  let hasFailed = false;
  return (descriptor, target, position) => {
    if (hasFailed) return readAt(descriptor, target, position);
    hasFailed = true;
    return Promise.reject(Object.assign(new Error(`${code}: no luck`), { code }));
  };
}

describe("readWhole", () => {
  test("fills the target from its place in the file", async () => {
    expect(await fill()).toEqual(wanted);
  });

  test("continues after short reads where they ended", async () => {
    const asked: [number, number][] = [];
    const read = await fill((descriptor, target, position) => {
      asked.push([position, target.length]);
      return readAt(descriptor, target.subarray(0, 250), position);
    });
    expect(read).toEqual(wanted);
    expect(asked).toEqual([
      [300, 600],
      [550, 350],
      [800, 100],
    ]);
  });

  test("reads again when a signal interrupted it", async () => {
    expect(await fill(failingOnce("EINTR"))).toEqual(wanted);
  });

  test("says where the file ended", async () => {
    const failure = await failureOf(() => fill(readAt, 800));
    expect(failure.code).toBe("expert.read");
    expect(failure.message).toContain(
      "expert 3 of layer 4: the file ends after 700 of 800 bytes at offset 300",
    );
    expect(failure.message).toContain("mference verify");
  });

  test("takes no bytes for the end, without asking again", async () => {
    let calls = 0;
    const failure = await failureOf(() =>
      fill(() => {
        calls += 1;
        return Promise.resolve(0);
      }),
    );
    expect(failure.code).toBe("expert.read");
    expect(calls).toBe(1);
  });

  test("passes on what the system said", async () => {
    const failure = await failureOf(() => fill(failingOnce("EIO")));
    expect(failure.code).toBe("expert.read");
    expect(failure.message).toBe("expert 3 of layer 4: EIO: no luck");
  });
});

describe("direct reads", () => {
  /** Reads through two descriptors and tells which were used. */
  async function used(via: ReadAt): Promise<string[]> {
    const [descriptor, direct] = [fs.openSync(name, "r"), fs.openSync(name, "r")];
    const target = new Uint8Array(600);
    const calls: string[] = [];
    const spy: ReadAt = (which, part, position) => {
      calls.push(which === direct ? "direct" : "buffered");
      return via(which, part, position);
    };
    try {
      await readWhole({ descriptor, direct, target, position: 300, what: "expert 3" }, spy);
      expect(target).toEqual(wanted);
      return calls;
    } finally {
      fs.closeSync(descriptor);
      fs.closeSync(direct);
    }
  }

  test("are made where nothing has arrived yet", async () => {
    expect(await used(readAt)).toEqual(["direct"]);
    const short: ReadAt = (which, target, position) =>
      readAt(which, target.subarray(0, 400), position);
    expect(await used(short)).toEqual(["direct", "buffered"]);
  });

  test("that the file system refuses are made through its cache", async () => {
    expect(await used(failingOnce("EINVAL"))).toEqual(["direct", "buffered"]);
  });

  test("see the same file, or are not to be had", () => {
    const descriptor = fs.openSync(name, "r");
    const direct = openDirect(descriptor);
    if (direct !== undefined) {
      expect(fs.fstatSync(direct).ino).toBe(fs.fstatSync(descriptor).ino);
      fs.closeSync(direct);
    }
    fs.closeSync(descriptor);
    expect(openDirect(descriptor)).toBeUndefined();
  });
});

describe("a queue of reads", () => {
  test("begins them in order, a few at once, and the next as soon as one ends", async () => {
    const queue = new ReadQueue();
    const begun: number[] = [];
    const ends: string[] = [];
    const reads = Array.from({ length: 6 }, () => Promise.withResolvers<string>());
    const all = reads.map(({ promise }, index) =>
      queue
        .run(() => {
          begun.push(index);
          return promise;
        })
        .then(
          (value) => ends.push(value),
          (error: Error) => ends.push(error.message),
        ),
    );
    expect([READS_IN_FLIGHT, begun]).toEqual([3, [0, 1, 2]]);
    reads[2]!.resolve("two");
    await Bun.sleep(0);
    expect([begun, ends]).toEqual([[0, 1, 2, 3], ["two"]]);
    reads[0]!.reject(new Error("no luck"));
    await Bun.sleep(0);
    expect([begun, ends]).toEqual([
      [0, 1, 2, 3, 4],
      ["two", "no luck"],
    ]);
    for (const { resolve } of reads) resolve("rest");
    await Promise.all(all);
    expect(begun).toEqual([0, 1, 2, 3, 4, 5]);
    // All places are free again.
    const again = Promise.withResolvers<string>();
    for (let i = 0; i < 3; i += 1) {
      void queue.run(() => {
        begun.push(9);
        return again.promise;
      });
    }
    expect(begun.filter((index) => index === 9)).toHaveLength(3);
    again.resolve("");
  });
});
